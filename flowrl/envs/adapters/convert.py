"""Recognises environments of other libraries, and converts them to gymnasium's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from flowrl.envs.adapters import envpool, pettingzoo
from flowrl.envs.adapters import gym as classic

#: The functions that make an environment by its name, for `gym:NAME` and so on.
LIBRARIES: dict[str, Callable[..., Any]] = {
    "gym": classic.make,
    "pettingzoo": pettingzoo.make,
    "envpool": envpool.EnvPool,
}


def converted(made: Any, num_envs: int, another: Callable[[], Any]) -> Any:
    """Convert to a `gymnasium.Env`, or to a VectorEnv of `num_envs` for several agents; `another` makes one more.

    Returns objects of unknown kinds unchanged.
    """
    if isinstance(made, gymnasium.Env | VectorEnv):
        return made
    if pettingzoo.is_one(made):
        return pettingzoo.converted(made, num_envs, another)
    return classic.ClassicEnv(made) if classic.is_one(made) else made
