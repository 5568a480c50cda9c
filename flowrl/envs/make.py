"""From what a user names (an id, `module:factory`, a callable) to environments and their manager."""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from flowrl.envs.manager import EnvManager
from flowrl.envs.vector import VectorEnvManager
from flowrl.envs.wrappers import without_order_enforcing
from flowrl.errors import ConfigError, did_you_mean

Env = gymnasium.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]


def make_env(spec: str | Callable[..., Env], env_args: Mapping[str, Any] | None = None) -> Env:
    """One environment, from a gymnasium id, a `module:factory` string, or a callable that returns it.

    An id is made with its TimeLimit and without gymnasium's checks at every step; `env_args` go to
    `gymnasium.make` or to the factory. Raises: ConfigError for an id, module, factory or argument that there
    is not, or that the environment refuses.

    >>> make_env("CartPole-v1").spec.max_episode_steps
    500
    >>> make_env("CartPool-v1")
    Traceback (most recent call last):
    flowrl.errors.ConfigError: no environment 'CartPool-v1' in gymnasium: did you mean 'CartPole-v1'? ...
    """
    return _checked(_make(spec, dict(env_args or {})), spec)


def make_manager(
    spec: str | Callable[..., Env | AnyVectorEnv] | AnyVectorEnv,
    num_envs: int,
    env_args: Mapping[str, Any] | None = None,
) -> EnvManager | VectorEnvManager:
    """A manager of `num_envs` environments, not launched yet.

    `spec` is what `make_env` takes, called once per environment; or a gymnasium VectorEnv, or a factory of
    one, which is called once, and with `num_envs` if it has such an argument.

    Raises: ConfigError as `make_env` does, for less than one environment, and for a VectorEnv of other size.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}: a manager needs at least one environment")
    args = dict(env_args or {})
    if isinstance(spec, VectorEnv):
        if args:
            raise ConfigError(f"env_args {args} come too late: {_name(spec)} is made already")
        return _vector_manager(spec, num_envs, spec)
    factory = _factory(spec) if isinstance(spec, str) else spec
    if callable(factory) and "num_envs" in _parameters(factory):
        args.setdefault("num_envs", num_envs)
    first = _make(spec, args)
    if isinstance(first, VectorEnv):
        return _vector_manager(first, num_envs, spec)
    envs = [_checked(first, spec)]
    try:
        envs.extend(_checked(_make(spec, args), spec) for _ in range(num_envs - 1))
        return EnvManager(envs)
    except BaseException:
        for env in envs:
            env.close()
        raise


def _vector_manager(env: AnyVectorEnv, num_envs: int, spec: object) -> VectorEnvManager:
    if env.num_envs != num_envs:
        raise ConfigError(f"{_name(spec)} holds {env.num_envs} environments, but num_envs={num_envs}")
    return VectorEnvManager(env)


def _checked(made: object, spec: object) -> Env:
    if isinstance(made, gymnasium.Env):
        return made
    raise ConfigError(f"{_name(spec)} made a {type(made).__name__}, expected a gymnasium.Env")


def _make(spec: object, args: dict[str, Any]) -> Any:
    factory = _factory(spec) if isinstance(spec, str) else spec
    if isinstance(factory, gymnasium.Env):
        raise ConfigError(f"{_name(spec)} is one environment: pass a callable that makes a new one each time")
    if factory is not None and not callable(factory):
        raise ConfigError(f"{spec!r} is no environment: pass a gymnasium id, 'module:factory' or a callable")
    try:
        if factory is not None:
            return factory(**args)
        # The passive checker costs time at every step; here it is off unless asked for.
        return without_order_enforcing(gymnasium.make(str(spec), **{"disable_env_checker": True, **args}))
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ConfigError(f"no environment {spec!r} in gymnasium: {_closest(str(spec))}") from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"gymnasium cannot make {spec!r}: {error}") from error
    except (TypeError, ValueError, KeyError, AssertionError) as error:
        if not args:
            if isinstance(spec, str) and factory is not None:
                at = traceback.extract_tb(error.__traceback__)[-1]
                where = "" if at.filename == __file__ else f"{at.filename}:{at.lineno}: "
                raise ConfigError(
                    f"{spec!r} fails when it is called without arguments: {where}{type(error).__name__}: {error}"
                ) from error
            raise
        unknown = _unknown(args, _parameters(factory) if factory is not None else _arguments(str(spec)))
        raise ConfigError(f"{_name(spec)} refuses env_args {unknown or f'{args}: {error}'}") from error


def _factory(spec: str) -> Callable[..., Any] | None:
    """What `module:name` names; None for a gymnasium id, which may be `module:Id-v0` too."""
    module_name, colon, name = spec.partition(":")
    if not colon:
        return None
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{spec!r}: {error}. Expected 'module:factory' or a gymnasium id") from error
    factory: Callable[..., Any] | None = getattr(module, name, None)
    if factory is None and name not in gymnasium.registry:
        there = [found for found, value in vars(module).items() if callable(value) and found[0] != "_"]
        close = difflib.get_close_matches(name, there, n=5)
        raise ConfigError(f"module {module_name!r} has no environment {name!r}: {_similar(name, close)}")
    return factory


def _closest(env_id: str) -> str:
    names = list(gymnasium.registry)
    # The registry is long, and a bare name or a wrong version should still find its relatives.
    stem = env_id.rpartition("-v")[0] or env_id
    relatives = [name for name in names if name.rpartition("-v")[0] == stem]
    close = relatives or difflib.get_close_matches(env_id, names, n=5)
    return _similar(env_id, close, "; gymnasium.pprint_registry() lists them")


def _similar(name: str, close: list[str], otherwise: str = "") -> str:
    return did_you_mean(name, close) if close else f"no name there is like it{otherwise}"


def _arguments(env_id: str) -> list[str]:
    """What `gymnasium.make` takes for an id; empty where that is not known."""
    registered = gymnasium.registry.get(env_id.rpartition(":")[2])
    entry = None if registered is None else registered.entry_point
    known = _parameters(load_env_creator(entry) if isinstance(entry, str) else entry)
    return [*known, "max_episode_steps", "disable_env_checker"] if known else []


def _unknown(args: Mapping[str, Any], known: list[str]) -> str | None:
    """The first argument that is not known, with the closest one that is."""
    names = [name for name in args if known and name not in known]
    return f"{names[0]!r}: {did_you_mean(names[0], known)}" if names else None


def _parameters(factory: object) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in named]


def _name(spec: object) -> str:
    return repr(spec) if isinstance(spec, str) else getattr(spec, "__qualname__", repr(spec))
