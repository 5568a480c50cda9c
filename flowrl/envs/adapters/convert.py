"""Where environments of other libraries enter: recognised, and converted once, to gymnasium's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from flowrl.envs.adapters import envpool, pettingzoo
from flowrl.envs.adapters import gym as classic

#: What makes an environment by its name there, for `gym:NAME` and so on.
LIBRARIES: dict[str, Callable[..., Any]] = {
    "gym": classic.make,
    "pettingzoo": pettingzoo.make,
    "envpool": envpool.EnvPool,
}


def converted(made: Any, num_envs: int, another: Callable[[], Any]) -> Any:
    """As a `gymnasium.Env`, or a VectorEnv of `num_envs` where there are several agents; `another` makes one more.

    What is no environment of a known kind is returned as it is.
    """
    if isinstance(made, gymnasium.Env | VectorEnv):
        return made
    if pettingzoo.is_one(made):
        return pettingzoo.converted(made, num_envs, another)
    return classic.ClassicEnv(made) if classic.is_one(made) else made
