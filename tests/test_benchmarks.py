"""Benchmarks run and print what they promise; what they measure is no matter of tests."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import flowrl
from flowrl.plans import apex_dqn
from flowrl.policies.line_players import Perfect
from flowrl.rollout import nash_conv, payoffs
from flowrl.runs.progress import score_text
from flowrl.runs.run_info import read_results
from flowrl.trainer.plan_file import builtin_plans
from tests.forked import PIPE, Python

ROOT = Path(__file__).parents[1]

#: A ratio with its interval.
RATIO = r"\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\)"


def printed(name: str, *options: str, code: int = 0, path: Sequence[Path] = ()) -> str:
    """What a benchmark prints that ends with this exit code, where modules of `path` are found too."""
    found = os.pathsep.join(map(str, (ROOT, *path)))
    words = [str(ROOT / "benchmarks" / name), *options]
    env, begin = os.environ | {"PYTHONPATH": found}, partial(os.chdir, ROOT)
    with Python(words, stdout=PIPE, stderr=PIPE, env=env, begin=begin) as process:
        out, err = process.communicate(timeout=900)  # peers that are installed, RLlib among them, start slowly
    assert process.returncode == code, err
    return out


def test_the_page_of_figures_is_what_the_benchmarks_have_measured(tmp_path: Path) -> None:
    """One command runs them and writes the page; what is not installed is named there."""
    out = tmp_path / "performance.md"
    text = printed("performance.py", "engine_overhead", "--options", "--items 100 --rounds 2", "--out", str(out))
    written = out.read_text()
    assert "\n`PYTHONPATH=. python benchmarks/engine_overhead.py --items 100 --rounds 2`\n" in written
    ratios = re.findall(rf"^.* flowrl for_each beside ([\w.]+): ({RATIO})$", text, re.MULTILINE)
    assert all(re.search(rf"\| .*{other}: [\d.]+ us \| {re.escape(ratio)} \|", written) for other, ratio in ratios)
    assert ("torchdata.nodes" in dict(ratios)) != ("\nNot installed: torchdata.nodes.\n" in written)


def test_what_loses_is_at_the_top_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower than a peer, or short of its aim; a bound is no peer. What failed is said in its place."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    common, performance = (import_module(name) for name in ("common", "performance"))
    pair = common.Pair
    pairs = [pair("flowrl", "slow"), pair("flowrl", "fast"), pair("flowrl", "even", 2), pair("flowrl", "b", bound=True)]
    costs = {"flowrl": 1.0, "slow": 3.0, "fast": 0.5, "even": 1.5, "b": 0.1}
    rows = common.compare("this", {name: np.full(2, cost) for name, cost in costs.items()}, pairs, "ms")
    measured, broken = (performance.Measured(name, name) for name in ("measured", "broken"))
    page = performance.page({measured: rows, broken: "ValueError: no"}, load=0)
    _, loses, every, failed = page.split("\n## ")
    row = r"(\w+): [\d.]+ ms \| ([\d.]+) \("
    assert re.findall(row, loses) == [("fast", "0.50"), ("even", "1.50")]
    assert re.findall(row, every) == [("slow", "3.00"), ("fast", "0.50"), ("even", "1.50"), ("b", "0.10")]
    assert "It failed: ValueError: no" in failed


@pytest.mark.slow
def test_start_and_memory_are_measured() -> None:
    options = ("--rounds", "1", "--rows", "1000", "--steps", "100")
    text = printed("start_and_memory.py", *options)
    assert re.search(r"^start, 100 steps +flowrl --help beside the aim: ", text, re.MULTILINE), text
    for plan in ("PPO", "DQN, 1,000 rows", "IMPALA"):
        assert re.search(rf"^memory, {plan} +flowrl +[\d,]+ MB", text, re.MULTILINE), text


@pytest.mark.slow
def test_environment_managers_are_compared() -> None:
    """Each row steps with what is installed, and compares with gymnasium's at least."""
    rows = printed("env_managers.py", "--rounds", "1", "--scale", "0.01").split("\n\n")[1:]
    assert [row.partition(":")[0] for row in rows] == [
        *("CartPole-v1", "sleeps 1 ms", "heavy-tailed, sleeps", "heavy-tailed, works")
    ]
    for row in rows:
        assert "gymnasium Async" in row
    assert "local beside gymnasium Sync" in rows[0]


@pytest.mark.slow
def test_acting_in_torch_and_in_numpy_is_compared_with_bare_loops() -> None:
    text = printed("sampling.py", "--steps", "1", "--rounds", "2")
    for case in ("sync 8", "native 8", "native 64", "native 1024"):
        compared = re.findall(rf"{case} +flowrl, (\w+) beside (\w+) loop: {RATIO}", text)
        assert compared == [("torch", "torch"), ("numpy", "torch"), ("numpy", "numpy")], text


@pytest.mark.slow
def test_what_checks_cost_an_update_is_told_by_learner() -> None:
    text = printed("learner.py", "--checks", "dqn", "ppo", "--rounds", "2", "--updates", "4")
    for name in ("dqn", "ppo"):
        assert re.search(rf"^{name} +with checks beside without checks: {RATIO}; aim 0.99$", text, re.MULTILINE), text


@pytest.mark.slow
def test_rows_are_as_old_as_the_benchmark_of_their_age_says() -> None:
    """V4: corrected or not, runs of age 0 are the same."""
    text = printed("staleness.py", "--lags", "0", "2", "--seeds", "2", "--steps", "3000")
    rows = re.findall(r"^ +(\d+)  (?:corrected|naive) +([\d.]+) .* (\d+\.\d\d)$", text, re.MULTILINE)
    assert [age for age, _, _ in rows] == ["0", "0", "2", "2"]
    assert rows[0] == rows[1]
    assert rows[2][1] != rows[3][1]
    assert rows[0][2] == "0.00"
    assert all(1.5 < float(mean) <= 2 for _, _, mean in rows[2:])


@pytest.mark.slow
def test_search_in_many_trees_is_compared_with_a_loop_over_one() -> None:
    text = printed("search.py", "--trees", "2", "--simulations", "5", "--rounds", "2")
    for game in ("tic_tac_toe", "connect_four"):
        assert re.search(rf"^{game} +2 trees +[\d,]+ simulations/s", text, re.MULTILINE), text
        assert re.search(rf"^{game} +2 trees beside loop: {RATIO}$", text, re.MULTILINE), text
    for name in ("Gumbel", "PUCT"):
        assert re.search(rf"^learned, 2 trees +{name} +[\d,]+ simulations/s", text, re.MULTILINE), text


@pytest.mark.slow
def test_learning_is_told_seed_by_seed(tmp_path: Path) -> None:
    """As far as a short budget goes, which nobody is expected to succeed in; a seed that has ended is not run again."""
    options = ("ppo-units", "--keep", str(tmp_path), "--budget")
    texts = [printed("learning.py", *options, "2000", "--seeds", "1") for _ in range(2)]
    lines = [re.search(r"^ +0 .* 2,048 .*$", text, re.MULTILINE) for text in texts]
    first, again = (found[0] for found in lines if found)
    assert first == again, "with its seconds"
    assert re.fullmatch(r" +0 +-\d{3},\d{3}\.\d +2,048 +[\d.]+  below the goal", first)
    assert "| task" not in printed("learning.py", *options, "3000", code=1), "seeds of another budget are not mixed in"


@pytest.mark.slow
def test_a_whole_run_goes_past_the_goal_with_evaluations_for_a_curve(tmp_path: Path) -> None:
    """Also where an evaluation takes more env steps, 200 here, than training since the last one."""
    options = ("--whole", "--keep", str(tmp_path), "--budget", "3000", "--seeds", "1")
    text = printed("learning.py", "her_dqn-10-bits", *options)
    assert re.search(r"^ +0 .* 3,0\d\d ", text, re.MULTILINE), text
    results = read_results(tmp_path / "her_dqn-10-bits" / "seed-0")
    evaluated = [result["env_steps"] for result in results if "eval_return" in result]
    assert len(evaluated) == 19, "all of 20 but the first, which would come before it learns"


@pytest.mark.slow
def test_a_table_that_is_stopped_goes_on(tmp_path: Path) -> None:
    """D3: what is terminated ends its runs at their next step; the same command goes on, to the same returns."""
    options = ("ppo-units", "--budget", "4000", "--seeds", "2", "--keep")
    words = [str(ROOT / "benchmarks" / "learning.py"), *options, str(tmp_path / "stopped")]
    with Python(words, stdout=PIPE, stderr=PIPE, begin=partial(os.chdir, ROOT)) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("seed"):
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    assert "has not ended" in err
    found = [printed("learning.py", *options, str(tmp_path / each)) for each in ("stopped", "whole")]
    first, second = (re.findall(r"^ +\d  +(\S+ +\S+) ", text, re.MULTILINE) for text in found)
    assert first == second
    assert len(first) == 2


@pytest.mark.needs("open_spiel")
def test_an_equilibrium_is_judged_by_the_last_policies(tmp_path: Path) -> None:
    """By minus their NashConv: returns of a zero-sum game tell nothing."""
    text = printed("learning.py", "ippo-pennies", "--keep", str(tmp_path), "--budget", "512", "--seeds", "1")
    trained = flowrl.load(tmp_path / "ippo-pennies" / "seed-0", last=True)
    score = score_text(-nash_conv(trained.players, "openspiel:matrix_mp").total)
    assert score != "0.000"
    assert re.search(rf"^ +0 +{score} +512 ", text, re.MULTILINE), text


@pytest.mark.slow
def test_self_play_is_judged_by_games_against_another_player(tmp_path: Path) -> None:
    """By the share that the last policy does not lose; who has hardly learned loses to perfect play."""
    options = ("--keep", str(tmp_path), "--budget", "1024", "--seeds", "1")
    text = printed("learning.py", "self_play-noughts-perfect", *options, code=1)
    learner = flowrl.load(tmp_path / "self_play-noughts-perfect" / "seed-0", last=True).players
    table = payoffs({"learner": learner, "perfect": Perfect}, "flowrl:tic_tac_toe", episodes=500, num_envs=64)
    score = 1 - table.shares("learner", "perfect")[2]
    assert 0 < score < 0.9
    assert re.search(rf"^ +0 +{score_text(score)} +2,048 .* below the goal$", text, re.MULTILINE), text


def ended(folder: Path, returns: list[float]) -> None:
    """Seeds of a task as if they had been run."""
    for seed, score in enumerate(returns):
        run = folder / f"seed-{seed}"
        run.mkdir(parents=True)
        last = {"env_steps": 1_000 * (seed + 1)}
        summary = {
            "outcome": "goal",
            "confirmed_return": score,
            "seconds": 50.0 + seed,
            "eval_seconds": 10.0,
            "last": last,
        }
        (run / "summary.json").write_text(json.dumps(summary))


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """The cells of a table by task and column."""
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def test_learning_is_a_table_of_interquartile_means_beside_what_is_published(tmp_path: Path) -> None:
    """S4: of what has been run already; one task is passed, the other one is not."""
    ended(tmp_path / "dqn-cartpole", [476, 480, 490, 500, 500])
    ended(tmp_path / "ppo-cartpole", [100, 470, 474, 480, 500])
    table = tmp_path / "table.md"
    options = ("dqn-cartpole", "ppo-cartpole", "--keep", str(tmp_path), "--out", str(table))
    text = printed("learning.py", *options, code=1)
    by_name = rows_of(table.read_text())
    assert table.read_text() in text
    dqn = by_name["dqn-cartpole"]
    assert (dqn["return (IQM)"], dqn["seeds"], dqn["env steps"], dqn["seconds"]) == ("490.0", "5", "3,000", "62.0")
    low, high = map(float, dqn["95 % interval"].split(" .. "))
    assert 476 <= low < 490 < high <= 500
    assert (dqn["pass"], dqn["published"], dqn["passed"]) == ("475", "500", "yes")
    ppo = by_name["ppo-cartpole"]
    assert (ppo["return (IQM)"], ppo["passed"]) == ("474.7", "NO")


@pytest.mark.parametrize(
    ("verdict", "cases"),
    [
        (
            "yes",
            [
                ("dqn-10-bits", [0.1, 0.2, 0.299, 0.3, 0.4], "0.3", "0.266"),  # a control
                ("rnd-mountaincar", [-200.0, -120.0, -130.0, -140.0, -150.0], "-150, 80% of seeds", "-140.0"),
            ],
        ),
        (
            "NO",
            [
                ("her_dqn-10-bits", [0.897, 0.898, 0.899, 0.9, 0.91], "0.9", "0.899"),
                ("rnd-mountaincar", [-200.0, -100.0, -110.0, -120.0, -150.5], "-150, 80% of seeds", "-126.8"),
            ],
        ),
    ],
)
def test_what_is_asked_of_the_seeds(
    tmp_path: Path, verdict: str, cases: list[tuple[str, list[float], str, str]]
) -> None:
    """S4: a mean that is good enough, or so many that are; with the digits that decide it."""
    for task, returns, _, _ in cases:
        ended(tmp_path / task, returns)
    table, options = tmp_path / "table.md", ("--keep", str(tmp_path), "--out")
    text = printed("learning.py", *(task for task, *_ in cases), *options, str(table), code=verdict == "NO")
    rows, shown = rows_of(table.read_text()), []
    for task, returns, goal, mean in cases:
        assert (rows[task]["pass"], rows[task]["return (IQM)"], rows[task]["passed"]) == (goal, mean, verdict)
        shown += [f"{each:.{1 if abs(returns[0]) >= 10 else 3}f}" for each in returns]
    assert re.findall(r"^ +\d +(-?[\d.]+)", text, re.MULTILINE) == shown


def test_recorded_seeds_are_told_by_the_statistics_of_the_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4, S7: of seeds that settings were not chosen on, each once; a run that used up its budget is later than all
    that did not, even if its best policy then came to more than the goal."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    learning, file = import_module("learning"), tmp_path / "record.csv"
    monkeypatch.setattr(learning, "RECORD", file)
    found = {"dqn-cartpole": [0.0] * 5 + [480.0, 490.0, 500.0], "ppo-cartpole": [0.0] * 5 + [480.0, 490.0, 500.0]}
    tasks = {name: learning.TASKS[name] for name in found}
    for name, scores in [*found.items(), *found.items()]:
        settings = learning.fingerprint(tasks[name])
        for seed, score in enumerate(scores):
            end = "budget" if seed < 5 or (name, seed) == ("ppo-cartpole", 5) else "goal"
            one = learning.Outcome(seed, score, 1_000 * seed, 3_600.0, end)
            learning.record(file, name, settings, "flowrl", one)
        learning.record(file, name, "other", "flowrl", learning.Outcome(0, 0.0, 0, 3_600.0))
    assert len(learning.read_record(file)) == 18
    profile = tmp_path / "profile.svg"
    text = learning.report(file, tasks, profile)
    assert text.startswith("6 seeds. Left out: 2 of other settings, 10 that settings were chosen on.\n")
    by_task, on_scale, returns, steps = (rows_of(part) for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE))
    assert [row["algorithm"] for row in by_task.values()] == ["ppo"], "the last one of CartPole-v1"
    assert on_scale["dqn"]["IQM on the scale"] == f"{(490 - 22.2) / (475 - 22.2):.3f}"
    assert (returns["dqn"]["improves on"], returns["dqn"]["probability"]) == ("ppo", f"{4.5 / 9:.3f}")
    assert steps["dqn"]["probability"] == f"{7 / 9:.3f}"
    assert profile.exists()
    ended(tmp_path / "dqn-cartpole", [500.0, 500.0])
    assert learning.core_hours(tasks, range(3), tmp_path, None) == "4 of 6 seeds are left: 4.00 core-hours"
    tasks["dqn-cartpole"] = tasks["dqn-cartpole"]._replace(budget=2)
    assert learning.core_hours(tasks, range(3), tmp_path, None) == (
        "4 of 6 seeds are left: 3.00 core-hours, and those of dqn-cartpole, of which none is recorded"
    )
    assert learning.core_hours(tasks, range(9), tmp_path, file).startswith("8 of 18 seeds are left: 1.00 core-hours")


def test_a_report_compares_what_is_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: env steps to the same goal, shares against the same opponent; the scale is that of the environment."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    learning, file = import_module("learning"), tmp_path / "record.csv"
    names = ("dqn-mountaincar", "rnd-mountaincar", "alphazero-noughts-perfect", "muzero-noughts-random")
    names += ("iql-pendulum-data", "td3_bc-pendulum-data")
    for name in names:
        for seed in (30, 31):
            one = learning.Outcome(seed, -140.0, 1_000, 9.0, "goal")
            learning.record(file, name, learning.fingerprint(learning.TASKS[name]), "flowrl", one)
    text = learning.report(file, {name: learning.TASKS[name] for name in names}, None)
    more, *sooner = text.partition("More return:")[2].split("Fewer env steps")
    assert re.findall(r"^\| ([\w-]+) +\| ([\w-]+) ", more, re.MULTILINE)[1:] == [("dqn", "rnd_ppo"), ("iql", "td3_bc")]
    assert not sooner
    on_scale = text.partition("Over tasks")[2].partition("More return:")[0]
    mountain_car, pendulum = (-140 + 200) / (-110 + 200), (-140 + 1230.7) / (-200 + 1230.7)
    assert on_scale.count(f"{mountain_car:.3f} ") == on_scale.count(f"{pendulum:.3f} ") == 6  # with both bounds


def test_a_record_says_how_a_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    learning, folder = import_module("learning"), tmp_path / "dqn-cartpole"
    ended(folder, [500.0])
    summary = json.loads((folder / "seed-0" / "summary.json").read_text())
    found = learning.run_seed(learning.TASKS["dqn-cartpole"], folder, 0)
    assert found.ended == summary["outcome"] != learning.Outcome(0, 0.0, 0, 0.0).ended


def test_seeds_that_are_recorded_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    learning, file = import_module("learning"), tmp_path / "record.csv"
    settings = learning.fingerprint(learning.TASKS["dqn-cartpole"])
    for seed in (3, 4):
        learning.record(file, "dqn-cartpole", settings, "flowrl", learning.Outcome(seed, 480.0 + seed, 9_000, 7.5))
    before = file.read_text()
    text = printed("learning.py", "dqn-cartpole", "--seed", "3", "--seeds", "2", "--record", str(file))
    assert "\n0 of 2 seeds are left: 0.00 core-hours\n" in text
    assert re.findall(r"^ +\d +4\d\d.*$", text, re.MULTILINE) == [
        f"   {seed}      {480 + seed}.0      9,000      7.5" for seed in (3, 4)
    ]
    assert file.read_text() == before
    assert not printed("learning.py", "--record", str(tmp_path / "none" / "record.csv"), code=2)  # before any seed


def test_a_record_has_the_seeds_of_all_who_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    learning, file = import_module("learning"), tmp_path / "record.csv"

    def write(seed: int) -> None:
        learning.record(file, "dqn-cartpole", "settings", "flowrl", learning.Outcome(seed, 480.0, 9_000, 7.5))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(40)))
    assert [line.seed for line in learning.read_record(file)] == list(range(40))


def test_a_seed_of_a_peer_is_left_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    learning = import_module("learning")
    monkeypatch.setattr(learning, "RECORD", tmp_path / "record.csv")
    chosen = {"tqc-halfcheetah": learning.TASKS["tqc-halfcheetah"]}
    kept = tmp_path / "tqc-halfcheetah"
    kept.mkdir()
    assert learning.core_hours(chosen, [0], tmp_path, None).startswith("2 of 2 seeds are left: 1.16")
    (kept / "sb3-contrib-seed-0.json").touch()
    assert learning.core_hours(chosen, [0], tmp_path, None).startswith("1 of 2 seeds are left: 0.58")


@pytest.mark.parametrize(("ours", "verdict"), [(4_000.5, "yes"), (3_999.5, "NO")])
def test_a_peer_sets_the_goal_where_it_learns_the_same(tmp_path: Path, ours: float, verdict: str) -> None:
    """Of what has been run already: a return that is not below the peer's is a pass."""
    for module in ("mujoco", "stable_baselines3"):  # as if it were installed
        (tmp_path / f"{module}.py").touch()
    kept, table = tmp_path / "sac-halfcheetah", tmp_path / "table.md"
    ended(kept, [ours])
    peer = {"score": 4_000.0, "env_steps": 100_000, "seconds": 900.0}
    (kept / "stable-baselines3-seed-0.json").write_text(json.dumps(peer))
    options = ("sac-halfcheetah", "--seeds", "1", "--keep", str(tmp_path), "--out", str(table))
    text = printed("learning.py", *options, code=verdict == "NO", path=[tmp_path])
    assert "--stop-return" not in text
    assert re.search(r"^ +0 +4,000\.0 +100,000 +900\.0  stable-baselines3$", text, re.MULTILINE), text
    row = rows_of(table.read_text())["sac-halfcheetah"]
    assert (row["return (IQM)"], row["pass"], row["passed"]) == (f"{ours:,}", "the peer's", verdict)
    assert row["published"] == "4,000.0 (stable-baselines3 beside it, 900.0 s)"


@pytest.mark.skipif(find_spec("stable_baselines3") is not None, reason="it is installed")
def test_a_task_is_left_out_whose_peer_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "mujoco.py").touch()
    text = printed("learning.py", "sac-halfcheetah", path=[tmp_path])
    assert "sac-halfcheetah is left out; it needs: pip install -c constraints.txt stable-baselines3\n" in text


def test_the_scheduler_is_measured_with_simulated_workers() -> None:
    text = printed("scheduler_scale.py", "--workers", "2", "20", "--items", "50", "--rounds", "1")
    assert len(re.findall(r"^  20 / 2 workers: \d+\.\d\d$", text, re.MULTILINE)) == 4, text


@pytest.mark.slow
def test_every_plan_has_its_lines_counted_beside_those_of_rllib() -> None:
    """And none has functions that it alone calls, which would make it shorter than it is to read."""
    text = printed("plan_lines.py")
    rows = dict(re.findall(r"^(\w+) +(\d+ +\d+ +[\d-]+|that of \w+)", text, re.MULTILINE))
    assert set(rows) == set(builtin_plans())
    assert rows["a3c"].split() == ["4", "6", "-"]  # its `def` and three statements
    assert int(rows["apex_dqn"].split()[0]) == bare(inspect.getsource(apex_dqn.execution_plan))
    assert text.splitlines()[-1] == "helpers of one plan, counted with it: none"


@pytest.mark.slow
def test_the_source_is_counted_and_no_room_has_more_than_it_may() -> None:
    text = printed("house.py")
    counts = dict(re.findall(r"^(.*?) {2,}([\d, ]+)$", text, re.MULTILINE))
    rooms = {name: int(lines) for name, lines in counts.items() if (ROOT / name).is_dir()}
    assert int(counts["lines of code"]) == sum(rooms.values()) > 30_000
    assert int(counts["files that know the algorithm CrossQ"]) == 2  # its policy and its plan
    files, calls = counts["flowrl run dqn: files, calls"].split(", ")
    assert int(files) > 100
    assert int(calls.replace(",", "")) > 10_000
    assert printed("house.py", "--check").startswith(f"lines of code: {counts['lines of code']}, allowed: ")


def bare(source: str) -> int:
    """Lines that are not empty and no comment, and no docstring of one line."""
    return sum(bool(line.strip()) and not line.strip().startswith(("#", '"""')) for line in source.splitlines())


@pytest.mark.slow
def test_sampling_on_ray_is_measured_with_or_without_rllib() -> None:
    few = ("--fragments", "1", "--rounds", "1", "--workers", "1", "--receivers", "1", "--megabytes", "1")
    text = printed("ray_sampling.py", *few)
    for what in ("1 workers on Ray", "1 workers, 100 us a step"):
        for name in ("flowrl bulk_sync", "flowrl async", "one process", "the cores"):
            assert re.search(rf"^{what} +{name} +[\d,]+ env steps/s", text, re.MULTILINE), text
    assert re.search(r"^1 MB to 1 workers +flowrl beside ray.put: [\d.]+", text, re.MULTILINE), text
    assert ("RLlib async: missing" in text) != ("flowrl async beside RLlib async: " in text)


@pytest.mark.slow
def test_gathering_on_ray_is_measured_beside_ray_alone() -> None:
    text = printed("ray_gather.py", "--seconds", "0.05", "--rounds", "1", "--actors", "1")
    rows = re.findall(r"^small items +(Ray alone|flowrl), (\d+) in flight.* [\d,.]+ items/s", text, re.MULTILINE)
    assert rows == [("Ray alone", "1"), ("Ray alone", "8"), *(("flowrl", n) for n in "18188")], text


@pytest.mark.slow
def test_the_idle_driver_is_measured_beside_ray_alone() -> None:
    """F6: and a run is woken by its workers alone."""
    text = printed("ray_idle.py", "--seconds", "0.5", "--rounds", "2")
    found = re.search(r"flowrl above Ray alone: -?\d+\.\d\d % of a core; (\d\.\d) wake-ups an item", text)
    assert found, text
    assert float(found[1]) <= 1, text


@pytest.mark.slow
def test_the_pause_of_a_checkpoint_is_measured() -> None:
    text = printed("checkpoint_pause.py", "dqn", "apex_dqn", "--rows", "20000", "--checkpoints", "2")
    for name in ("dqn", "apex_dqn"):
        assert re.search(rf"^{name}, 20,000 rows +a pause +[\d.]+ ms ", text, re.MULTILINE), text


@pytest.mark.slow
def test_what_a_journal_costs_is_measured() -> None:
    text = printed("journal.py", "a3c", "--pairs", "1", "--steps", "1000")
    assert re.search(r"^a3c +\d+\.\d\d% \(.*\)  \d+\.\d bytes an item, [\d,]+ for [\d,]+$", text, re.MULTILINE), text
    assert re.search(rf"^a3c +with a journal beside without: {RATIO}$", text, re.MULTILINE), text


@pytest.mark.exhaustive
def test_every_row_is_accounted_for_when_processes_are_killed() -> None:
    """F18: of each kind of a plan on Ray, the driver that is resumed among them."""
    text = printed("kills.py", "--kills", "9")
    for name in ("impala", "appo", "apex_dqn"):
        assert re.search(rf"^{name}  3 kills: .*; every row is accounted for, 0 doubled", text, re.MULTILINE), text
