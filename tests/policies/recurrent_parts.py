"""Small policies with a memory, and experience for them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from flowrl.data import Batch
from flowrl.policies import RecurrentPPOPolicy

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)


def make(kind: Any = RecurrentPPOPolicy, **settings: Any) -> Any:
    return kind(OBSERVATIONS, ACTIONS, **{"hidden": (8,), "units": 6, "seed": 3, "device": "cpu", **settings})


def steps(count: int = 7, envs: int = 3, seed: int = 0) -> Batch:
    """Experience `[count, envs]` in which episodes end here and there."""
    draw = np.random.default_rng(seed)
    ended = draw.random((2, count, envs)) < 0.15
    obs = draw.normal(size=(count + 1, envs, 4)).astype(np.float32)
    over = np.logical_or(*ended)
    episode = np.vstack([np.zeros((1, envs), int), over.cumsum(0)[:-1]])
    return Batch(
        obs=obs[:-1], next_obs=obs[1:], terminated=ended[0], truncated=ended[1], episode_id=episode,
        reward=draw.normal(size=(count, envs)), action=draw.integers(3, size=(count, envs)),
        state=np.zeros((count, envs, 12), np.float32),
    )  # fmt: skip
