"""Environments whose observations prove where a row came from (rules T1, T3, T6, T7, T11).

They are registered nowhere: pass them as callables, or `clock_vector` as a gymnasium VectorEnv.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from flowrl.envs import Manager

# How episodes end: their lengths in turn (the last one repeats), each with its ending.
TERMINATED, TRUNCATED, BOTH = "terminated", "truncated", "both"
End = tuple[int, str]
Table = Sequence[Sequence[End]]  # one row per environment


class ClockEnv(gymnasium.Env[npt.NDArray[np.float32], Any]):
    """Observes `[env index, episode, clock]`; the clock counts the steps of all its life, and goes on at a reset.

    A reset moves the clock too, by 1000, so within an episode `next_obs == obs + [0, 0, 1]` and across a reset
    never. The reward of the step that arrives at clock c is c. The info of every reset claims success: whoever
    reads the wrong info is found out. At an episode's end `is_success` tells whether it terminated.

    With `noisy` the episode column is instead a number drawn from the environment's own generator at each reset.
    """

    def __init__(self, index: int, ends: Sequence[End], noisy: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(1000)
        self.index, self.ends, self.noisy = index, list(ends), noisy
        self.episode, self.clock, self.step_in_episode = -1, 0, 0
        self.mark = 0.0
        self.closed = 0
        self.running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.clock += 1000
        self.step_in_episode = 0
        self.running = True
        self.mark = float(self.np_random.integers(2**20)) if self.noisy else float(self.episode)
        return self._obs(), {"is_success": True, "reset": True}

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self.running, "an ended episode was stepped on"
        self.clock += 1
        self.step_in_episode += 1
        length, ending = self.ends[min(self.episode, len(self.ends) - 1)]
        over = self.step_in_episode >= length
        self.running = not over
        terminated, truncated = over and ending != TRUNCATED, over and ending != TERMINATED
        info = {"is_success": terminated} if over else {}
        return self._obs(), float(self.clock), terminated, truncated, info

    def _obs(self) -> npt.NDArray[np.float32]:
        return np.array([self.index, self.mark, self.clock], np.float32)

    def close(self) -> None:
        self.closed += 1


class EchoEnv(ClockEnv):
    """Observes `[env index, last action, clock]`: an observation proves which action led to it (T11)."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.mark = -1.0
        return self._obs(), {"is_success": True, "reset": True}

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.mark = float(action)
        return super().step(action)


def clock_envs(table: Table, *, noisy: bool = False, kind: type[ClockEnv] = ClockEnv) -> Callable[[], ClockEnv]:
    """A factory that makes environment 0, 1, 2, ... of the table in turn, then starts over."""
    made = iter(range(10**9))

    def make() -> ClockEnv:
        index = next(made) % len(table)
        return kind(index, table[index], noisy)

    return make


def clock_vector(
    table: Table,
    mode: AutoresetMode,
    *,
    noisy: bool = False,
    kind: type[ClockEnv] = ClockEnv,
    make: Callable[..., Any] = SyncVectorEnv,
    **kwargs: Any,
) -> Any:
    """The same environments in gymnasium's SyncVectorEnv, or in what `make` is."""
    fns = [functools.partial(kind, index, ends, noisy) for index, ends in enumerate(table)]
    return make(fns, autoreset_mode=mode, **kwargs)


def actions_at(step: int, num_envs: int) -> npt.NDArray[np.int64]:
    """Another action for every step and environment."""
    return (np.arange(num_envs) * 100 + step) % 1000


def collect(manager: Manager, steps: int, start: int = 0) -> list[list[tuple[Any, ...]]]:
    """For each environment the rows that count: episode, t, obs, action, reward, terminated, truncated, next_obs."""
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(manager.num_envs)]
    for step in range(start, start + steps):
        before = manager.obs
        at = list(zip(manager.episode_id.tolist(), manager.t.tolist()))
        ready = manager.ready_obs
        actions = actions_at(step, manager.num_envs)
        result = manager.step(actions)
        np.testing.assert_array_equal(manager.done, result.terminated | result.truncated)
        for i in range(manager.num_envs):
            if result.acted is None or result.acted[i]:
                rows[i].append(
                    (
                        *(*at[i], before[i].tolist(), int(actions[i]), float(result.reward[i])),
                        *(bool(result.terminated[i]), bool(result.truncated[i]), result.next_obs[i].tolist()),
                    )
                )
                np.testing.assert_array_equal(ready[i], before[i])
            else:
                assert i not in ready
                flags = (result.terminated[i], result.truncated[i], manager.done[i])
                assert (result.reward[i], *flags) == (0, False, False, False)
    return rows
