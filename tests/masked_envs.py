"""Environments with action masks, in which an action that is not valid is an error."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class InvalidAction(Exception):
    """Somebody chose what the mask forbids."""


ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(5),
    "shifted": spaces.Discrete(5, start=3),
    "multi": spaces.MultiDiscrete([4, 3]),
    "binary": spaces.MultiBinary(3),
}


class Doors(gymnasium.Env[Any, Any]):
    """Some doors are open, behind each is a prize; the observation says in which of two orders the prizes are.

    The reward is how much the prize is short of the best one behind an open door, so the best return is 0. Every
    episode has `length` steps or one less; half of them terminate, and then the last observation leaves no action.

    `where`: the mask is in the observation, or in `info`. `stuck`: from that step on no door is open.
    """

    def __init__(self, kind: str = "discrete", where: str = "obs", length: int = 8, stuck: int = -1) -> None:
        self.kind, self.where, self.length, self.stuck = kind, where, length, stuck
        self.action_space = ACTIONS[kind]
        self.sizes = {"multi": [4, 3], "binary": [2] * 3}.get(kind, [5])
        seen = spaces.Box(0, 1, (2,), np.float32)
        mask = spaces.Box(0, 1, (sum(self.sizes),), np.int8)
        self.observation_space = spaces.Dict(seen=seen, action_mask=mask) if where == "obs" else seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.terminates = 0, bool(self.np_random.integers(2))
        self.end = self.length - int(self.np_random.integers(2))
        return self._arrive()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choices = np.atleast_1d(action) - (3 if self.kind == "shifted" else 0)
        reward = 0.0
        for choice, open_ in zip(choices, np.split(self.mask, np.cumsum(self.sizes)[:-1])):
            if not open_[choice]:
                raise InvalidAction(f"{action} with the mask {self.mask}")
            prizes = np.linspace(0, 1, len(open_))[:: 1 - 2 * self.reversed]
            reward += float(prizes[choice] - prizes[open_ > 0].max()) / len(self.sizes)
        self.t += 1
        over, dead = self.t == self.end, self.t == self.end and self.terminates
        return self._arrive(dead), reward, dead, over and not dead, self._info

    def _arrive(self, dead: bool = False) -> Any:
        self.reversed = int(self.np_random.integers(2))
        parts = [self.np_random.random(size) < 0.5 for size in self.sizes]
        for part in parts:
            part[self.np_random.integers(len(part))] = True
        self.mask = np.concatenate(parts).astype(np.int8) * (not dead and self.t != self.stuck)
        seen = np.array([self.reversed, 1 - self.reversed], np.float32)
        self._info = {} if self.where == "obs" else {"action_mask": self.mask}
        obs = {"seen": seen, "action_mask": self.mask} if self.where == "obs" else seen
        return (obs, self._info) if self.t == 0 else obs
