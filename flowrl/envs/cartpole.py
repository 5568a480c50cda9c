"""CartPole-v1 without velocities in the observation: a task for recurrent policies."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation

#: The entries of CartPole-v1's observation that hold the position of the cart and the angle of the pole.
POSITIONS = [0, 2]


def without_velocities(**settings: Any) -> gymnasium.Env[Any, Any]:
    """CartPole-v1 that observes the position of the cart and the angle of the pole, but no velocities: `[2]`.

    `flowrl run ppo --env flowrl.envs.cartpole:without_velocities`; `settings` are those of CartPole-v1.

    >>> without_velocities().reset(seed=0)[0].shape
    (2,)
    """
    env = gymnasium.make("CartPole-v1", **settings)
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    seen = gymnasium.spaces.Box(space.low[POSITIONS], space.high[POSITIONS], dtype=np.float32)
    return TransformObservation(env, lambda obs: obs[POSITIONS], seen)
