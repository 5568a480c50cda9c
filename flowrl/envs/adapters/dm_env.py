"""dm_env, the interface of bsuite's and dm_control's environments, as gymnasium's."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.errors import ConfigError, closest

log = logging.getLogger("flowrl")

#: Where libraries keep the environment inside of one, or the task that has its generator.
_INNER = ("_env", "env", "_environment", "_task", "task")


def make(name: str, /, **args: Any) -> Any:
    """An environment of bsuite or of dm_control's suite: `bsuite/catch/0`, `dm_control/cartpole/swingup`.

    Arguments of bsuite are none; those of dm_control are those of `suite.load`.

    Raises: ConfigError if the library is not installed, or has no such environment.
    """
    library, _, rest = name.partition("/")
    if library not in ("bsuite", "dm_control"):
        raise ConfigError(
            f"'dm_env:{name}': expected bsuite/ID, as in dm_env:bsuite/catch/0, or dm_control/DOMAIN/TASK, as in "
            "dm_env:dm_control/cartpole/swingup; name others by a function that makes one, 'module:function'"
        )
    try:
        module = importlib.import_module({"bsuite": "bsuite.sweep", "dm_control": "dm_control.suite"}[library])
    except ModuleNotFoundError as error:
        install = f"pip install {library.replace('_', '-')}"
        raise ConfigError(f"'dm_env:{name}' needs {library}: {install} ({error})") from error
    known = module.SWEEP if library == "bsuite" else ["/".join(pair) for pair in module.ALL_TASKS]
    if rest not in known:
        raise ConfigError(f"no environment {rest!r} in {library}: {closest(rest, known)}")
    if library == "bsuite":
        return importlib.import_module("bsuite").load_from_id(rest, **args)
    render_mode = args.pop("render_mode", None)
    return DmEnv(module.load(*rest.split("/"), **args), render_mode)


def is_one(made: Any) -> bool:
    """Whether an object looks like a dm_env environment."""
    parts = ("reset", "step", "action_spec", "observation_spec", "reward_spec", "discount_spec", "close")
    return not isinstance(made, type) and all(callable(getattr(made, part, None)) for part in parts)


class DmEnv(gymnasium.Env[Any, Any]):
    """A dm_env environment as a gymnasium one.

    An episode ends at a LAST step: terminated if its discount is 0, else truncated, as `dm_env.truncation` says it
    (T4). `info["discount"]` is the discount of each step; estimators use the plan's gamma. A seed goes to each
    generator of NumPy that the environment, or one inside it, holds, since dm_env has no seeds.

    Raises: ConfigError for a spec without a counterpart in gymnasium, and for several rewards.

    Source: dm_env 1.6, docs/index.md.
    """

    def __init__(self, env: Any, render_mode: str | None = None) -> None:
        self.env = env
        self._name = type(env).__name__
        self.observation_space = _space(env.observation_spec(), f"the observation of {self._name}")
        self._action_spec = env.action_spec()
        self.action_space = _space(self._action_spec, f"the action of {self._name}", acts=True)
        for part, spec in (("reward_spec", env.reward_spec()), ("discount_spec", env.discount_spec())):
            if _space(spec, f"{part} of {self._name}").shape not in ((), (1,)):
                raise ConfigError(f"{part} of {self._name} is {spec}: expected one number; wrap the environment so")
        films = hasattr(env, "physics")
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 30} if films else {"render_modes": []}
        self.render_mode = render_mode
        self._generators = list(_generators(env))
        self._told = False
        if not self._generators:
            log.warning("%s has no generator of random numbers to seed: what is random in it cannot be repeated", self)

    def __str__(self) -> str:
        return f"<DmEnv<{self._name}>>"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode."""
        super().reset(seed=seed)
        if seed is not None:
            for generator, each in zip(self._generators, np.random.SeedSequence(seed).spawn(len(self._generators))):
                _seed(generator, each)
        return _observed(self.env.reset().observation, self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """(obs, reward, terminated, truncated, info)."""
        found = self.env.step(_acted(action, self._action_spec))
        discount = 1.0 if found.discount is None else np.asarray(found.discount, np.float64).item()
        reward = 0.0 if found.reward is None else np.asarray(found.reward, np.float64).item()
        over = bool(found.last())
        if not over and discount != 1 and not self._told:
            self._told = True
            log.warning(
                "%s gives a discount of %g inside an episode: values use the plan's gamma alone; the discount is in "
                "info['discount']", self, discount
            )  # fmt: skip
        obs = _observed(found.observation, self.observation_space)
        return obs, reward, over and discount == 0, over and discount != 0, {"discount": discount}

    def render(self) -> Any:
        """A picture, of an environment with MuJoCo's `physics`."""
        return self.env.physics.render(height=240, width=320, camera_id=0) if self.render_mode else None

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _space(spec: Any, what: str, *, acts: bool = False) -> gymnasium.Space[Any]:
    """The space of what a spec describes."""
    if isinstance(spec, Mapping):
        return spaces.Dict({key: _space(part, f"{what}[{key!r}]", acts=acts) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return spaces.Tuple([_space(part, f"{what}[{i}]", acts=acts) for i, part in enumerate(spec)])
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if "DiscreteArray" in kinds:
        return spaces.Discrete(int(spec.num_values))
    if "Array" not in kinds or "StringArray" in kinds:
        raise ConfigError(f"{what} is {spec!r}, expected a dm_env spec of numbers: leave it out with a wrapper")
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.Box(0, 1, spec.shape, np.bool_)
    if dtype.kind not in "iuf":
        raise ConfigError(f"{what} is {spec!r}, expected a dm_env spec of numbers: leave it out with a wrapper")
    bounds: tuple[Any, Any] = (-np.inf, np.inf)
    if bounded := "BoundedArray" in kinds:
        bounds = spec.minimum, spec.maximum
    elif dtype.kind != "f":
        bounds = np.iinfo(dtype).min, np.iinfo(dtype).max
    low, high = (np.broadcast_to(np.asarray(each, dtype), spec.shape) for each in bounds)
    if acts and bounded and dtype.kind in "iu":
        count = high.astype(np.int64) - low + 1
        if not spec.shape:
            return spaces.Discrete(int(count), start=int(low))
        return spaces.MultiDiscrete(count, start=low.astype(np.int64))
    return spaces.Box(low, high, spec.shape, dtype.type)


def _observed(value: Any, space: gymnasium.Space[Any]) -> Any:
    """An observation as a member of its space, in arrays that the environment cannot overwrite."""
    if isinstance(space, spaces.Dict):
        return {key: _observed(value[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_observed(part, each) for part, each in zip(value, space.spaces, strict=True))
    return np.int64(value) if isinstance(space, spaces.Discrete) else np.array(value, space.dtype)


def _acted(action: Any, spec: Any) -> Any:
    """An action in the form and the dtype of its spec."""
    if isinstance(spec, Mapping):
        return {key: _acted(action[key], part) for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        return type(spec)(_acted(part, each) for part, each in zip(action, spec, strict=True))
    return np.asarray(action, spec.dtype)[()]


def _generators(env: Any) -> Iterator[Any]:
    """The generators that an environment and those inside it hold, each once."""
    found: dict[int, Any] = {}
    layers, seen = [env], set[int]()
    while layers:
        layer = layers.pop()
        held = {} if id(layer) in seen else layer.__dict__
        seen.add(id(layer))
        found |= {id(each): each for each in held.values() if isinstance(each, _GENERATORS)}
        layers += [held[name] for name in _INNER if name in held]
    yield from found.values()


_GENERATORS = (np.random.RandomState, np.random.Generator)


def _seed(generator: Any, seed: np.random.SeedSequence) -> None:
    if isinstance(generator, np.random.RandomState):
        generator.seed(seed.generate_state(4))
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
