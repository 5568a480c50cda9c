"""Environments that fail once, or always, in every way that they can; and what a process leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.clock_envs import TERMINATED, EchoEnv
from tests.managers import Collector

CONSTRUCTION, RESET, AUTOMATIC_RESET, STEP = "construction", "reset", "automatic reset", "step"
WHEN = (CONSTRUCTION, RESET, AUTOMATIC_RESET, STEP)
#: The steps of an episode of three; `STEP` is the one between.
FIRST_STEP, LAST_STEP = "first step", "last step"
STEPS = {FIRST_STEP: 1, STEP: 2, LAST_STEP: 3}


def _raise() -> None:
    raise ArithmeticError("out of\ncheese")


KINDS: dict[str, Callable[[], Any]] = {
    "exception": _raise,
    "hang": lambda: time.sleep(3600),
    "exit": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "c_block": lambda: ctypes.PyDLL(None).sleep(3600),  # holds the interpreter: no signal handler runs
    "segfault": lambda: (faulthandler.disable(), os.kill(os.getpid(), signal.SIGSEGV)),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "garbage": lambda: np.full(3, np.nan, np.float32),
}


#: Seconds that a busy machine may take beside a deadline. What hangs takes an hour.
BUSY = 30.0


def limits(what: str) -> dict[str, float]:
    """Deadlines that a test of a hang can wait for; where nothing hangs, a busy machine must not come near them."""
    seconds = 1.0 if what in ("hang", "c_block", "stopped", "deaf") else 60.0
    return {"step_timeout": seconds, "reset_timeout": seconds, "launch_timeout": 2 * seconds}


class StagedEnv(EchoEnv):
    """An EchoEnv that calls `fail` at the stages of its life; what that gives, if anything, is observed instead."""

    #: The steps of an episode that are stages, by number.
    stages: Mapping[int, str] = {STEPS[STEP]: STEP}

    def __init__(self, index: int, length: int = 3) -> None:
        super().__init__(index, [(length, TERMINATED)])
        self.garbage = self.fail(CONSTRUCTION)

    def fail(self, stage: str) -> Any:
        raise NotImplementedError

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        garbage = self.fail(RESET if self.episode == 0 else AUTOMATIC_RESET)
        return (obs if garbage is None else garbage), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        stage = self.stages.get(self.step_in_episode)
        garbage = None if stage is None else self.fail(stage)
        return obs if garbage is None else garbage, *rest


class FaultyEnv(StagedEnv):
    """Fails at one of its stages: the first `times` times, counted by files in a folder."""

    stages: Mapping[int, str] = {number: stage for stage, number in STEPS.items()}

    def __init__(self, index: int, when: str, what: str, folder: Path, times: int) -> None:
        self.when, self.what, self.folder, self.times = when, what, folder, times
        super().__init__(index)

    def fail(self, stage: str) -> Any:
        for count in range(self.times if stage == self.when else 0):
            try:
                (self.folder / f"{self.index}-{count}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return KINDS[self.what]()
        return None


def _made(kind: Callable[..., StagedEnv], *args: Any) -> Any:
    """A factory's garbage is no environment at all."""
    env = kind(1, *args)
    return env if env.garbage is None else "no environment"


def one_of(kind: Callable[..., StagedEnv], *args: Any, num_envs: int = 4) -> list[Callable[[], Any]]:
    """Factories of which that of environment 1 makes this kind; the others never fail."""
    fine = [functools.partial(EchoEnv, i, [(3 + i, TERMINATED)]) for i in range(num_envs)]
    return [fine[0], functools.partial(_made, kind, *args), *fine[2:]]


def one_faulty(when: str, what: str, folder: Path, *, times: int = 1) -> list[Callable[[], Any]]:
    return one_of(FaultyEnv, when, what, folder, times)


class Player(Collector):
    """Of a manager of EchoEnvs, some of which fail; every row must be a true transition (T11)."""

    @property
    def counts(self) -> list[int]:
        """Transitions of each environment."""
        return list(map(len, self.rows))

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        before = self.counts
        super().step()
        for i, rows in enumerate(self.rows):
            for episode_id, t, obs, action, reward, terminated, truncated, next_obs in rows[before[i] :]:
                assert next_obs == [obs[0], action, obs[2] + 1]
                assert reward == next_obs[2]
                at = self.manager.episode_id[i], self.manager.t[i]
                if terminated or truncated:  # by two where the next episode did not begin
                    assert at[0] > episode_id
                    assert at[1] == 0
                else:
                    assert at == (episode_id, t + 1)


def descendants() -> set[int]:
    """The processes that this one started, and those that they did; those that have ended but not been joined too.

    Without those of a Ray that other tests of this process share, which begins and ends its workers when it likes.
    """
    found: set[int] = set()
    waiting: Sequence[int] = [os.getpid()]
    while waiting:
        children: list[int] = []
        for pid in waiting:
            if name_of(pid) == "raylet":
                continue
            for file in Path(f"/proc/{pid}/task").glob("*/children"):
                children += map(int, file.read_text().split())
        found.update(children)
        waiting = children
    return found


def name_of(pid: int) -> str:
    """The name of a process; none of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descriptors() -> list[str]:
    """What this process holds open, without the network: no manager uses it, and a Ray that other tests share does."""
    found = []
    for name in sorted(os.listdir("/proc/self/fd")):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            if not (os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and of_the_network(int(name))):
                found.append(name)
    return found


def of_the_network(descriptor: int) -> bool:
    """Whether it is a socket to another machine, or to this one as if it were; of a broken connection, too."""
    with socket.socket(fileno=os.dup(descriptor)) as same:
        return same.family in (socket.AF_INET, socket.AF_INET6)


def footprint() -> dict[str, Any]:
    """What must be the same after a manager was closed (F15)."""
    gc.collect()  # of what was there before
    gc.freeze()  # and what is there still need not be searched the next time
    return {
        "processes": descendants(),
        "descriptors": descriptors(),
        # Not those that Python did not start, such as Ray's: they come and go.
        "threads": {thread.name for thread in threading.enumerate() if not thread.name.startswith("Dummy-")},
        "shared memory": sorted(os.listdir("/dev/shm")),
    }
