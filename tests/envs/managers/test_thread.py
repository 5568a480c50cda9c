"""Environments in threads: each lives in its own, and a stuck one costs its episode and nothing else."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.envs import ThreadEnvManager
from flowrl.errors import EnvFault
from tests.faulty_envs import (
    AUTOMATIC_RESET,
    BUSY,
    CONSTRUCTION,
    RESET,
    STEP,
    WHEN,
    Player,
    StagedEnv,
    footprint,
    limits,
    one_of,
)

KINDS = ("exception", "exit", "garbage", "hang", "deaf")


class Outside:
    """What the environments are clients of: the test's hold on them."""

    def __init__(self) -> None:
        self.failures, self.freed = 1, threading.Event()
        self.connections: list[threading.Event] = []
        self.calls: list[tuple[str, int, int]] = []  # what was called, of which environment, by which thread


class ClientEnv(StagedEnv):
    """Waits for an answer from outside at one of its stages, once; `close()` ends that, if it is not deaf."""

    def __init__(self, index: int, when: str, what: str, outside: Outside) -> None:
        self.when, self.what, self.outside, self.hung_up = when, what, outside, threading.Event()
        outside.connections.append(self.hung_up)
        super().__init__(index)

    def fail(self, stage: str) -> Any:
        self.outside.calls.append((stage, self.index, threading.get_ident()))
        if stage != self.when or not self.outside.failures:
            return None
        self.outside.failures -= 1
        if self.what == "exception":
            raise ArithmeticError("out of\ncheese")
        if self.what == "exit":
            sys.exit(3)
        if self.what in ("hang", "deaf"):
            # Of what is not made yet there is nothing to close.
            deaf = self.what == "deaf" or stage == CONSTRUCTION
            (self.outside.freed if deaf else self.hung_up).wait(120)
        return np.full(3, np.nan, np.float32) if self.what == "garbage" else None

    def close(self) -> None:
        self.outside.calls.append(("close", self.index, threading.get_ident()))
        self.hung_up.set()
        super().close()


def clients(when: str, what: str, outside: Outside) -> list[Any]:
    """Factories of which that of environment 1 fails."""
    return one_of(ClientEnv, when, what, outside, num_envs=3)


@pytest.fixture
def outside() -> Iterator[Outside]:
    """Whatever is stuck in the test comes free at its end."""
    made = Outside()
    yield made
    for event in (made.freed, *made.connections):
        event.set()
    join_all()


def join_all() -> None:
    """The threads of managers, given up or not, end within a few seconds."""
    deadline = time.monotonic() + BUSY
    for thread in [each for each in threading.enumerate() if each.name.startswith("flowrl-")]:
        thread.join(deadline - time.monotonic())
        assert not thread.is_alive()


QUICK = {(STEP, "deaf"), (AUTOMATIC_RESET, "exception"), (RESET, "hang"), (CONSTRUCTION, "exit"), (STEP, "garbage")}


@pytest.mark.parametrize(
    ("when", "what"),
    [
        pytest.param(when, what, marks=[] if (when, what) in QUICK else pytest.mark.slow)
        for when in WHEN
        for what in KINDS
    ],
)
def test_one_fault_costs_its_episode_and_nothing_else(when: str, what: str, outside: Outside) -> None:
    """F10, F15, T11: it survives, counts, names, leaves nothing behind, and waits for the deadline and no longer."""
    before, start = footprint(), time.monotonic()
    manager = ThreadEnvManager(clients(when, what, outside), **limits(what))
    manager.launch(0)
    player = Player(manager)
    player.until(5)
    assert time.monotonic() - start < max(limits(what).values()) + BUSY
    outside.freed.set()  # what the old thread still does reaches nobody
    player.until(12)
    [fault] = manager.drain_faults()
    assert fault.env_id == 1
    assert fault.during == ("reset" if when == AUTOMATIC_RESET else when)
    assert (fault.episode_id, fault.t) == (int(when == AUTOMATIC_RESET), int(when == STEP))
    assert fault.collateral == ()
    if what in ("hang", "deaf"):
        assert fault.kind == "timeout"
        assert "hung_up).wait" in fault.traceback  # where it was stuck
    elif what == "garbage":
        assert fault.kind == ("exception" if when == CONSTRUCTION else "observation")
    else:
        assert fault.kind == "exception"
        assert fault.message == {"exception": "ArithmeticError: out of cheese", "exit": "SystemExit: 3"}[what]
        assert "in fail" in fault.traceback
    assert manager.cut_episodes == (0 if when == CONSTRUCTION else 1)
    manager.close()
    join_all()  # one that was given up may only now have come free
    assert footprint() == before


def test_an_environment_lives_in_one_thread(outside: Outside) -> None:
    """Construction, resets, steps and close all happen in the thread of that environment alone."""
    factories = [functools.partial(ClientEnv, i, "never", "", outside) for i in range(3)]
    with ThreadEnvManager(factories) as manager:
        manager.launch(0)
        Player(manager).until(7)
    threads = [{thread for _, index, thread in outside.calls if index == i} for i in range(3)]
    assert [len(each) for each in threads] == [1, 1, 1]
    assert len(set.union(*threads)) == 3
    assert threading.get_ident() not in set.union(*threads)
    assert [call for call, index, _ in outside.calls if index == 0][-1] == "close"


def test_a_thread_that_stays_stuck_is_named(outside: Outside, caplog: pytest.LogCaptureFixture) -> None:
    """F15: when it is given up, and when the manager is closed, with the call in which it is."""
    manager = ThreadEnvManager(clients(AUTOMATIC_RESET, "deaf", outside), **limits("deaf"))
    manager.launch(0)
    with caplog.at_level(logging.WARNING, "flowrl"):
        Player(manager).until(6)
        assert caplog.messages == ["flowrl-env-1 is stuck in the reset of its environment, and is given up"]
        caplog.clear()
        start = time.monotonic()
        manager.close()
        assert time.monotonic() - start < BUSY
    assert caplog.messages == ["flowrl-env-1 is still stuck in the reset of its environment"]


def test_one_that_closing_frees_is_not_named(outside: Outside, caplog: pytest.LogCaptureFixture) -> None:
    """F15: `close()`, called from outside, ended what it waited for."""
    with (
        caplog.at_level(logging.WARNING, "flowrl"),
        ThreadEnvManager(clients(STEP, "hang", outside), **limits("hang")) as manager,
    ):
        manager.launch(0)
        Player(manager).until(6)
        assert "flowrl-env-1" in [thread.name for thread in threading.enumerate()]
    assert caplog.messages == []


def test_what_an_abandoned_thread_still_gives_is_ignored(outside: Outside) -> None:
    """T11: its observation, reward and flags belong to an episode that was cut."""
    manager = ThreadEnvManager(clients(STEP, "deaf", outside), **limits("deaf"))
    with manager:
        manager.launch(0)
        player = Player(manager)
        player.until(5)
        stuck = next(each for each in threading.enumerate() if each.name == "flowrl-env-1")
        columns = [*manager._x.stores, manager._x.began, manager._x.reward, manager._x.command]
        before = [column.copy() for column in columns]
        outside.freed.set()
        stuck.join(5)
        for column, value in zip(columns, before):
            np.testing.assert_array_equal(column, value)
        player.until(9)


def test_one_fault_too_many_ends_it(outside: Outside) -> None:
    """F10: named with the lines of the first one; the others' episodes are kept, and a reset begins anew."""
    outside.failures = 3
    with ThreadEnvManager(clients(STEP, "exception", outside), max_retry=2, **limits("exception")) as manager:
        manager.launch(0)
        with pytest.raises(EnvFault, match=r"environment 1, episode 2 (.|\n)*, in fail(.|\n)*max_retry=2"):
            Player(manager).until(9)
        assert {episode.env_id for episode in manager.drain()} == {0, 2}
        manager.reset()
        Player(manager).until(3)


def test_a_stuck_thread_does_not_keep_the_interpreter(tmp_path: Path) -> None:
    """F15: exit closes what nobody closed, within a few seconds."""
    script = tmp_path / "stuck.py"
    script.write_text(
        "import threading\n"
        "from flowrl.envs import ThreadEnvManager\n"
        "from tests.clock_envs import EchoEnv\n"
        "class Deaf(EchoEnv):\n"
        "    def step(self, action):\n"
        "        threading.Event().wait(60)\n"
        "manager = ThreadEnvManager([lambda: Deaf(0, [(3, 'terminated')])], step_timeout=0.2, max_retry=0)\n"
        "manager.launch(0)\n"
        "manager.step([0])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "EnvFault: environment 0" in done.stderr
    assert "wait" in done.stderr
