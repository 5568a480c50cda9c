"""Goal environments, in the interface of gymnasium-robotics, whose goals are rarely reached by chance.

Observations are dictionaries of `observation`, `achieved_goal` and `desired_goal`. For goals `[B, ...]`,
`compute_reward` and `compute_terminated` give the reward of a step that achieves them, and whether it ends the episode.

A success has reward 1 and ends the episode, all other steps have reward 0. So an episode returns 1 or 0, and the mean
return is the success rate; the discount favors early success. In the papers, each step before success costs 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import NormalizeReward

from flowrl.data.columns import GOALS
from flowrl.data.types import Array
from flowrl.envs.wrappers import layers

Observation = dict[str, Array]


class GoalEnv(gymnasium.Env[Any, Any]):
    """Base of environments with a state and a goal; a subclass defines `_begin` and `_move`.

    An episode is truncated after `max_steps` steps.
    """

    def __init__(self, observation: spaces.Space[Any], goal: spaces.Space[Any], max_steps: int) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}, expected at least 1")
        self.observation_space = spaces.Dict(observation=observation, achieved_goal=goal, desired_goal=goal)
        self.max_steps = max_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        """Begin an episode with a new state and a new goal."""
        super().reset(seed=seed)
        self.steps = 0
        self.at, self.goal = self._begin()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move; `info["is_success"]` tells whether the goal is reached."""
        self.steps += 1
        self.at = self._move(action)
        goals, info = (self.at[None], self.goal[None]), {"is_success": self._reached(self.at, self.goal).item()}
        reward, terminated = self.compute_reward(*goals, info), self.compute_terminated(*goals, info)
        return self._obs(), float(reward[0]), bool(terminated[0]), self.steps >= self.max_steps, info

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """1 where a goal is achieved, else 0: goals `[B, ...]` in, `[B]` out."""
        return self._reached(achieved_goal, desired_goal).astype(np.float64)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """Whether a goal is achieved: goals `[B, ...]` in, `[B]` out."""
        return self._reached(achieved_goal, desired_goal)

    def _begin(self) -> tuple[Array, Array]:
        raise NotImplementedError

    def _move(self, action: Any) -> Array:
        raise NotImplementedError

    def _reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        raise NotImplementedError

    def _obs(self) -> Observation:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}


class BitFlipping(GoalEnv):
    """Flip one bit per step until they equal the goal; at most as many steps as bits.

    Every goal is reachable. Random flips of 10 bits reach it in about 1 of 100 episodes.

    Source: Andrychowicz et al. 2017, "Hindsight experience replay", section 3.1.
    """

    def __init__(self, bits: int = 10) -> None:
        super().__init__(spaces.MultiBinary(bits), spaces.MultiBinary(bits), max_steps=bits)
        self.action_space = spaces.Discrete(bits)

    def _begin(self) -> tuple[Array, Array]:
        start, goal = self.np_random.integers(2, size=(2, self.max_steps), dtype=np.int8)
        return start, goal

    def _move(self, action: Any) -> Array:
        flipped = self.at.copy()
        flipped[action] ^= 1
        return flipped

    def _reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        return np.asarray((achieved_goal == desired_goal).all(-1))


class PointReach(GoalEnv):
    """A point moves in the square from -1 to 1 until it is less than `radius` away from the goal.

    An action `[2]` moves it by at most `speed` along each axis, and never out of the square.
    """

    def __init__(self, radius: float = 0.01, speed: float = 0.1, max_steps: int = 50) -> None:
        for name, value in (("radius", radius), ("speed", speed)):
            if not value > 0:
                raise ValueError(f"{name} is {value}, expected more than 0")
        square = spaces.Box(-1, 1, (2,), np.float32)
        super().__init__(square, square, max_steps)
        self.action_space = square
        self.radius, self.speed = radius, speed

    def _begin(self) -> tuple[Array, Array]:
        start, goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return start, goal

    def _move(self, action: Any) -> Array:
        moved: Array = np.clip(self.at + self.speed * np.clip(action, -1, 1), -1, 1).astype(np.float32)
        return moved

    def _reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        return np.asarray(np.linalg.norm(achieved_goal - desired_goal, axis=-1) < self.radius)


def bit_flipping(bits: int = 10) -> BitFlipping:
    """`flowrl run her_dqn --env flowrl.envs.goals:bit_flipping --env-arg bits=15`.

    >>> env = bit_flipping(bits=8)
    >>> obs, _ = env.reset(seed=5)
    >>> wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
    >>> [env.step(bit)[1:3] for bit in wrong][-2:]
    [(0.0, False), (1.0, True)]
    """
    return BitFlipping(bits)


def point_reach(radius: float = 0.01, speed: float = 0.1, max_steps: int = 50) -> PointReach:
    """`flowrl run her_sac --env flowrl.envs.goals:point_reach`.

    >>> goals = np.array([[0, 0], [0.005, 0.005], [0.01, 0.01]])
    >>> point_reach().compute_reward(goals, np.zeros((3, 2)), {})
    array([1., 1., 0.])
    """
    return PointReach(radius, speed, max_steps)


OfGoals: TypeAlias = Callable[[Array, Array, dict[str, Any]], Array]
"""A function of achieved goals, desired goals, `[B, ...]` each, and an info, to numbers or flags `[B]`."""

#: The methods of a goal environment in gymnasium-robotics.
METHODS = ("compute_reward", "compute_terminated")
_CHANGE_REWARDS = (gymnasium.RewardWrapper, NormalizeReward)


class GoalFunctions(NamedTuple):
    """The goal functions of an environment."""

    compute_reward: OfGoals
    compute_terminated: OfGoals


def never_ends(achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
    """The `compute_terminated` of environments without one: no goal ends an episode, so the step's own end holds."""
    return np.zeros(len(achieved_goal), np.bool_)


def goal_functions(env: Any) -> GoalFunctions | str:
    """The goal functions of the outermost layer of an environment that has them; or a text that says what is missing.

    Without `compute_terminated`, as in panda-gym, steps end their episodes whatever their goal: see `never_ends`.

    A wrapper that changes rewards must define its own `compute_reward`, or relabeled steps would have rewards in other
    units than real ones.
    """
    found = [next((layer for layer in layers(env) if hasattr(layer, name)), None) for name in METHODS]
    space = _space(env)
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
    lacking = [f"{part!r} in its observations" for part in GOALS if part not in parts]
    lacking += [f"method {METHODS[0]}"] if found[0] is None else []
    if lacking:
        return f"has no {', no '.join(lacking)}"
    inner = _space(found[0])
    if any(inner[part] != parts[part] for part in GOALS):
        return "has a wrapper around it that changes goals, and has no compute_reward of its own"
    for layer in layers(env):
        if layer is found[0]:
            break
        if isinstance(layer, _CHANGE_REWARDS):
            return f"has a {type(layer).__name__} around it, which changes rewards and has no compute_reward of its own"
    return GoalFunctions(*(getattr(layer, name, never_ends) for layer, name in zip(found, METHODS)))


def _space(env: Any) -> Any:
    """Of the observations of one environment."""
    return env.single_observation_space if isinstance(env, VectorEnv | VectorWrapper) else env.observation_space
