"""Environments whose observations prove where a row came from (rules T1, T2, T3, T6, T7, T11).

They are registered nowhere: pass them as callables, or `clock_vector` as a gymnasium VectorEnv.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorActionWrapper

from flowrl.data import Batch
from flowrl.envs import Manager

# How episodes end: their lengths in turn (the last one repeats), each with its ending.
TERMINATED, TRUNCATED, BOTH = "terminated", "truncated", "both"
End = tuple[int, str]
Table = Sequence[Sequence[End]]  # one row per environment

#: Three environments that end in every way, long before or after each other, in their first step too.
TABLE: Table = [
    [(3, TERMINATED), (1, BOTH), (2, TRUNCATED), (7, TERMINATED)],
    [(9, TRUNCATED), (2, TERMINATED)],
    [(1, TERMINATED), (1, TRUNCATED), (4, BOTH)],
]
#: The same with no episode longer than four steps, for tests that take few.
SHORT_TABLE: Table = [TABLE[0][:3], [(2, TRUNCATED), (2, TERMINATED)], TABLE[2]]


class ClockEnv(gymnasium.Env[Any, Any]):
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.clock += 1000
        self.step_in_episode = 0
        self.running = True
        self.mark = float(self.np_random.integers(2**20)) if self.noisy else float(self.episode)
        return self._obs(), {"is_success": True, "reset": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.running, "an ended episode was stepped on"
        self.clock += 1
        self.step_in_episode += 1
        length, ending = self.ends[min(self.episode, len(self.ends) - 1)]
        over = self.step_in_episode >= length
        self.running = not over
        terminated, truncated = over and ending != TRUNCATED, over and ending != TERMINATED
        info = {"is_success": terminated} if over else {}
        return self._obs(), float(self.clock), terminated, truncated, info

    def _obs(self) -> Any:
        return np.array([self.index, self.mark, self.clock], np.float32)

    def close(self) -> None:
        self.closed += 1


class EchoEnv(ClockEnv):
    """Observes `[env index, last action, clock]`: an observation proves which action led to it (T11)."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.mark = -1.0
        return self._obs(), {"is_success": True, "reset": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.mark = float(action)
        return super().step(action)


class ReusedClockEnv(ClockEnv):
    """Hands out one array all its life, as many simulators do."""

    def _obs(self) -> Any:
        fresh = super()._obs()
        self.array = getattr(self, "array", fresh)
        self.array[:] = fresh
        return self.array


class DictClockEnv(ClockEnv):
    """Observes a dictionary with another one inside; each leaf is a clock of its own, in a space of another kind."""

    def __init__(self, index: int, ends: Sequence[End], noisy: bool = False) -> None:
        super().__init__(index, ends, noisy)
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            image=spaces.Box(0, 255, (2, 3, 1), np.uint8),
            count=spaces.Discrete(10**6),
            goal=spaces.Dict(vector=self.observation_space, bits=spaces.MultiBinary(20)),
            where=spaces.MultiDiscrete([100, 10**6]),
        )

    def _obs(self) -> Any:
        return {
            "image": np.full((2, 3, 1), self.clock % 256, np.uint8),
            "count": self.clock,
            "goal": {"vector": super()._obs(), "bits": self.clock >> np.arange(20) & 1},
            "where": np.array([self.index, self.clock]),
        }


class ReusedDictClockEnv(DictClockEnv):
    """Hands out one dictionary with the same arrays in it all its life."""

    def _obs(self) -> Any:
        fresh = super()._obs()
        self.mine = getattr(self, "mine", fresh)
        self.mine["count"] = fresh["count"]
        for part, new in ((self.mine, fresh), (self.mine["goal"], fresh["goal"])):
            for key in part.keys() - {"count", "goal"}:
                part[key][:] = new[key]
        return self.mine


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode every `steps` steps, and goes on inside the same one at the reset."""

    def __init__(self, env: gymnasium.Env[Any, Any], steps: int = 2) -> None:
        super().__init__(env)
        self.each, self.count, self.over = steps, 0, True

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        if self.over:
            self.obs, info = self.env.reset(**kwargs)
            return self.obs, info
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        self.over = terminated or truncated
        return self.obs, reward, terminated or self.count == self.each, truncated, info


def clocks_of(obs: Batch) -> dict[str, npt.NDArray[np.int64]]:
    """What each leaf of a DictClockEnv's observations `[...]` shows; the image modulo 256."""
    return {
        "image": obs.image[..., 0, 0, 0].astype(np.int64),
        "count": obs["count"],
        "goal.vector": obs.goal.vector[..., 2].astype(np.int64),
        "goal.bits": obs.goal.bits.astype(np.int64) @ (1 << np.arange(20)),
        "where": obs.where[..., 1],
    }


def assert_one_tick(obs: Batch, next_obs: Batch) -> None:
    """Every leaf of every row is one step further in `next_obs`."""
    before, after = clocks_of(obs), clocks_of(next_obs)
    for leaf in before:
        ticks = (after[leaf] - before[leaf]) % (256 if leaf == "image" else 10**9)
        assert (ticks == 1).all(), f"{leaf}: {before[leaf]} -> {after[leaf]}"


def plain(row: Any) -> Any:
    """One observation as lists, in a dictionary where it is one."""
    return {name: plain(column) for name, column in row.items()} if isinstance(row, Batch) else row.tolist()


def clock_envs(table: Table, *, noisy: bool = False, kind: type[ClockEnv] = ClockEnv) -> Callable[[], ClockEnv]:
    """A factory that makes environment 0, 1, 2, ... of the table in turn, then starts over."""
    made = iter(range(10**9))

    def make() -> ClockEnv:
        index = next(made) % len(table)
        return kind(index, table[index], noisy)

    return make


def clock_factories(
    table: Table, *, noisy: bool = False, kind: type[ClockEnv] = ClockEnv
) -> list[Callable[[], ClockEnv]]:
    """A factory for each environment of the table."""
    return [functools.partial(kind, index, ends, noisy) for index, ends in enumerate(table)]


class Around(VectorActionWrapper):  # not generic below 1.4
    """Changes nothing, and leaves the steps of a SyncVectorEnv to gymnasium."""

    def actions(self, actions: Any) -> Any:
        return actions


def around(factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]], **how: Any) -> Around:
    return Around(SyncVectorEnv(factories, **how))


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
    return make(clock_factories(table, noisy=noisy, kind=kind), autoreset_mode=mode, **kwargs)


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
                        *(*at[i], plain(before[i]), int(actions[i]), float(result.reward[i])),
                        *(bool(result.terminated[i]), bool(result.truncated[i]), plain(result.next_obs[i])),
                    )
                )
                assert plain(ready[i]) == plain(before[i])
            else:
                assert i not in ready
                flags = (result.terminated[i], result.truncated[i], manager.done[i])
                assert (result.reward[i], *flags) == (0, False, False, False)
    return rows
