"""Policies that do not learn: random actions, or a user's function; for baselines, warm-up, demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from scipy.special import ndtri

from flowrl.envs.hybrid import HybridActions
from flowrl.envs.masks import check_mask, choices_of
from flowrl.envs.spaces import start_of
from flowrl.envs.spec import name_of
from flowrl.errors import ConfigError
from flowrl.networks.masks import action_mask
from flowrl.networks.sampling import Array, above_zero, uniform_choice


class FixedPolicy:
    """Base of policies without weights, which act the same in collecting and in evaluation.

    `draws` and `act` are those of an `ActMode`. There is no `learn_mode` and no state.
    """

    version = 0
    draws = 0

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.collect_mode = self.eval_mode = self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        """See `ActMode`."""
        raise NotImplementedError

    def for_env(self, action: Array) -> Array:
        """See `Policy.for_env`."""
        return action

    def value(self, obs: Any) -> Array:
        """Called only on modes that return values."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ScriptedPolicy(FixedPolicy):
    """Acts by a function from observations `[N, ...]` to actions `[N, ...]` of the action space.

    >>> upright = ScriptedPolicy(lambda obs: (obs[:, 2] + obs[:, 3] > 0).astype(int))
    >>> upright.act(np.array([[0, 0, 0.1, 0.2], [0, 0, 0.1, -0.2]]), np.empty((2, 0)), 0)
    {'action': array([1, 0])}
    """

    def __init__(self, function: Callable[[Any], Any], observation_space: Any = None, action_space: Any = None) -> None:
        super().__init__(observation_space, action_space)
        self.function = function

    def __repr__(self) -> str:
        return f"ScriptedPolicy({name_of(self.function)})"

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        return {"action": np.asarray(self.function(obs))}


class RandomPolicy(FixedPolicy):
    """Draws actions like `action_space.sample()`, but from the stream of each environment (D2).

    Discrete actions are uniform, among the valid ones if there is an action mask. Numbers are uniform between two
    bounds, exponential with one bound, and normal with none. Like other policies, it stores discrete actions counted
    from 0; the environment gets them counted from the space's start.

    Raises:
        ConfigError: the action space is of another kind.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        check_mask(observation_space, action_space)
        super().__init__(observation_space, action_space)
        known = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | HybridActions
        if not isinstance(action_space, known):
            raise ConfigError(f"RandomPolicy cannot draw actions of {action_space}; flatten it with a wrapper")
        self.draws = math.prod(action_space.shape or ())
        self._parts: list[RandomPolicy] = []
        if isinstance(action_space, HybridActions):
            self._parts = [RandomPolicy(observation_space, part) for part in action_space.parts]

    def act(self, obs: Any, noise: Array, env_steps: int) -> dict[str, Array]:
        space: Any = self.action_space
        if self._parts:
            drawn = [part.act(obs, own, env_steps)["action"] for part, own in zip(self._parts, space.split(noise))]
            joined: Array = space.join(drawn)
            return {"action": joined, "env_action": self.for_env(joined)}
        uniform = noise.reshape(-1, *space.shape)
        if isinstance(space, spaces.Box):
            return {"action": _in_box(space, uniform)}
        binary = isinstance(space, spaces.MultiBinary)
        sizes = 2 if binary else space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
        mask = action_mask(obs)
        action = (uniform * sizes).astype(np.int64) if mask is None else _valid(uniform, mask, choices_of(space))
        return {"action": action, "env_action": self.for_env(action)}

    def for_env(self, action: Array) -> Array:
        space: Any = self.action_space
        if self._parts:
            joined: Array = space.join([part.for_env(own) for part, own in zip(self._parts, space.split(action))])
            return joined
        sent: Array = (action + start_of(space)).astype(space.dtype)
        return action if isinstance(space, spaces.Box) else sent


def _valid(uniform: Array, mask: Array, sizes: list[int]) -> Array:
    """Valid choices of several discrete actions, whose masks are side by side."""
    parts = zip(uniform.reshape(len(mask), -1).T, np.split(mask, np.cumsum(sizes)[:-1], 1))
    return np.stack([uniform_choice(noise, part) for noise, part in parts], 1).reshape(uniform.shape)


def _in_box(space: spaces.Box, uniform: Array) -> Array:
    """Numbers of a box, by inversion of uniform numbers in [0, 1)."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    uniform = above_zero(uniform)
    whole = np.issubdtype(space.dtype, np.integer)
    with np.errstate(invalid="ignore"):  # of infinite bounds
        between = low + uniform * (high - low + whole)
    action = np.select(
        [space.bounded_below & space.bounded_above, space.bounded_below, space.bounded_above],
        [between, low - np.log1p(-uniform), high + np.log(uniform)],
        ndtri(uniform),
    )
    rounded: Array = np.floor(action) if whole else action
    # Rounding to a shorter dtype may leave the bounds.
    return rounded.clip(low, high).astype(space.dtype)
