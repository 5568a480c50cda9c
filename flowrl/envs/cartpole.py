"""CartPole-v1 of which one sees no velocities: what a policy with a memory is for."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation

#: Where the cart is and how far the pole leans, among what CartPole-v1 shows.
POSITIONS = [0, 2]


def without_velocities(**settings: Any) -> gymnasium.Env[Any, Any]:
    """CartPole-v1 that shows where the cart is and how far the pole leans, and not how fast they move: `[2]`.

    `flowrl run ppo --env flowrl.envs.cartpole:without_velocities`; `settings` are those of CartPole-v1.

    >>> without_velocities().reset(seed=0)[0].shape
    (2,)
    """
    env = gymnasium.make("CartPole-v1", **settings)
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    seen = gymnasium.spaces.Box(space.low[POSITIONS], space.high[POSITIONS], dtype=np.float32)
    return TransformObservation(env, lambda obs: obs[POSITIONS], seen)
