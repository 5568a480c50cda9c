"""A Minari dataset made here: CartPole cut off after 12 steps, acted at random."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest


@cache
def minari_dataset(episodes: int = 5, **storage: Any) -> Any:
    """Episodes with seeds 0, 1 ...; as Minari's buffers, since its collector would need jax."""
    from minari.data_collector import EpisodeBuffer

    env = gymnasium.make("CartPole-v1", max_episode_steps=12)
    draw, buffers = np.random.default_rng(0), []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        buffer = EpisodeBuffer(id=seed, observations=[obs], actions=[])
        ended = False
        while not ended:
            buffer.actions.append(int(draw.integers(2)))
            obs, reward, terminated, truncated, _ = env.step(buffer.actions[-1])
            for values, value in zip(
                (buffer.observations, buffer.rewards, buffer.terminations, buffer.truncations),
                (obs, reward, terminated, truncated),
            ):
                values.append(value)
            ended = terminated or truncated
        buffers.append(buffer)
    made = stored(buffers, env, **storage)
    env.close()
    return made


def stored(buffers: list[Any], env: Any, **options: Any) -> Any:
    """Buffers as a dataset in a folder of its own."""
    import minari

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):  # about what is not told
        patch.setenv("MINARI_DATASETS_PATH", tempfile.mkdtemp())
        return minari.create_dataset_from_buffers("test/cartpole-v0", buffers, env, **options)
