"""`flowrl run --seeds N`: every seed in a process of its own, one summary, one exit code."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowrl.cli import seeds
from flowrl.cli.seeds import ChildProcesses, summarise
from flowrl.tools.statistics import interquartile_mean, interval
from tests.cli.parts import DEADLINE, SMALL, STUCK, TINY, flowrl, metrics, results_of, summary_of
from tests.forked import DEVNULL, PIPE, Python, execute

#: Fails for seed 1.
FAILS = TINY.replace("    for i in range", "    assert config.seed != 1, 'an unlucky seed'\n    for i in range")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in [("tiny", TINY), ("fails", FAILS), ("waits", STUCK)]:
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of seeds begin as those of tests do."""
    start = SimpleNamespace(DEVNULL=DEVNULL, PIPE=PIPE, Popen=lambda words, **more: Python(words[1:], **more))
    monkeypatch.setattr(seeds, "subprocess", start)


def fork_seeds() -> None:
    """The same in a process that is one of them, which has no server."""
    seeds.subprocess = SimpleNamespace(DEVNULL=DEVNULL, PIPE=PIPE, Popen=Fork)  # type: ignore[assignment]


class Fork:
    """What `subprocess.Popen` is to the command."""

    def __init__(self, words: list[str], **_: Any) -> None:
        theirs, ours = os.pipe()
        self.stdin = os.fdopen(ours, "w")
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(ours)
                os.dup2(theirs, 0)
                os.setsid()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                execute(words[1:])
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                os._exit(code)
        os.close(theirs)

    def wait(self, timeout: float | None) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


@pytest.mark.parametrize(
    "plan",
    [
        ("tiny.py",),
        pytest.param(("dqn", *SMALL, "--stop-steps", 400, "--set", "eval_episodes=2"), marks=pytest.mark.slow),
    ],
)
def test_each_seed_is_the_run_that_it_would_be_alone(
    folder: Path, forked: None, capfd: pytest.CaptureFixture[str], plan: tuple[Any, ...]
) -> None:
    """D1, S4: two seeds, two at a time; the summary has the middle of what they wrote."""
    done = flowrl("run", *plan, "--seed", 3, "--seeds", 2, "--jobs", 2, "--sink", "csv", "--out", "out")
    assert done.exit_code == 0, done.output
    assert capfd.readouterr().out.count("done: ") == 2, "a line when each has ended"
    assert {path.name for path in (folder / "out").iterdir()} == {"seed-3", "seed-4", "seeds.json", "summary.json"}
    assert flowrl("run", *plan, "--seed", 4, "--out", "alone", "--quiet").exit_code == 0
    assert metrics(folder / "out" / "seed-4") == metrics(folder / "alone")
    assert (folder / "out" / "seed-3" / "metrics.csv").exists()

    finals = [results_of(folder / "out" / f"seed-{seed}")[-1] for seed in (3, 4)]
    summary = summary_of(folder / "out")
    assert (summary["outcome"], summary["exit_code"], summary["reached_goal"]) == ("done", 0, 0)
    assert summary["steps_to_goal"] is None
    assert [seed["env_steps"] for seed in summary["seeds"]] == [final["env_steps"] for final in finals]
    returns = [final["episode_return"] for final in finals]
    low, high = interval([returns])
    assert summary["episode_return"] == {
        "runs": 2, "mean": interquartile_mean(returns), "low": low, "high": high, "confidence": 0.95
    }  # fmt: skip

    assert done.stdout.splitlines()[3] == "2 seeds: 2 done"
    assert done.stdout.splitlines()[-1] == "in out"


def test_one_at_a_time_is_shown_as_it_runs(child: Callable[..., Python], folder: Path) -> None:
    process = child("run", "tiny.py", "--seed", 7, "--seeds", 1, "--out", "out", begin=fork_seeds)
    out, err = process.communicate()
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert lines[:2] == ["seed 7 (1 of 1)", "10 steps  return 71.0"]
    assert "training return: mean 74.0 (1 run)" in lines


def test_a_seed_that_fails_leaves_the_others_alone(
    folder: Path, forked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Quiet, it shows why one failed and how all ended, and nothing else."""
    done = flowrl("run", "fails.py", "--seed", 1, "--seeds", 2, "--jobs", 2, "--quiet")
    assert done.exit_code == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "an unlucky seed" in shown.err
    assert done.stdout.splitlines()[0].split() == ["seed", "outcome", "env", "steps", "eval", "return", "seconds"]
    (out,) = (folder / "runs").iterdir()
    assert out.name.startswith("fails-CartPole-v1-1-")
    assert done.stdout.splitlines()[-1] == f"in runs/{out.name}"
    summary = summary_of(out)
    assert [seed["outcome"] for seed in summary["seeds"]] == ["failed", "done"]
    assert summary["outcome"] == "failed"
    assert summary["episode_return"] == {"runs": 1, "mean": 24.0, "low": None, "high": None, "confidence": 0.95}


def test_all_seeds_go_on_by_one_command(folder: Path, forked: None) -> None:
    """D3: those that had begun where they were, and those that had not from the start."""
    assert flowrl("run", "tiny.py", "--seed", 3, "--seeds", 3, "--out", "out", "--quiet").exit_code == 0
    whole = {seed: metrics(folder / "out" / f"seed-{seed}") for seed in (3, 4, 5)}
    shutil.rmtree(folder / "out" / "seed-5")
    (folder / "out" / "seed-4" / "summary.json").unlink()
    with (folder / "out" / "seed-4" / "metrics.jsonl").open("a") as file:
        file.write('{"cut')
    (folder / "out" / "summary.json").unlink()
    done = flowrl("run", "--resume", "out", "--jobs", 2, "--quiet")
    assert done.exit_code == 0, done.output
    assert "3 seeds: 3 done" in done.stdout
    assert {seed: metrics(folder / "out" / f"seed-{seed}") for seed in (3, 4, 5)} == whole
    refused = flowrl("run", "--resume", "out", "--seeds", 2)
    assert (refused.exit_code, "out holds several seeds" in refused.stderr) == (2, True)
    (folder / "out" / "seeds.json").write_text("{}")
    assert "it has no arguments or no seeds" in flowrl("run", "--resume", "out").stderr


def test_a_process_that_is_gone_has_failed(folder: Path) -> None:
    """Whatever it says itself: it ended with code 0, and without a summary. This one is begun as users begin it."""
    dies = TINY.replace("    return item\n", "    os._exit(0)\n").replace(
        "import attrs\n", "import os\n\nimport attrs\n"
    )
    (folder / "dies.py").write_text(dies)
    assert flowrl("run", "dies.py", "--seeds", 1, "--out", "out", "--quiet").exit_code == 1
    assert summary_of(folder / "out")["seeds"][0]["outcome"] == "failed"


def test_bad_input_is_said_before_any_seed_runs(folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "x").write_text("x")
    for arguments, message in [
        (("--seeds", 3, "--set", "rat=1"), "unknown configuration key 'rat'"),
        (("--seeds", 3, "--sink", "cvs"), "no sink 'cvs'; did you mean 'csv'?"),
        (("--seeds", 3, "--out", "full"), "full is not empty"),
        (("--seeds", 0), "'0' is not a whole number of at least 1"),
        (("--seeds", "1e30"), "'1e30' is more than 10,000, the most"),
        (("--jobs", 2), "add --seeds N"),
    ]:
        done = flowrl("run", "tiny.py", *arguments)
        assert done.exit_code == 2
        assert message in done.stderr
    assert not (folder / "runs").exists()


def test_what_the_first_seed_is_refused_for_is_said_once(
    folder: Path, forked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    done = flowrl("run", "tiny.py", "--seeds", 3, "--tap", "kep", "--out", "out")
    assert done.exit_code == 2
    assert capfd.readouterr().err.count("no operator is named 'kep'; did you mean 'keep'") == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_seeds_and_begins_no_other(
    child: Callable[..., Python], folder: Path, number: signal.Signals
) -> None:
    """F15: the seed that runs is asked at its next step; stuck in an operator, it goes with the second one."""
    started = child("run", "waits.py", "--seeds", 3, "--out", "out", begin=fork_seeds)
    assert any("waiting" in line for line in started.stdout)
    started.send_signal(number)
    assert any("once more to stop at once" in line for line in started.stderr)
    started.send_signal(number)
    out, err = started.communicate()
    assert started.returncode == 130, err
    assert "3 seeds: 3 interrupted" in out
    summary = summary_of(folder / "out")
    assert [seed["exit_code"] for seed in summary["seeds"]] == [130, None, None]
    assert {path.name for path in (folder / "out").iterdir()} == {"seed-0", "seeds.json", "summary.json"}


def test_no_seed_outlives_the_command(child: Callable[..., Python], folder: Path) -> None:
    """F15: killed, it cannot say goodbye, and its seed is stuck in an operator."""
    tells = STUCK.replace("print('waiting'", "print(__import__('os').getpid()")
    (folder / "tells.py").write_text(tells)
    started = child("run", "tells.py", "--seeds", 1, "--out", "out", begin=fork_seeds)
    seed = next(int(line) for line in started.stdout if line.strip().isdigit())
    watched = os.pidfd_open(seed)
    started.kill()
    assert select.select([watched], [], [], DEADLINE)[0], "the seed has ended"
    os.close(watched)


def test_a_script_beyond_its_deadline_is_killed(folder: Path) -> None:
    (folder / "stuck.py").write_text("import signal\n\nsignal.alarm(20)\nsignal.pause()\n")
    with ChildProcesses() as children:
        assert children.run_script("stuck.py", [], silent=True, timeout=0.5) == -signal.SIGKILL


# -- the summary, of seeds as they may end


def ended(seed: int, outcome: str, **known: Any) -> dict[str, Any]:
    keys = ("env_steps", "episode_return", "eval_return", "confirmed_return", "seconds")
    return {"seed": seed, "outcome": outcome, "exit_code": 0, **dict.fromkeys(keys), **known}


def test_steps_to_the_goal_are_of_the_seeds_that_reached_it() -> None:
    """S4"""
    seeds = [ended(i, "goal", env_steps=steps, eval_return=480.0) for i, steps in enumerate((10, 20, 30, 40, 500))]
    found = summarise([*seeds, ended(5, "budget", env_steps=9, eval_return=100.0)], 1.0)
    assert found["reached_goal"] == 5
    assert found["steps_to_goal"]["iqm"] == 30
    assert found["steps_to_goal"]["runs"] == 5
    assert found["eval_return"]["runs"] == 6


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (("goal", "goal"), 0),
        (("done", "done"), 0),
        (("goal", "budget"), 3),
        (("budget", "failed"), 1),
        (("failed", "interrupted"), 130),
    ],
)
def test_the_exit_code_is_0_only_if_all_seeds_are_fine(outcomes: tuple[str, ...], code: int) -> None:
    found = summarise([ended(i, outcome) for i, outcome in enumerate(outcomes)], 1.0)
    assert (found["outcome"], found["exit_code"]) == (outcomes[-1] if code else outcomes[0], code)
