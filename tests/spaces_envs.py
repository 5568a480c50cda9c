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
    """Counted in bytes, as no policy does."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)  # its own, so that others do not draw from it
        self.action_space = spaces.MultiDiscrete([2, 3], dtype=np.uint8)


class Arms(_Sampled):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


class Switches(_Sampled):
    def __init__(self) -> None:
        self.action_space = spaces.MultiBinary(3)


class Throws(gymnasium.Env[Any, Any]):
    """A ball comes to one of three hands; the reward is how near the right one throws it to the target."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space: spaces.Space[Any] = spaces.Tuple(
        [spaces.Discrete(3, start=1), spaces.Dict(reach=spaces.Box(-1, 1, (1,)), spin=spaces.MultiBinary(2))]
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._next(), {}

    def _next(self) -> Any:
        self.hand, self.target = self.np_random.integers(3), self.np_random.uniform(-1, 1)
        return np.array([*np.eye(3)[self.hand], self.target], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space, action
        hand, throw = action
        near = 1 - abs(float(throw["reach"][0]) - self.target) / 2
        reward = float(near * (hand - 1 == self.hand))
        self.t += 1
        return self._next(), reward, False, self.t == 10, {}
