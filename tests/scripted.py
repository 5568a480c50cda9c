"""A policy whose behaviour a test can predict, and rows to learn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.data import Batch


def transitions(n: int, seed: int = 0) -> Batch:
    """Rows `[n]` of CartPole's shape to learn from."""
    draw = np.random.default_rng(seed)
    return Batch(
        obs=draw.normal(size=(n, 4)).astype(np.float32),
        action=draw.integers(2, size=n),
        reward=draw.normal(size=n),
        next_obs=draw.normal(size=(n, 4)).astype(np.float32),
        terminated=draw.random(n) < 0.3,
        truncated=draw.random(n) < 0.3,
    )


class ScriptedPolicy:
    """Acts with `action(obs, noise, env_steps)`; values are the observation's last number."""

    def __init__(self, action: Any = None, *, draws: int = 0, with_value: bool = False) -> None:
        self.version = 0
        self.draws, self.with_value = draws, with_value
        self._action = action or (lambda obs, noise, env_steps: np.zeros(len(obs), np.int64))
        self.collect_mode = self.eval_mode = self
        self.calls = 0

    def act(self, obs: np.ndarray, noise: np.ndarray, env_steps: int) -> dict[str, np.ndarray]:
        self.calls += 1
        columns = {"action": self._action(obs, noise, env_steps)}
        if self.with_value:
            columns["value"] = obs[:, -1].copy()
        return columns

    def value(self, obs: np.ndarray) -> np.ndarray:
        return obs[:, -1]
