"""`flowrl run --resume`: a run that was stopped, killed or damaged goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from flowrl.checkpoint import Checkpoints
from flowrl.cli import cli
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.testing import same

DEADLINE = 120
SMALL = (
    *("--set", "hidden=[8]", "--set", "learning_starts=100", "--set", "replay_ratio=4", "--set", "batch_size=16"),
    *("--set", "report_every=100", "--set", "eval_every=200", "--set", "eval_episodes=2", "--set", "torch_threads=1"),
)
STEPS = 1200


def flowrl(*arguments):
    return CliRunner(catch_exceptions=False).invoke(cli, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    done = flowrl("run", "dqn", *SMALL, "--stop-steps", STEPS, "--out", path, "--quiet")
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(whole, folder):
    """A copy of the uninterrupted run as it was on its way: the last checkpoint is gone, what came after is there."""
    path = folder / "run"
    shutil.copytree(whole, path)
    shutil.rmtree(checkpoints(path).paths()[-1])
    (path / "summary.json").unlink()
    return path


def checkpoints(run):
    return Checkpoints(run / "checkpoints")


def metrics(run):
    results = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in result.items() if key not in CLOCK_KEYS} for result in results]


def assert_same_run(run, whole):
    """Results, policies and the whole state at the end, but for the clock."""
    assert metrics(run) == metrics(whole)
    for name in ("policy.pt", "policy_last.pt"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = (checkpoints(path).load(trusted=True) for path in (run, whole))
    for state in (ours, theirs):
        state["session"].pop("seconds")
        state["session"]["last"] = {k: v for k, v in state["session"]["last"].items() if k not in CLOCK_KEYS}
    for part in theirs:
        assert same(ours[part], theirs[part]), part


# -- exactly


def test_checkpoints_are_where_evaluations_are_and_change_nothing(whole, folder):
    """S3, D4: however often they are taken."""
    assert [path.name for path in checkpoints(whole).paths()] == ["step-000000800", "step-000001024", "step-000001216"]
    for name, every in (("often", 1), ("never", 10**9)):
        more = ("--set", f"checkpoint_every={every}", "--out", name, "--quiet")
        assert flowrl("run", "dqn", *SMALL, "--stop-steps", STEPS, *more).exit_code == 0
        assert_same_run(folder / name, whole)
    assert len(checkpoints(folder / "often").paths()) == 3
    assert len(checkpoints(folder / "never").paths()) == 1, "at the end there is one in any case"


def test_a_run_that_was_killed_goes_on_in_place(run, whole):
    """D3: results after the checkpoint are written again, and a line that was cut short is gone."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_st')
    (run / "policy.pt").write_bytes(b"that of a later evaluation")
    done = flowrl("run", "--resume", run)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "resumed at 1,024 steps"
    assert_same_run(run, whole)
    about = json.loads((run / "run.json").read_text())
    assert about["command"] == ["flowrl", "run", "--resume", str(run)]
    assert about["stop"]["steps"] == STEPS
    assert [earlier["command"][2] for earlier in about["earlier"]] == ["dqn"]


def test_from_any_checkpoint(run, whole):
    """D3: one that is named, and later ones give way."""
    first = checkpoints(run).paths()[0]
    done = flowrl("run", "--resume", first)
    assert done.stdout.splitlines()[0] == "resumed at 800 steps"
    assert_same_run(run, whole)
    assert [path.name for path in checkpoints(run).paths()] == ["step-000000800", "step-000001024", "step-000001216"]
    assert not list((run / "checkpoints").glob(".*"))


def test_before_the_first_checkpoint_it_begins_anew(run, whole):
    shutil.rmtree(run / "checkpoints")
    assert flowrl("run", "--resume", run).stdout.splitlines()[0] == "resumed at 0 steps"
    assert_same_run(run, whole)


def test_a_finished_run_goes_on_with_a_larger_budget(run, whole, folder):
    """D3: as if it had been the budget from the beginning."""
    shutil.copytree(whole, folder / "longer")
    done = flowrl("run", "--resume", "longer", "--stop-steps", 1700, "--quiet")
    assert done.exit_code == 0, done.output
    assert flowrl("run", "dqn", *SMALL, "--stop-steps", 1700, "--out", "at once", "--quiet").exit_code == 0
    assert_same_run(folder / "longer", folder / "at once")
    assert json.loads((folder / "longer" / "summary.json").read_text())["stop"]["steps"] == 1700


def test_a_finished_run_stays_as_it_is_with_the_same_budget(whole, folder):
    shutil.copytree(whole, folder / "again")
    done = flowrl("run", "--resume", "again")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("done: ")
    assert_same_run(folder / "again", whole)


def test_the_clock_goes_on(run):
    before = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    session = checkpoints(run).load(trusted=True)["session"]
    flowrl("run", "--resume", run, "--quiet")
    after = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = session["results"]
    assert after[:seen] == before[:seen]
    assert sorted(after) == after
    assert after[seen] > session["seconds"] >= before[seen - 1]
    # The budget of time is that of the run: it was used up before.
    assert flowrl("run", "--resume", run, "--stop-steps", 10**9, "--stop-seconds", after[seen - 1] / 2).exit_code == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == len(after) + 1


def test_a_goal_may_be_given_later(run):
    """S6: the operators that an option adds begin afresh; the rest goes on."""
    done = flowrl("run", "--resume", run, "--stop-return", 1, "--stop-steps", 2000, "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("goal reached: ")
    assert [result["env_steps"] for result in metrics(run)][-1] < 1500
    assert metrics(run)[-1]["confirmed_return"] >= 1
    assert flowrl("run", "--resume", run).exit_code == 0, "it is reached still"


# -- signals, from outside


@pytest.fixture
def child(folder):
    """Starts the command in a process of its own, with the signal handling of a terminal's foreground job."""
    started = []

    def start(*arguments, code=("-m", "flowrl")):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *code, *map(str, arguments)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_interrupted_says_how_to_go_on_and_does(number, whole, folder, child):
    """D3: from wherever the signal came."""
    process = child("run", "dqn", *SMALL, "--stop-steps", STEPS, "--out", "my run", "--set", "checkpoint_every=5000")
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, err
    last = out.splitlines()[-1]
    assert last.startswith("interrupted: ")
    command = shlex.split(last.partition("; to go on: ")[2])
    assert command == ["flowrl", "run", "--resume", "my run"]
    (saved,) = checkpoints(folder / "my run").paths()
    done = flowrl(*command[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == f"resumed at {int(saved.name.split('-')[1]):,} steps"
    assert_same_run(folder / "my run", whole)


DIES = """
import os, signal, sys
import flowrl.envs.manager, flowrl.policies.dqn, torch
from flowrl.cli import main

def dies_at(owner, name, count):
    real, left = getattr(owner, name), [count]
    def call(*args, **more):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    setattr(owner, name, call)

where, count = sys.argv.pop(1), int(sys.argv.pop(1))
dies_at(*{
    "acting": (flowrl.envs.manager.EnvManager, "step"),
    "learning": (torch.optim.Adam, "step"),
    "writing": (os, "fsync"),
    "renaming": (os, "replace"),
}[where], count)
main()
"""


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_was_not(folder, child):
    """D3: SIGKILL at ten random moments, while acting, learning, and in the middle of writing a checkpoint."""
    draw = np.random.default_rng(7)
    moments = [
        *(("acting", int(draw.integers(5, 40))) for _ in range(2)),
        *(("learning", int(draw.integers(5, 40))) for _ in range(2)),
        *(("writing", int(draw.integers(0, 30))) for _ in range(4)),
        *(("renaming", int(draw.integers(4, 10))) for _ in range(2)),
    ]
    draw.shuffle(moments)
    plan = ["run", "dqn", *SMALL, "--set", "checkpoint_every=100", "--stop-steps", 3000, "--quiet"]
    assert flowrl(*plan, "--out", "whole").exit_code == 0
    command = [*plan, "--out", "run"]
    killed = 0
    for where, count in moments:
        process = child(where, count, *command, code=("-c", DIES))
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode in (0, -signal.SIGKILL), err
        killed += process.returncode == -signal.SIGKILL
        if (folder / "run" / "run.json").exists():
            command = ["run", "--resume", "run", "--quiet"]
        else:
            shutil.rmtree(folder / "run", ignore_errors=True)
    assert killed == 10
    done = flowrl("run", "--resume", "run")
    assert done.exit_code == 0, done.output
    assert_same_run(folder / "run", folder / "whole")
    assert not list((folder / "run").rglob(".*"))


# -- damage, and what does not belong


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_offered(whole, folder):
    """D3: following the offer, the run ends as it would have."""
    shutil.copytree(whole, folder / "run")
    _, before, last = checkpoints(folder / "run").paths()
    file = max(last.iterdir(), key=lambda each: each.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    kept = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    done = flowrl("run", "--resume", "run")
    assert done.exit_code == 2
    assert f"{last.relative_to(folder)} is truncated: {file.name}" in done.stderr
    assert "Traceback" not in done.stderr
    offered = done.stderr.strip().partition("to go on from there: ")[2]
    assert offered == f"flowrl run --resume {before.relative_to(folder)}"
    assert kept == {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}, "not touched"
    assert flowrl(*shlex.split(offered)[1:], "--quiet").exit_code == 0
    assert_same_run(folder / "run", whole)


def test_when_no_checkpoint_is_whole_it_says_so(run):
    for path in checkpoints(run).paths():
        (path / "manifest.json").write_text("{}")
    done = flowrl("run", "--resume", run)
    assert done.exit_code == 2
    assert "no earlier one is whole" in done.stderr


PLAN = '''"""Results without learning."""
import attrs
import gymnasium
import numpy as np

import flowrl
from flowrl.config import Configuration
from flowrl.operators import ParallelRollouts, StandardMetricsReporting


@attrs.define(kw_only=True)
class Config(Configuration):
    report_every: int = 20
    speed: float = 1.0


class Left:
    draws = version = 0
    resources = ()

    @property
    def collect_mode(self):
        return self

    def act(self, obs, noise, env_steps):
        return {"action": np.zeros(len(obs), dtype=np.int64)}


def policy(config, observation_space, action_space):
    return Left()


def execution_plan(workers, config):
    return StandardMetricsReporting(ParallelRollouts(workers, steps=5).for_each(look), workers, config)


def look(batch):
    return {"reward": float(batch.reward.sum())}
'''


RUN_OWN = ("run", "own.py", "--envs", 2, "--stop-steps", 60, "--set", "eval_every=1000", "--set", "checkpoint_every=20")


@pytest.fixture
def own(folder):
    """A user's plan, run to its end."""
    (folder / "own.py").write_text(PLAN)
    done = flowrl(*RUN_OWN, "--out", "run")
    assert done.exit_code == 0, done.output
    return folder / "run"


def test_a_plan_that_has_changed_is_refused_unless_it_is_given(own, folder):
    """D3: as it is now, or as it was: the user says which."""
    results = metrics(own)
    (folder / "own.py").write_text(PLAN.replace("float(batch", "-float(batch"))
    done = flowrl("run", "--resume", "run")
    assert done.exit_code == 2
    assert f"{folder / 'own.py'} has changed since the run began" in done.stderr
    as_it_was = shlex.split(done.stderr.strip().partition("as it was: ")[2])
    assert flowrl(*as_it_was[1:], "--stop-steps", 80).exit_code == 0
    assert metrics(own)[: len(results)] == results
    assert metrics(own)[-1]["reward"] > 0
    assert flowrl("run", "own.py", "--resume", "run", "--stop-steps", 100).exit_code == 0
    assert metrics(own)[-1]["reward"] < 0
    assert (own / "plan.py").read_text() == (folder / "own.py").read_text()


def test_a_plan_that_is_gone_is_taken_from_the_run(own, folder, caplog):
    (folder / "own.py").unlink()
    assert flowrl("run", "--resume", "run", "--stop-steps", 80).exit_code == 0
    assert "own.py is gone: the plan is the copy in the run directory" in caplog.text
    assert json.loads((own / "run.json").read_text())["plan"] == "own"


def test_the_state_of_another_plan_is_refused_and_what_maps_is_said(own, folder):
    other = PLAN.replace(".for_each(look)", ".batch(1).for_each(first)").replace("look(batch)", "first(batches)")
    (folder / "own.py").write_text(other.replace("float(batch.", "float(batches[0]."))
    before = (own / "metrics.jsonl").read_bytes()
    done = flowrl("run", "own.py", "--resume", "run", "--stop-steps", 80)
    assert done.exit_code == 2
    assert (
        "operators missing in it: batch. What maps: Evaluate, Report, StopWhen, gather_sync, WorkerSet" in done.stderr
    )
    assert (own / "metrics.jsonl").read_bytes() == before


REFUSED = {
    "a setting": (("--set", "speed=2"), "speed=2.0 (it was 1.0): a resumed run keeps its settings"),
    "the seed": (("--seed", "5"), "seed=5 (it was 0)"),
    "the environments": (("--envs", "3"), "envs_per_worker=3 (it was 2)"),
    "a directory": (("--out", "other"), "--out other: a resumed run goes on in its own directory, run"),
    "an unknown setting": (("--set", "sped=2"), "did you mean 'speed'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_run_is_refused(case, own):
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    arguments, message = REFUSED[case]
    done = flowrl("run", "--resume", "run", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert before == {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}


def test_what_is_no_run_is_refused(own, folder):
    (folder / "run" / "checkpoints" / "mine").mkdir()
    for name, message in (
        ("nowhere", "nowhere is no run directory: it has no run.json"),
        ("own.py", "own.py is no run directory"),
        ("run/checkpoints/step-000000099", "there is no checkpoint run/checkpoints/step-000000099"),
        ("run/checkpoints/mine", "mine is no checkpoint of flowrl"),
    ):
        done = flowrl("run", "--resume", name)
        assert done.exit_code == 2
        assert message in done.stderr
    assert "Missing argument 'PLAN', or --resume RUN" in flowrl("run").stderr
    assert "goes on with --resume run" in flowrl("run", "own.py", "--out", "run").stderr


def test_settings_that_change_no_result_may_change(own, caplog):
    done = flowrl("run", "--resume", "run", "--stop-steps", 80, "--set", "checkpoint_every=7", "--set", "device=cpu")
    assert done.exit_code == 0, done.output
    assert "device has changed: the run goes on, but not bit for bit" in caplog.text
    assert json.loads((own / "config.json").read_text())["checkpoint_every"] == 7


def test_other_versions_are_warned_of(own, caplog):
    about = json.loads((own / "run.json").read_text())
    about["versions"]["torch"] = "1.0"
    (own / "run.json").write_text(json.dumps(about))
    assert flowrl("run", "--resume", "run", "--stop-steps", 80).exit_code == 0
    assert "torch was 1.0 and is" in caplog.text


def test_one_process_at_a_time(own, folder, child):
    endless = PLAN.replace("def look(batch):\n", "def look(batch):\n    print('in', flush=True)\n    input()\n")
    (folder / "endless.py").write_text(endless)
    process = subprocess.Popen(
        [sys.executable, "-m", "flowrl", "run", "endless.py", "--out", "busy"],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "in\n"
        done = flowrl("run", "--resume", "busy")
        assert done.exit_code == 2
        assert "busy is in use: another process runs there" in done.stderr
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)
    assert flowrl("run", "--resume", "run", "--stop-steps", 80).exit_code == 0, "a lock ends with its process"


# -- what cannot be saved


FORGETFUL = """
import gymnasium


class Forgetful(gymnasium.Wrapper, gymnasium.utils.EzPickle):
    def __init__(self):
        gymnasium.utils.EzPickle.__init__(self)
        gymnasium.Wrapper.__init__(self, gymnasium.make("CartPole-v1"))
"""


def test_episodes_that_cannot_be_saved_are_cut_and_counted(folder, caplog, monkeypatch):
    """D3: an EzPickle environment would come back as new; the result says so."""
    monkeypatch.syspath_prepend(folder)
    (folder / "forgetful_envs.py").write_text(FORGETFUL)
    (folder / "own.py").write_text(PLAN)
    done = flowrl(*RUN_OWN, "--env", "forgetful_envs:Forgetful", "--out", "run")
    assert done.exit_code == 0, done.output
    done = flowrl("run", "--resume", "run", "--stop-steps", 120)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "resumed at 60 steps; 2 episodes that could not be saved were cut"
    assert (
        "2 running episodes of forgetful_envs:Forgetful could not be saved: they are cut, new ones begin" in caplog.text
    )
    counted = [result.get("cut_episodes") for result in metrics(folder / "run")]
    assert counted == [None] * 3 + [2] * 3


def test_a_run_that_fails_keeps_what_was_saved_and_says_how_to_go_on(own, folder):
    """D3: mended, it ends as if it had never failed."""
    whole = metrics(own)
    check = '    assert not FAILS or batch.episode_id.max() < 2\n    return {"reward"'
    broken = PLAN.replace('    return {"reward"', check) + "\nFAILS = True\n"
    (folder / "own.py").write_text(broken)
    done = flowrl(*RUN_OWN, "--out", "failed")
    assert done.exit_code == 1, done.output
    assert done.stdout.splitlines()[-1].endswith("in failed; to go on: flowrl run --resume failed")
    (folder / "own.py").write_text(broken.replace("FAILS = True", "FAILS = False"))
    done = flowrl("run", "own.py", "--resume", "failed")
    assert done.exit_code == 0, done.output
    assert metrics(folder / "failed") == whole


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(own, folder, caplog):
    whole = metrics(own)
    odd = PLAN.replace("report_every)", "report_every)").replace(
        "    return StandardMetricsReporting(", "    return held("
    )
    odd += """
from threading import Lock
from flowrl import operator, state


@operator
class Locked:
    lock: object = state(factory=Lock)

    def __call__(self, item):
        return item


def held(*args):
    return StandardMetricsReporting(*args).for_each(Locked())
"""
    (folder / "own.py").write_text(odd)
    assert flowrl(*RUN_OWN, "--out", "odd").exit_code == 0
    assert "no checkpoint at 20 steps: TypeError: cannot pickle" in caplog.text
    assert metrics(folder / "odd") == whole
