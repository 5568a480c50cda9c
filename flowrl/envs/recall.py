"""A test of memory: what is shown first is asked for many steps later."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data.types import Array


class Recall(gymnasium.Env[Any, Any]):
    """The first observation alone shows −1 or 1; the answer is due `delay` steps later, and ends the episode.

    The action then pays 1 if it is 0 for −1, or 1 for 1; before, actions do nothing. The observation is what is shown,
    0 from the second step on, and whether the answer is due. This is the T-maze of Bakker 2002, "Reinforcement Learning
    with Long Short-Term Memory", section 5, whose agent has no way to go but on.

    >>> env = Recall(delay=3)
    >>> shown, due = env.reset(seed=0)[0]
    >>> bool(abs(shown) == 1 and due == 0)
    True
    >>> [float(env.step(0)[0][1]) for _ in range(3)]
    [0.0, 0.0, 1.0]
    >>> _, reward, over, _, _ = env.step(int(shown > 0))
    >>> reward, over
    (1.0, True)
    >>> _, _ = env.reset()
    >>> [env.step(0)[2] for _ in range(4)]
    [False, False, False, True]
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, delay: int = 80) -> None:
        if delay < 1:
            raise ValueError(f"delay is {delay}, expected at least 1")
        self.delay = delay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Show one of both."""
        super().reset(seed=seed)
        self.steps, self.shown = 0, int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Go on; `info["is_success"]` tells whether the answer was right."""
        due = self.steps == self.delay
        right = due and int(action) == self.shown
        self.steps += 1
        return self._obs(), float(right), due, False, {"is_success": right}

    def _obs(self) -> Array:
        shown = 2 * self.shown - 1 if self.steps == 0 else 0
        return np.array([shown, self.steps == self.delay], np.float32)
