"""Classic gym environments, in gymnasium's interface."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.envs.spaces import start_of
from flowrl.errors import ConfigError, SchemaError, closest

log = logging.getLogger("flowrl")

#: Wrappers of gym that do not change rewards.
_KEEP_REWARDS = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "ObservationWrapper", "ActionWrapper"}


def make(env_id: str, /, **args: Any) -> Any:
    """An environment of the gym package, without its checker, which fails under NumPy 2.

    Raises: ConfigError if gym is not installed, or has no such environment.
    """
    gym = _gym(env_id)
    try:
        return gym.make(env_id, **{"disable_env_checker": True, **args})
    except gym.error.UnregisteredEnv as error:
        raise ConfigError(f"no environment {env_id!r} in gym: {closest(env_id, gym.envs.registry)}") from error
    except gym.error.Error as error:
        raise ConfigError(f"gym cannot make {env_id!r}: {error}") from error


def is_one(made: Any) -> bool:
    """Whether an object looks like a classic gym environment."""
    parts = ("reset", "step", "observation_space", "action_space")
    return all(hasattr(made, part) for part in parts) and not isinstance(made, type)


class ClassicEnv(gymnasium.Env[Any, Any]):
    """A classic environment as a gymnasium one, with gymnasium's spaces.

    It takes the interface of gym 0.26 and the older one, in which `step` returns (obs, reward, done, info), `reset` the
    observation alone, and `seed` seeds. There a done episode counts as truncated if `info["TimeLimit.truncated"]` is
    set, else as terminated (T4).

    Raises: ConfigError for a space without a counterpart in gymnasium.
    """

    def __init__(self, env: Any) -> None:
        self.env = env = _without_checker(env)
        self.observation_space = _space(env.observation_space, f"the observation space of {env}")
        self.action_space = _space(env.action_space, f"the action space of {env}")
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        #: Whether none of its wrappers may change rewards (S1).
        self.keeps_rewards = all(
            any(kind.__name__ in _KEEP_REWARDS for kind in type(layer).__mro__) for layer in list(_layers(env))[:-1]
        )
        self._reset_seeds = all(_takes(layer.reset, "seed") for layer in _layers(env))
        self._has_seed = hasattr(env, "seed")
        if not self._reset_seeds and not self._has_seed:
            log.warning("%s has no seed: what happens in it cannot be repeated", env)

    def __str__(self) -> str:
        return f"<ClassicEnv{self.env}>"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode, and its info, {} in the older interface."""
        if self._reset_seeds:
            found = self.env.reset(seed=seed, **({} if options is None else {"options": options}))
        else:
            if seed is not None and self._has_seed:
                self.env.seed(seed)
            found = self.env.reset()
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict):
            return found
        return found, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """(obs, reward, terminated, truncated, info)."""
        found = self.env.step(action)
        if len(found) == 5:
            return found  # type: ignore[no-any-return]
        if len(found) != 4:
            raise SchemaError(f"{self.env}: step gave {len(found)} values, expected 5, or the 4 of the older interface")
        obs, reward, done, info = found
        cut = isinstance(info, dict) and bool(info.get("TimeLimit.truncated", False))
        if isinstance(done, list | tuple | dict):  # of each agent
            return obs, reward, False if cut else done, done if cut else False, info  # type: ignore[return-value]
        truncated = bool(done) and cut
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """The rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _gym(env_id: str) -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # hides its notice that it is unmaintained
            return importlib.import_module("gym")
    except ModuleNotFoundError as error:
        raise ConfigError(f"'gym:{env_id}' needs gym: pip install 'flowrl-engine[gym]'") from error


def _layers(env: Any) -> Iterator[Any]:
    """The layers of an environment, from the outermost wrapper inwards."""
    yield env
    while (inner := getattr(env, "env", None)) is not None:
        env = inner
        yield env


def _without_checker(env: Any) -> Any:
    """Remove the checker, which uses `np.bool8` at each step; NumPy 2 lacks it."""
    if type(env).__name__ == "PassiveEnvChecker":
        return env.env
    for layer, inner in pairwise(list(_layers(env))):
        if type(inner).__name__ == "PassiveEnvChecker":
            layer.env = inner.env
    return env


def _takes(function: Any, name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _space(space: Any, what: str) -> gymnasium.Space[Any]:
    """The same space in gymnasium."""
    if isinstance(space, gymnasium.Space):
        return space
    for kind in type(space).__mro__:
        match kind.__name__:
            case "Box":
                return spaces.Box(space.low, space.high, dtype=space.dtype)
            case "Discrete":
                return spaces.Discrete(int(space.n), start=int(start_of(space)))
            case "MultiDiscrete":
                return spaces.MultiDiscrete(np.array(space.nvec), dtype=space.dtype)
            case "MultiBinary":
                return spaces.MultiBinary(space.n)
            case "Dict":
                return spaces.Dict({key: _space(part, f"{what}[{key!r}]") for key, part in space.spaces.items()})
            case "Tuple":
                return spaces.Tuple([_space(part, f"{what}[{i}]") for i, part in enumerate(space.spaces)])
    raise ConfigError(f"{what} is {space}: expected a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")
