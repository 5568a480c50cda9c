"""Runs that get signals at random moments, in plans and over managers of every kind, and go on."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.parts import DEADLINE, flowrl
from tests.cli.resume_parts import assert_same_run
from tests.plans.small import settings_of

pytestmark = pytest.mark.exhaustive

#: Variants of `tests/plans/small.py`, and what steps their environments.
CASES = [
    *(("dqn", manager) for manager in ("local", "subprocess", "thread", "vector")),
    *(("ppo", manager) for manager in ("local", "subprocess", "thread", "vector")),
    *((name, "local") for name in ("a2c", "a3c", "c51", "rainbow", "r2d2", "ddpg", "td3", "her_dqn", "ppo recurrent")),
    ("sac", "subprocess"),
]
KILLS = 6
EVALUATES = {"eval_every": 200, "eval_episodes": 2, "eval_max_steps": 50}

BEGIN = """
import os, signal, subprocess, sys
import flowrl.plans, flowrl.runs.kept, flowrl.policies, flowrl.rollout
from flowrl.cli.main import main
seconds, word = float(sys.argv.pop(1)), sys.argv.pop(1)
"""
#: After so many seconds of the processor the kernel ends the process, which cannot notice: SIGPROF is not handled.
KILLED = BEGIN + "signal.setitimer(signal.ITIMER_PROF, seconds); main()"
#: Then it gets a signal, or several, each soon after the one before; or it or the processes of its environments are
#: stopped and go on.
SIGNALLED = (
    BEGIN
    + """
words = word.split()

def send(*_):
    if not words:
        return  # the next one was on its way
    word = words.pop(0)
    if not words:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if word in ("itself", "environments"):
        from multiprocessing import active_children
        to = [os.getpid()] if word == "itself" else [each.pid for each in active_children()]
        subprocess.Popen(["sh", "-c", "kill -STOP $*; kill -CONT $*", "sh", *map(str, to)])
    else:
        os.kill(os.getpid(), signal.Signals[word])

signal.signal(signal.SIGPROF, send)
signal.setitimer(signal.ITIMER_PROF, seconds, 0.02)
main()
"""
)


@pytest.fixture
def plan(name: str, manager: str, folder: Path) -> tuple[list[Any], float]:
    """A command, what it comes to in `whole`, and the seconds of the processor that this takes."""
    config = {"env": "CartPole-v1", **settings_of(name), "env_manager": manager, **EVALUATES}
    Path("config.json").write_text(json.dumps(config))
    plan = ["run", name.split()[0], "--config", "config.json", "--set", "checkpoint_every=40", "--stop-steps", 600]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    assert flowrl(*plan, "--out", "whole", "--quiet").exit_code == 0
    return [*plan, "--out", "run"], resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


class Runs:
    """One run in a folder, begun or gone on with until it has ended well; counts its processes."""

    def __init__(self, child: Any, folder: Path, begin: list[Any]) -> None:
        self.child, self.folder, self.begin = child, folder, begin

    def go_on(self, code: str, seconds: float, word: str = "", expected: Sequence[int] = ()) -> int:
        """Returns the exit code, which is 0 or among the expected."""
        command = ["run", "--resume", "run"]
        if not (self.folder / "run" / "run.json").exists():
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            command = self.begin
        process = self.child(seconds, word, *command, "--quiet", code=("-c", code))
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode in (0, *expected), err
        return int(process.returncode)

    def compare(self) -> None:
        """The run has ended as the uninterrupted one."""
        assert_same_run(self.folder / "run", self.folder / "whole")
        assert not list((self.folder / "run").rglob(".*"))


@pytest.mark.parametrize(("name", "manager"), CASES)
def test_a_run_that_is_killed_at_random_moments_ends_as_if_it_was_not(
    name: str, manager: str, plan: tuple[list[Any], float], folder: Path, child: Any
) -> None:
    """D3: SIGKILL while acting, learning, evaluating and writing checkpoints."""
    command, whole = plan
    draw, runs, killed = np.random.default_rng(len(name + manager)), Runs(child, folder, command), 0
    while killed < KILLS:
        if runs.go_on(KILLED, draw.uniform(0.05, 0.5) * whole, expected=[-signal.SIGPROF]):
            killed += 1
        else:
            runs.compare()
            shutil.rmtree(folder / "run")
    assert runs.go_on(KILLED, 0) == 0
    runs.compare()


#: The signals, and the exit codes that they may cause.
SIGNALS = {
    "SIGINT": [130],
    "SIGTERM": [130, -signal.SIGTERM],  # before the run begins nothing handles it
    "SIGHUP": [-signal.SIGHUP],
    "SIGUSR1": [-signal.SIGUSR1],
    "SIGINT SIGINT": [130],  # the second while it saves, perhaps
    "SIGTERM SIGTERM": [130, -signal.SIGTERM],
    "itself": [],
    "environments": [],
}


@pytest.mark.parametrize("word", SIGNALS)
@pytest.mark.parametrize(("name", "manager"), [(*case,) for case in CASES if case[0] in ("dqn", "ppo", "sac", "r2d2")])
def test_a_run_that_gets_a_signal_ends_well_or_goes_on(
    word: str, name: str, manager: str, plan: tuple[list[Any], float], folder: Path, child: Any
) -> None:
    """D3, F15: as a whole, or its environments' processes alone."""
    command, whole = plan
    draw, runs = np.random.default_rng(len(name + manager + word)), Runs(child, folder, command)
    runs.go_on(SIGNALLED, draw.uniform(0.05, 0.9) * whole, word, SIGNALS[word])
    assert runs.go_on(KILLED, 0) == 0
    runs.compare()
