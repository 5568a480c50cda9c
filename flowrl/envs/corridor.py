"""A corridor: rewards at its ends that are many steps away, and rarely found by chance."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data.types import Array


class Corridor(gymnasium.Env[Any, Any]):
    """A walker between two ends, each `length` steps from the middle, where it begins.

    - "key": the right end ends the episode, for a reward of 1 to who has been at the left end, where a key is, and of
      0.01 to others, as in Kulkarni et al. 2016, "Hierarchical deep reinforcement learning", section 4.1.
    - "cue": both ends end the episode. The first observation alone tells the one that pays 1, −1 or 1; the other one
      pays nothing.

    After 8 · `length` steps it is truncated. Actions are left and right, of which one in ten fails. The observation is
    the place, −1 to 1, and whether it has the key, or the cue, which is 0 from the second step on.

    >>> env = Corridor("cue", length=4)
    >>> place, cue = env.reset(seed=0)[0]
    >>> bool(place == 0 and abs(cue) == 1)
    True
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, task: Literal["key", "cue"] = "key", length: int = 20) -> None:
        if task not in ("key", "cue"):
            raise ValueError(f"task is {task!r}, expected 'key' or 'cue'")
        if length < 1:
            raise ValueError(f"length is {length}, expected at least 1")
        self.task, self.length = task, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin in the middle."""
        super().reset(seed=seed)
        self.place, self.steps, self.has_key = 0, 0, False
        self.cue = 2 * int(self.np_random.integers(2)) - 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Walk; `info["is_success"]` tells whether the reward is won."""
        self.steps += 1
        if self.np_random.random() >= 0.1:
            self.place = min(max(self.place + (1 if action else -1), -self.length), self.length)
        self.has_key = self.has_key or self.place == -self.length
        if self.task == "key":
            over = self.place == self.length
            won = over and self.has_key
            reward = 1.0 if won else 0.01 * over
        else:
            over = abs(self.place) == self.length
            won = over and self.place == self.cue * self.length
            reward = float(won)
        return self._obs(), reward, over, self.steps >= 8 * self.length, {"is_success": won}

    def _obs(self) -> Array:
        shown = self.has_key if self.task == "key" else self.cue * (self.steps == 0)
        return np.array([self.place / self.length, shown], np.float32)


def key_corridor(length: int = 20) -> Corridor:
    """`flowrl run hierarchy --env flowrl.envs.corridor:key_corridor`."""
    return Corridor("key", length)


def cue_corridor(length: int = 20) -> Corridor:
    """`flowrl run hierarchy --env flowrl.envs.corridor:cue_corridor --set 'manager={"recurrent": "gru"}'`."""
    return Corridor("cue", length)
