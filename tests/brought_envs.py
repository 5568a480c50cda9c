"""Environments as people bring them, each with its right values from a plain loop that knows nothing of flowrl.

To add a case: a class, or a function that makes the environment, and one line in `CASES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs
import gymnasium
import numpy as np

#: The kinds of manager: those that flowrl makes environments for, and a vector environment that the user makes.
KINDS = ("local", "subprocess", "async", "thread", "vector", "brought")


class Points(gymnasium.Env[Any, Any]):
    """Observes the step; a game of 6 steps is worth 1 + 2 + ... + 6, the next one of 7 steps a step more, and so on."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)
    games = 5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.games = 0, self.games + 1
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.obs(), self.reward(), self.t == self.games, False, self.info()

    def obs(self) -> Any:
        return np.array([self.t], np.float32)

    def reward(self) -> Any:
        return float(self.t)

    def info(self) -> Any:
        return {}


class Played(NamedTuple):
    """An episode: its return, its length and whether it was won; None: nobody says."""

    return_: float
    length: int
    won: bool | None = None


class Row(NamedTuple):
    """A step: what was acted from, and what came of it."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    next_obs: Any


@attrs.frozen
class Case:
    """What somebody brings to flowrl.

    Args:
        made: Makes what is brought, with `args`; flowrl puts it into `wrappers`.
        alone: Makes the environment whose returns are to be reported; None: as brought, without `wrappers`.
        args: The arguments of `made`.
        as_learned: The kinds of manager that cannot know the returns of the environment alone; they say so, and report
            what is learned from.
        refused: What the error says, by kind of manager.
    """

    made: Callable[..., gymnasium.Env[Any, Any]]
    alone: Callable[..., gymnasium.Env[Any, Any]] | None = None
    wrappers: Sequence[Any] = ()
    args: dict[str, Any] = attrs.field(factory=dict)
    as_learned: Sequence[str] = ()
    refused: dict[str, str] = attrs.field(factory=dict)

    def wrapped(self) -> gymnasium.Env[Any, Any]:
        """What is learned from, made by hand."""
        return functools.reduce(lambda env, wrapper: wrapper(env), self.wrappers, self.made(**self.args))

    def learned(self, steps: int) -> tuple[list[Row], list[Played]]:
        """The first steps, and the episodes in them, of what is learned from."""
        return played(self.wrapped(), steps)

    def episodes(self, steps: int) -> list[Played]:
        """The first episodes of the environment alone."""
        return played((self.alone or functools.partial(self.made, **self.args))(), steps)[1]


def played(env: gymnasium.Env[Any, Any], steps: int) -> tuple[list[Row], list[Played]]:
    """So many steps of an environment with action 0, and the episodes that ended in them."""
    rows: list[Row] = []
    episodes: list[Played] = []
    obs, return_, length = env.reset()[0], 0.0, 0
    for _ in range(steps):
        before = obs
        obs, reward, terminated, truncated, info = env.step(0)
        rows.append(Row(before, float(reward), bool(terminated), bool(truncated), obs))
        return_, length = return_ + float(reward), length + 1
        if terminated or truncated:
            won = info.get("is_success")
            episodes.append(Played(return_, length, None if won is None else bool(won)))
            obs, return_, length = env.reset()[0], 0.0, 0
    return rows, episodes


class Won(Points):
    """Says at the last step alone whether the game was won: every other one."""

    def info(self) -> Any:
        return {"is_success": self.games % 2 == 0} if self.t == self.games else {}


class Halved(gymnasium.RewardWrapper[Any, Any]):
    """Rewards to learn from."""

    def reward(self, reward: Any) -> float:
        return 0.5 * float(reward)


CASES = {
    "plain": Case(Points),
    "won": Case(Won),
    "time limit": Case(lambda: gymnasium.wrappers.TimeLimit(Points(), 4)),
    "reward wrapper": Case(Points, wrappers=[Halved], as_learned=["brought"]),
}
