"""Every manager over the same environments, and a collector that takes answers as they come."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from flowrl.envs import (
    AsyncSubprocessEnvManager,
    EnvManager,
    Manager,
    SubprocessEnvManager,
    ThreadEnvManager,
    VectorEnvManager,
)
from tests.clock_envs import SHORT_TABLE, ClockEnv, Table, around, clock_factories, clock_vector, plain

Make = Callable[..., Manager]

#: Those that reset environments themselves, each episode with a seed of its own; from a factory for each.
FROM_FACTORIES: dict[str, Make] = {
    "local": lambda factories, **options: EnvManager([make() for make in factories], **options),
    "subprocess": functools.partial(SubprocessEnvManager, envs_per_process=2),
    "subprocess-each": functools.partial(SubprocessEnvManager, envs_per_process=1),
    "async": functools.partial(AsyncSubprocessEnvManager, wait_num=1),
    "async-two": functools.partial(AsyncSubprocessEnvManager, envs_per_process=2),
    "thread": ThreadEnvManager,
}


def over_clocks(manager: Make, **options: Any) -> Make:
    """Made from a table of clock environments."""
    return lambda table, **kwargs: manager(clock_factories(table, **kwargs), **options)


def in_processes(
    table: Table = SHORT_TABLE, *, kind: type[ClockEnv] = ClockEnv, noisy: bool = True, **options: Any
) -> SubprocessEnvManager:
    """Clock environments in other processes."""
    return SubprocessEnvManager(clock_factories(table, noisy=noisy, kind=kind), **options)


def vector(mode: AutoresetMode, **how: Any) -> Make:
    return lambda table, **kwargs: VectorEnvManager(clock_vector(table, mode, **how, **kwargs))


OF_flowrl = {name: over_clocks(manager) for name, manager in FROM_FACTORIES.items()}
EVERY = OF_flowrl | {mode.name: vector(mode) for mode in AutoresetMode}
EVERY |= {f"{mode.name}-around": vector(mode, make=around) for mode in AutoresetMode}
local = OF_flowrl["local"]

#: Further ways to spread environments over processes: for the slow tests.
SLOW = ("subprocess-each", "async-two")


def each_of(managers: dict[str, Make]) -> pytest.MarkDecorator:
    """A test of each, as `make`."""
    marks = {name: pytest.mark.slow if name in SLOW else () for name in managers}
    return pytest.mark.parametrize("make", [pytest.param(managers[name], marks=marks[name], id=name) for name in marks])


every_manager = each_of(EVERY)
every_one_of_flowrl = each_of(OF_flowrl)
from_factories = each_of(FROM_FACTORIES)


def action_for(obs: Any) -> int:
    """Another action for every observation of a clock environment."""
    return int(obs[2] * 7 + obs[0] * 131) % 1000


class Collector:
    """Steps a manager and keeps the transitions of each environment, in the order of their answers.

    They are `(episode_id, t, obs, action, reward, terminated, truncated, next_obs)`. What was acted from is noted when
    the action is sent, so a row pairs what was sent with what came of it (T11).
    """

    def __init__(self, manager: Manager, act: Callable[[Any], int] = action_for) -> None:
        self.manager, self.act = manager, act
        self.rows: list[list[tuple[Any, ...]]] = [[] for _ in range(manager.num_envs)]
        self.sent: dict[int, tuple[Any, ...]] = {}
        self.cut_before = manager.cut_episodes

    def until(self, rows: int) -> list[list[tuple[Any, ...]]]:
        """The first so many transitions of each environment."""
        while min(map(len, self.rows)) < rows:
            self.step()
        return [mine[:rows] for mine in self.rows]

    def step(self) -> None:
        manager = self.manager
        ready = manager.ready if manager.ready is not None else np.ones(manager.num_envs, np.bool_)
        actions = np.zeros(manager.num_envs, np.int64)
        for i, obs in ((int(i), manager.obs[i]) for i in np.flatnonzero(ready)):
            actions[i] = self.act(obs)
            self.sent[i] = manager.episode_id.item(i), manager.t.item(i), plain(obs), int(actions[i])
        result = manager.step(actions)
        np.testing.assert_array_equal(manager.done, result.terminated | result.truncated)
        for i in range(manager.num_envs):
            outcome = float(result.reward[i]), bool(result.terminated[i]), bool(result.truncated[i])
            if result.acted is None or result.acted[i]:
                self.rows[i].append((*self.sent.pop(i), *outcome, plain(result.next_obs[i])))
                continue
            assert outcome == (0.0, False, False)
            still_stepping = manager.ready is not None and not manager.ready[i]
            if still_stepping and manager.cut_episodes == self.cut_before:  # it stays where it was
                assert self.sent[i][:3] == (manager.episode_id[i], manager.t[i], plain(manager.obs[i]))
