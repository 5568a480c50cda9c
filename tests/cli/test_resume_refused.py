"""`flowrl run --resume` where something is in the way: damage, changed plans and settings, what cannot be saved."""

from __future__ import annotations

import json
import os
import shlex
import shutil

import pytest

from tests.cli.parts import flowrl, metrics
from tests.cli.resume_parts import PLAN, RUN_OWN, assert_same_run, checkpoints
from tests.forked import PIPE, Python

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
    assert "own.py is gone: using the copy in the run directory" in caplog.text
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
    "another plan": (("dqn",), "run is a run of own, not of dqn; to go on with it: flowrl run --resume run"),
    "a used up budget": (
        ("--stop-return", "20"),
        "the run's --stop-steps 60 is used up at 60 steps; give a larger",
    ),
    "an unknown setting": (("--set", "sped=2"), "did you mean 'speed'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_run_is_refused(case, own):
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    arguments, message = REFUSED[case]
    done = flowrl("run", "--resume", "run", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    if case == "a setting":
        assert "and env_groups, envs_per_worker, num_workers where they form the same groups" in done.stderr
    assert before == {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}


def test_what_is_no_run_is_refused(own, folder):
    (folder / "run" / "checkpoints" / "mine").mkdir()
    for name, message in (
        ("nowhere", "nowhere is no run directory, since it has no run.json"),
        ("own.py", "Directory 'own.py' is a file"),
        ("run/checkpoints/step-000000099", "there is no checkpoint run/checkpoints/step-000000099"),
        ("run/checkpoints/mine", "mine is no checkpoint of flowrl"),
    ):
        done = flowrl("run", "--resume", name)
        assert done.exit_code == 2
        assert message in done.stderr
    assert "Missing argument 'PLAN', or --resume RUN" in flowrl("run").stderr
    assert "goes on with flowrl run --resume run" in flowrl("run", "own.py", "--out", "run").stderr


def test_settings_that_change_no_result_may_change(own, caplog):
    done = flowrl("run", "--resume", "run", "--stop-steps", 80, "--set", "checkpoint_every=7", "--set", "device=cpu")
    assert done.exit_code == 0, done.output
    assert "device changed: the run goes on, but not bit for bit" in caplog.text
    assert "device changed" in (own / "log.txt").read_text()  # what is said before the run has opened, too
    assert json.loads((own / "config.json").read_text())["checkpoint_every"] == 7


def test_results_that_somebody_removed_are_missed_but_the_run_goes_on(own, caplog):
    (own / "metrics.jsonl").unlink()
    assert flowrl("run", "--resume", "run", "--stop-steps", 80).exit_code == 0
    assert "metrics.jsonl has 0 results, the checkpoint 3" in caplog.text
    assert [result["env_steps"] for result in metrics(own)] == [80]


def test_other_versions_are_warned_of(own, caplog):
    about = json.loads((own / "run.json").read_text())
    about["versions"]["torch"] = "1.0"
    (own / "run.json").write_text(json.dumps(about))
    assert flowrl("run", "--resume", "run", "--stop-steps", 80).exit_code == 0
    assert "torch was 1.0 and is" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("inserts", "GAE"), ("again", "one"), ("stop", {"steps": "many"})])
def test_what_run_json_says_is_believed_by_its_type(own, name, value):
    """E14."""
    about = json.loads((own / "run.json").read_text())
    (own / "run.json").write_text(json.dumps({**about, name: value}))
    refused = flowrl("run", "--resume", "run")
    assert refused.exit_code == 2
    assert f"run.json is malformed: {name} is " in refused.stderr


def test_a_run_that_is_in_use_keeps_its_later_checkpoints(own):
    """A resume from an earlier one sets them aside, so it has the directory first."""
    fcntl = pytest.importorskip("fcntl")  # the system has such locks
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    first, *later = checkpoints(own).paths()
    assert later
    held = os.open(own, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = flowrl("run", "--resume", first)
    finally:
        os.close(held)
    assert done.exit_code == 2
    assert "run is in use" in done.stderr
    assert before == {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}


def test_one_process_at_a_time(own, folder):
    endless = PLAN.replace("def look(batch):\n", "def look(batch):\n    print('in', flush=True)\n    input()\n")
    (folder / "endless.py").write_text(endless)
    with Python(["-m", "flowrl", "run", "endless.py", "--out", "busy"], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout.readline() == "in\n"
        done = flowrl("run", "--resume", "busy")
        assert done.exit_code == 2
        assert "busy is in use: another process runs there" in done.stderr
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
    assert done.stdout.splitlines()[-1].endswith("in failed; to go on from step 20: flowrl run --resume failed")
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
    assert "no checkpoint at 20 steps: CheckpointError: Locked: its state 'lock'" in caplog.text
    assert metrics(folder / "odd") == whole
