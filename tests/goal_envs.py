"""A goal environment in the manner of gymnasium-robotics: bits to be flipped until they are the ones desired."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class BitFlip(gymnasium.Env[Any, Any]):
    """Flips one of n bits a step; an episode is truncated after n steps, and terminated by success if `ends`.

    The reward is 0 for success and -1 otherwise.

    Source: Andrychowicz et al. 2017, "Hindsight experience replay", section 3.1.
    """

    def __init__(self, n: int = 4, ends: bool = True) -> None:
        bits = spaces.MultiBinary(n)
        self.n, self.ends = n, ends
        self.observation_space = spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)
        self.action_space = spaces.Discrete(n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.bits, self.goal = self.np_random.integers(2, size=(2, self.n), dtype=np.int8)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.bits[action] ^= 1
        goals = self.bits[None], self.goal[None]
        reward, terminated = self.compute_reward(*goals, {})[0], self.compute_terminated(*goals, {})[0]
        return self._obs(), float(reward), bool(terminated), self.t >= self.n, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -1.0 + (achieved_goal == desired_goal).all(-1)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal == desired_goal).all(-1) & self.ends

    def _obs(self) -> dict[str, Any]:
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}
