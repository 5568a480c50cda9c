"""A policy whose behaviour a test can predict, rows to learn from, and weights that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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


def shake(policy: Any) -> Any:
    """Make the weights so large that returns differ from action to action; returns the policy."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for network in (policy.model, policy.target):
            for parameter in network.parameters():
                parameter += 0.5 * torch.randn(parameter.shape, generator=draw)
    return policy


class ScriptedPolicy:
    """Acts with `action(obs, noise, env_steps)`, an array or a dict of columns.

    Values are the observation's last number; of a nested one that of its last column.
    """

    def __init__(self, action: Any = None, *, draws: int = 0, with_value: bool = False) -> None:
        self.version = 0
        self.draws, self.with_value = draws, with_value
        self._action = action or (lambda obs, noise, env_steps: np.zeros(len(obs), np.int64))
        self.collect_mode = self.eval_mode = self
        self.calls = 0

    def act(self, obs: Any, noise: np.ndarray, env_steps: int) -> dict[str, np.ndarray]:
        self.calls += 1
        drawn = self._action(obs, noise, env_steps)
        columns = drawn if isinstance(drawn, dict) else {"action": drawn}
        if self.with_value:
            columns["value"] = self.value(obs).copy()
        return columns

    def value(self, obs: Any) -> np.ndarray:
        while isinstance(obs, Batch):
            obs = obs[list(obs)[-1]]
        return obs[:, -1]

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version, self.calls = state["version"], state["calls"]
