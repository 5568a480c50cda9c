"""Small environments, one for each kind of observation or action space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class _Sampled(gymnasium.Env[Any, Any]):
    """Observations are drawn from the space; episodes have 7 steps; what is not an action is refused."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space, action
        self.t += 1
        return self.observation_space.sample(), float(np.sum(action)), False, self.t == 7, {}


class Pictures(_Sampled):
    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)


class Dictionary(_Sampled):
    def __init__(self) -> None:
        parts = {"position": spaces.Box(-1, 1, (2,), np.float32), "colour": spaces.Discrete(3)}
        self.observation_space = spaces.Dict({**parts, "camera": spaces.Box(0, 255, (3, 8, 8), np.uint8)})


class Choices(_Sampled):
    def __init__(self) -> None:
        self.action_space = spaces.MultiDiscrete([2, 3])


class Switches(_Sampled):
    def __init__(self) -> None:
        self.action_space = spaces.MultiBinary(3)
