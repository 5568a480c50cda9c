"""What an environment of goals says of goals other than its own: hindsight asks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gymnasium
from gymnasium.wrappers import NormalizeReward

from flowrl.data.arrays import Array
from flowrl.data.columns import GOALS
from flowrl.envs.wrappers import layers

OfGoals: TypeAlias = Callable[[Array, Array, dict[str, Any]], Array]
"""From goals achieved and goals desired, `[B, ...]` each, and an info, to one number or flag each, `[B]`."""

#: Its methods, by the names that gymnasium-robotics gives them.
METHODS = ("compute_reward", "compute_terminated")
_CHANGE_REWARDS = (gymnasium.RewardWrapper, NormalizeReward)


class GoalFunctions(NamedTuple):
    """An environment's own functions of goals."""

    compute_reward: OfGoals
    compute_terminated: OfGoals


def goal_functions(env: Any) -> GoalFunctions | str:
    """Those of an environment, of the outermost layer that has them; or, in words, what it lacks.

    A wrapper that changes rewards must have a `compute_reward` of its own, for relabelled steps would be paid in other
    units than real ones.
    """
    found = [next((layer for layer in layers(env) if hasattr(layer, name)), None) for name in METHODS]
    space = getattr(env, "single_observation_space", env.observation_space)  # of a VectorEnv, and of one environment
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
    lacking = [f"{part!r} in its observations" for part in GOALS if part not in parts]
    lacking += [f"method {name}" for name, layer in zip(METHODS, found) if layer is None]
    if lacking:
        return f"has no {', no '.join(lacking)}"
    inner = getattr(found[0], "single_observation_space", found[0].observation_space)  # type: ignore[union-attr]
    if any(inner[part] != parts[part] for part in GOALS):
        return "has a wrapper around it that changes goals, and has no compute_reward of its own"
    for layer in layers(env):
        if layer is found[0]:
            break
        if isinstance(layer, _CHANGE_REWARDS):
            return f"has a {type(layer).__name__} around it, which changes rewards and has no compute_reward of its own"
    return GoalFunctions(*(getattr(layer, name) for layer, name in zip(found, METHODS)))
