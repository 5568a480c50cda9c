"""`flowrl run --resume`: a run that was stopped, killed or damaged goes on as if nothing had happened."""

from __future__ import annotations

import json
import shlex
import shutil
import signal

import numpy as np
import pytest

from flowrl.runs.row_account import KEPT
from tests.cli.parts import DEADLINE, flowrl, metrics
from tests.cli.resume_parts import SMALL, STEPS, assert_same_run, checkpoints
from tests.plans.small import SMALL as PLANS

# -- exactly


@pytest.mark.slow
def test_checkpoints_are_where_evaluations_are_and_change_nothing(whole, folder):
    """S3, D4: however often they are taken, by steps or by time, and however many are kept."""
    assert [path.name for path in checkpoints(whole).paths()] == ["step-000000800", "step-000001024", "step-000001216"]
    for name, settings, kept in (
        ("often", {"checkpoint_every": 1}, 3),
        ("by time", {"checkpoint_seconds": 1e-9, "checkpoint_keep": 5}, 5),
        ("both", {"checkpoint_seconds": 1e9, "checkpoint_every": 1}, 3),
        ("never", {"checkpoint_seconds": 1e9}, 2),  # at the first result and at the end there is one in any case
    ):
        more = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        assert flowrl("run", "dqn", *SMALL, "--stop-steps", STEPS, *more, "--out", name, "--quiet").exit_code == 0
        assert_same_run(folder / name, whole)
        assert len(checkpoints(folder / name).paths()) == kept, name


def test_a_run_that_was_killed_goes_on_in_place(run, whole):
    """D3, F18: results after the checkpoint are written again, and a line that was cut short is gone."""
    again = metrics(run)[-1]["env_steps"] - 1024
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_st')
    (run / "policy.pt").write_bytes(b"that of a later evaluation")
    done = flowrl("run", "--resume", run)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == f"resumed at 1,024 steps; {again} later ones are made again"
    assert_same_run(run, whole)
    account = flowrl("show", run, "--account").stdout.splitlines()
    last = metrics(run)[-1]
    assert account == [
        *(f"       {last[unit]:5,} {words}" for unit, words in KEPT.items()),
        "lost:      0 rows",
        f"again: {again:5,} env steps, by runs that went on from a checkpoint",
    ]
    about = json.loads((run / "run.json").read_text())
    assert about["command"] == ["flowrl", "run", "--resume", str(run)]
    assert about["stop"]["steps"] == STEPS
    assert [earlier["command"][2] for earlier in about["earlier"]] == ["dqn"]


def test_the_best_policy_is_the_best_until_the_checkpoint(run):
    """D3: an evaluation that came later does not count."""
    best = checkpoints(run).load(trusted=True)["session"]["policy"]
    assert best is not None
    (run / "policy.pt").write_bytes(b"that of a later evaluation")
    assert flowrl("run", "--resume", run, "--stop-steps", 1100, "--quiet").exit_code == 0
    assert "eval_return" not in metrics(run)[-1], "none has come since"
    assert (run / "policy.pt").read_bytes() == best


def test_from_any_checkpoint(run, whole):
    """D3: one that is named, and later ones give way."""
    first = checkpoints(run).paths()[0]
    done = flowrl("run", "--resume", first)
    assert done.stdout.startswith("resumed at 800 steps; ")
    assert_same_run(run, whole)
    assert [path.name for path in checkpoints(run).paths()] == ["step-000000800", "step-000001024", "step-000001216"]
    assert not list((run / "checkpoints").glob(".*"))


def test_over_a_worker_that_has_the_same_group(run, whole, monkeypatch):
    """D2, D3: evaluations too; here the worker's process is an object of this one."""
    from flowrl.rollout.remote_groups import RemoteGroups

    monkeypatch.setattr(RemoteGroups, "remote", False)
    assert flowrl("run", "--resume", run, "--workers", "1", "--quiet").exit_code == 0
    assert_same_run(run, whole)


def test_before_the_first_checkpoint_it_begins_anew(run, whole):
    shutil.rmtree(run / "checkpoints")
    for policy in run.glob("policy*.pt"):
        policy.unlink()
    # A second Ctrl-C ended it before the state was saved.
    (run / "summary.json").write_text(json.dumps({"outcome": "interrupted"}))
    assert flowrl("run", "--resume", run).stdout.splitlines()[0] == "no checkpoint yet: beginning anew"
    assert_same_run(run, whole)


@pytest.mark.parametrize("kept", ["policy.pt", "policy_last.pt", "summary.json"])
def test_without_checkpoints_nothing_of_a_run_is_lost(whole, folder, kept):
    """D3: what only the whole run can give again stays."""
    shutil.copytree(whole, folder / "run")
    shutil.rmtree(folder / "run" / "checkpoints")
    for name in {"policy.pt", "policy_last.pt", "summary.json"} - {kept}:
        (folder / "run" / name).unlink()
    before = {path: path.read_bytes() for path in (folder / "run").iterdir()}
    done = flowrl("run", "--resume", "run")
    assert done.exit_code == 2
    assert f"run has no checkpoint to go on from, and beginning anew would overwrite its {kept}" in done.stderr
    assert before == {path: path.read_bytes() for path in (folder / "run").iterdir()}


def test_a_policy_never_vanishes_when_a_run_goes_on(whole, folder, child):
    """D3: interrupted before any evaluation; the policy there stands in until a better one comes."""
    options = (*SMALL, "--stop-steps", STEPS, "--set", f"eval_every={10 * STEPS}", "--quiet")
    assert flowrl("run", "dqn", *options, "--out", "whole").exit_code == 0
    assert flowrl("run", "dqn", *options, "--stop-steps", 400, "--out", "run").exit_code == 0
    short = (folder / "run" / "policy.pt").read_bytes()
    watched = "import flowrl.runs.directory as d, flowrl.cli.main as m\n"
    watched += "real = d.RunDirectory.create\n"
    watched += "def create(self, *a, **k):\n    print((self.path / 'policy.pt').exists())\n    real(self, *a, **k)\n"
    watched += "d.RunDirectory.create = create\nm.main()"
    process = child("run", "--resume", "run", "--stop-steps", STEPS, "--quiet", code=("-c", watched))
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    assert out.splitlines()[0] == "True"
    assert (folder / "run" / "policy.pt").read_bytes() != short
    assert_same_run(folder / "run", folder / "whole")


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
    _, saved = checkpoints(folder / "my run").paths()
    begins, _, words = last.partition("; to go on from step ")
    assert f"{words.partition(': ')[0]} env steps" in begins, "where it was stopped, not the last result"
    command = shlex.split(words.partition(": ")[2])
    assert command == ["flowrl", "run", "--resume", "my run"]
    done = flowrl(*command[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == f"resumed at {int(saved.name.split('-')[1]):,} steps"
    assert_same_run(folder / "my run", whole)


DIES = """
import os, signal, sys
import flowrl.envs.managers.local, flowrl.networks.adam
from flowrl.cli.main import main

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
    "acting": (flowrl.envs.managers.local.EnvManager, "step"),
    "learning": (flowrl.networks.adam.Adam, "advance"),
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


def test_a_resumed_run_keeps_how_long_its_schedules_last(folder, caplog):
    """Q9: as long as the budget in env steps, if the run began with one; else they stay constant."""
    (folder / "small.json").write_text(json.dumps({**PLANS["ppo"], "schedule_steps": None}))
    small = ("run", "ppo", "--config", "small.json", "--set", "eval_every=1000")

    def length(run):
        return json.loads((folder / run / "config.json").read_text())["schedule_steps"]

    assert "constant" not in flowrl(*small, "--stop-steps", 60, "--out", "run").stdout
    assert length("run") == 60
    assert flowrl("run", "--resume", "run", "--stop-steps", 80, "--quiet").exit_code == 0
    assert length("run") == 60
    ends = "the learning rate ends at 0 after 60 env steps, so from there to 80 the policy learns nothing"
    assert caplog.messages[0] == f"{ends}; to learn on, give --set schedule_steps=80"
    caplog.clear()
    again = ("--stop-steps", 100, "--set", "schedule_steps=100", "--quiet")
    assert flowrl("run", "--resume", "run", *again).exit_code == 0
    assert caplog.messages == []
    begun = flowrl(*small, "--stop-seconds", 0.01, "--out", "timed").stdout
    assert begun.splitlines()[1].startswith(
        "clip and learning_rate stay constant, since the run has no budget in env steps"
    )
    assert flowrl("run", "--resume", "timed", "--stop-steps", 200, "--quiet").exit_code == 0
    assert length("timed") is None


def test_a_fork_with_other_learning_rates_says_so_in_the_run(run):
    """D9: what, from, to, and at which env step."""
    done = flowrl("run", "--resume", run, "--set", "learning_rate=1e-4", "--stop-steps", 1100)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("resumed at 1,024 steps, with learning_rate=0.0001 (it was 0.001); ")
    about = json.loads((run / "run.json").read_text())
    assert about["fork"] == {"env_steps": 1024, "settings": {"learning_rate": {"from": 0.001, "to": 0.0001}}}
    assert json.loads((run / "config.json").read_text())["learning_rate"] == 1e-4
    assert flowrl("run", "--resume", run, "--stop-steps", 1200, "--quiet").exit_code == 0
    about = json.loads((run / "run.json").read_text())
    assert "fork" not in about
    assert "fork" in about["earlier"][-1]
