"""Environments that fail once, or always, in every way that they can; and what a process leaves behind."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.clock_envs import TERMINATED, EchoEnv

CONSTRUCTION, RESET, AUTOMATIC_RESET, STEP = "construction", "reset", "automatic reset", "step"
WHEN = (CONSTRUCTION, RESET, AUTOMATIC_RESET, STEP)


def _raise() -> None:
    raise ArithmeticError("out of\ncheese")


KINDS: dict[str, Callable[[], Any]] = {
    "exception": _raise,
    "hang": lambda: time.sleep(3600),
    "exit": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "c_block": lambda: ctypes.PyDLL(None).sleep(3600),  # holds the interpreter: no signal handler runs
    "garbage": lambda: np.full(3, np.nan, np.float32),
}


class FaultyEnv(EchoEnv):
    """An EchoEnv that fails at one of its stages: the first `times` times, counted by files in a folder."""

    def __init__(self, index: int, when: str, what: str, folder: Path, times: int = 1, length: int = 3) -> None:
        super().__init__(index, [(length, TERMINATED)])
        self.when, self.what, self.folder, self.times = when, what, folder, times
        self.garbage = self.fail() if when == CONSTRUCTION else None

    def fail(self) -> Any:
        for count in range(self.times):
            try:
                (self.folder / f"{self.index}-{count}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return KINDS[self.what]()
        return None

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        if self.when == (RESET if self.episode == 0 else AUTOMATIC_RESET):
            garbage = self.fail()
            obs = obs if garbage is None else garbage
        return obs, info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        if self.when == STEP and self.step_in_episode == 2:
            garbage = self.fail()
            obs = obs if garbage is None else garbage
        return obs, *rest


def make_faulty(index: int, when: str, what: str, folder: Path, times: int = 1) -> Any:
    """A factory's garbage is no environment at all."""
    env = FaultyEnv(index, when, what, folder, times)
    return env if env.garbage is None else "no environment"


def one_faulty(when: str, what: str, folder: Path, *, times: int = 1, num_envs: int = 4) -> list[Callable[[], Any]]:
    """Factories of which that of environment 1 fails."""
    fine = [functools.partial(EchoEnv, i, [(3 + i, TERMINATED)]) for i in range(num_envs)]
    return [fine[0], functools.partial(make_faulty, 1, when, what, folder, times), *fine[2:]]


class Player:
    """Steps a manager of EchoEnvs with an action of its own for each; every row must be a true transition (T11)."""

    def __init__(self, manager: Any) -> None:
        self.manager, self.steps = manager, 0
        self.counts = [0] * manager.num_envs
        self._sent: dict[int, tuple[Any, int, int, int]] = {}

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self._play_one()

    def until(self, counts: int) -> None:
        """Until each environment has so many transitions."""
        while min(self.counts) < counts:
            self._play_one()

    def _play_one(self) -> None:
        manager = self.manager
        actions = (np.arange(manager.num_envs) * 100 + self.steps) % 1000
        self.steps += 1
        obs, ready = manager.obs, manager.ready
        for i in range(manager.num_envs):
            if ready is None or ready[i]:
                self._sent[i] = (obs[i].copy(), int(actions[i]), int(manager.episode_id[i]), int(manager.t[i]))
        result = manager.step(actions)
        for i in range(manager.num_envs):
            if result.acted is None or result.acted[i]:
                before, action, episode_id, t = self._sent.pop(i)
                assert result.next_obs[i].tolist() == [before[0], action, before[2] + 1]
                assert result.reward[i] == result.next_obs[i][2]
                over = result.terminated[i] or result.truncated[i]
                assert over == manager.done[i]
                if over:  # by two where the next episode did not begin
                    assert manager.episode_id[i] > episode_id
                    assert manager.t[i] == 0
                else:
                    assert (manager.episode_id[i], manager.t[i]) == (episode_id, t + 1)
                self.counts[i] += 1
            else:
                assert (result.reward[i], result.terminated[i], result.truncated[i]) == (0, False, False)


def descendants() -> set[int]:
    """The processes that this one started, and those that they did; those that have ended but not been joined too."""
    found: set[int] = set()
    waiting: Sequence[int] = [os.getpid()]
    while waiting:
        children: list[int] = []
        for pid in waiting:
            for file in Path(f"/proc/{pid}/task").glob("*/children"):
                children += map(int, file.read_text().split())
        found.update(children)
        waiting = children
    return found


def footprint() -> dict[str, Any]:
    """What must be the same after a manager was closed (F15)."""
    gc.collect()  # of what was there before
    return {
        "processes": descendants(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "threads": {thread.name for thread in threading.enumerate()},
        "shared memory": sorted(os.listdir("/dev/shm")),
    }
