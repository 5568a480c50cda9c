"""From the name of an environment to the callable that makes it, with errors that help to find it."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from flowrl.envs.adapters.convert import LIBRARIES
from flowrl.envs.wrappers import without_order_enforcing
from flowrl.errors import ConfigError, closest, did_you_mean
from flowrl.frames import one_line

#: Modules that register ids which begin so when they are imported.
_REGISTRARS = {
    "ale_py": r"ALE/|\w+(NoFrameskip|Deterministic)-v\d|\w+-ram(NoFrameskip|Deterministic)?-v\d",
    "gymnasium_robotics": "Fetch|Hand|Adroit|FrankaKitchen|PointMaze|AntMaze",
    "highway_env": "(highway|merge|roundabout|parking|intersection|racetrack|exit|two-way|u-turn|lane-keeping)-",
    "lbforaging": "Foraging-",
    "metaworld": "Meta-World/",
    "minigrid": "MiniGrid-|BabyAI-",
    "minihack": "MiniHack-",
    "miniworld": "MiniWorld-",
    "mo_gymnasium": "mo-|deep-sea-treasure|resource-gathering|four-room-|fruit-tree-|minecart-",
    "nle": "NetHack",
    "panda_gym": "Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)",
    "popgym": "popgym-",
}
#: What installs them, where it is not the package of their name.
_INSTALL = {"minigrid": "pip install 'flowrl-engine[minigrid]'", "ale_py": "pip install 'flowrl-engine[atari]'"}
#: What flowrl takes by another name.
_OTHER_NAMES = {
    "dm_control/": "dm_control's environments are dm_env:dm_control/DOMAIN/TASK, as in dm_env:dm_control/walker/walk",
    "bsuite/": "bsuite's environments are dm_env:bsuite/ID, as in dm_env:bsuite/catch/0",
}


def factory_of(spec: object) -> Callable[..., Any]:
    """The callable that makes the environment that `spec` names; it is not called yet.

    Raises: ConfigError if the module or factory does not exist.
    """
    if not isinstance(spec, str):
        assert callable(spec), spec
        return spec
    module_name, colon, name = spec.partition(":")
    if not colon:
        return partial(_from_gymnasium, spec)
    if module_name in LIBRARIES:
        return partial(LIBRARIES[module_name], name)
    module = import_module(module_name, repr(spec), "'module:factory' or a gymnasium id")
    factory: Callable[..., Any] | None = getattr(module, name, None)
    if factory is not None:
        return factory
    if name in gymnasium.registry:  # the module registers it
        return partial(_from_gymnasium, spec)
    if module_name == "__main__" or "<locals>" in name:
        raise ConfigError(
            f"{spec!r} is in no module, but in a script, a notebook or a function: pass the environment itself, env="
            f"{name.rpartition('.')[2]}, or move it into a module and name that, 'module:{name.rpartition('.')[2]}'"
        )
    there = [found for found, value in vars(module).items() if callable(value) and found[0] != "_"]
    raise ConfigError(
        f"module {module_name!r} has no environment {name!r}: {closest(name, [*there, *gymnasium.registry])}"
    )


def function_of(path: str, what: str) -> Callable[..., Any]:
    """The function that `module:function` names, as the value of the setting `what`.

    Raises: ConfigError: it is no such path, or the module or the function does not exist.
    """
    module_name, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(f"{what}={path!r}: expected 'module:function'")
    there = vars(import_module(module_name, f"{what}={path!r}", "'module:function'"))
    found: Callable[..., Any] | None = there.get(name)
    if not callable(found):
        known = [each for each, value in there.items() if callable(value) and each[0] != "_"]
        raise ConfigError(f"{what}={path!r}: module {module_name!r} has no function {name!r}: {closest(name, known)}")
    return found


def call(factory: Callable[..., Any], args: Mapping[str, Any], spec: object) -> Any:
    """Call the factory that `spec` names with copies of these arguments.

    Raises: ConfigError if the id does not exist, the environment rejects an argument, or one cannot be copied. An error
    of a callable without arguments keeps its type.
    """
    factory, args = own_arguments(factory), own(dict(args), spec)
    try:
        return factory(**args)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ConfigError(f"no environment {spec!r} in gymnasium: {_closest(str(spec))}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"gymnasium cannot make {spec!r}: {_extra(str(spec)) or error}") from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"gymnasium cannot make {spec!r}: {error}") from error
    except SystemExit as error:  # which would end a command as if all was well
        raise ConfigError(f"{name_of(spec)} leaves the program when it is made, by {error!r}: let it raise") from error
    except (TypeError, ValueError, KeyError, AssertionError) as error:
        if not args:
            if isinstance(spec, str) and ":" in spec:
                raise ConfigError(f"{spec!r} fails when it is called without arguments: {one_line(error)}") from error
            raise
        unknown = _unknown(args, parameters(factory) or _arguments(str(spec)))
        raise ConfigError(f"{name_of(spec)} refuses env_args {unknown or f'{args}: {one_line(error)}'}") from error


def own(args: Any, spec: object) -> Any:
    """A copy for one environment, which may take apart what it gets (R1). Raises: ConfigError: it cannot be copied."""
    try:
        return copy.deepcopy(args)
    except Exception as error:
        raise ConfigError(
            f"{name_of(spec)}: the arguments {args} cannot be copied ({type(error).__name__}: {error}), and each "
            "environment gets a copy of its own: pass a function that makes or finds what cannot be copied, and then "
            "the environment"
        ) from error


def own_arguments(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A `partial` with copies of its arguments; anything else unchanged."""
    if not isinstance(factory, partial):
        return factory
    args, kwargs = own((factory.args, factory.keywords), factory.func)
    return partial(factory.func, *args, **kwargs)


def is_native(spec: object) -> bool:
    """Whether `spec` is an id with a vectorized implementation."""
    if not isinstance(spec, str):
        return False
    factory_of(spec)  # a module may register the id
    module, _, name = spec.rpartition(":")
    found = None if module in LIBRARIES else gymnasium.registry.get(name)
    return found is not None and found.vector_entry_point is not None and not found.additional_wrappers


def native(env_id: str, num_envs: int) -> Callable[..., VectorEnv[Any, Any, Any]]:
    """The callable that makes the vectorized implementation of an id."""
    return partial(_natively_from_gymnasium, env_id, num_envs)


def import_module(name: str, wanted: str, expected: str) -> Any:
    """Import a module. Raises: ConfigError if it does not exist, or fails, with its line that does."""
    if not all(name.split(".")):
        raise ConfigError(f"{wanted} names no module. Expected {expected}")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ModuleNotFoundError) or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{wanted}: {name} fails when it is imported: {one_line(error)}") from error
        known = {name: f"pip install {name.replace('_', '-')}"} if name in _REGISTRARS else {}
        install = (known | _INSTALL).get(name)
        way_out = f"Install it: {install}" if install else f"Expected {expected}"
        raise ConfigError(f"{wanted}: {error}. {way_out}") from error


def parameters(factory: object) -> list[str]:
    """The names of the arguments of a factory; empty if unknown."""
    try:
        taken = inspect.signature(factory).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in taken if parameter.kind in named]


def name_of(spec: object) -> str:
    """The name for messages."""
    return repr(spec) if isinstance(spec, str) else getattr(spec, "__qualname__", repr(spec))


def importable(spec: object) -> str | None:
    """The name by which any process can import an environment or a wrapper; None if there is none.

    >>> importable("CartPole-v1"), importable(gymnasium.Wrapper), importable(lambda: None)
    ('CartPole-v1', 'gymnasium.core:Wrapper', None)
    """
    if isinstance(spec, str):
        return spec
    module, _, name = path_of(spec).partition(":")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return f"{module}:{name}" if found is spec and module != "__main__" else None


def path_of(spec: object) -> str:
    """Where an environment or a wrapper says that it is, as "module:name", whether or not it is there."""
    kind: Any = spec if inspect.isclass(spec) or inspect.isroutine(spec) else type(spec)
    return f"{kind.__module__ or ''}:{kind.__qualname__}"


def _from_gymnasium(env_id: str, /, **args: Any) -> Any:
    # The passive checker costs time at every step; flowrl switches it off by default.
    return without_order_enforcing(gymnasium.make(env_id, **{"disable_env_checker": True, **args}))


def _natively_from_gymnasium(env_id: str, num_envs: int, /, **args: Any) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **args)


def _closest(env_id: str) -> str:
    names = list(gymnasium.registry)
    # The registry is long; a bare name or a wrong version should still find similar ids.
    stem = env_id.rpartition("-v")[0] or env_id
    relatives = [name for name in names if name.rpartition("-v")[0] == stem]
    if relatives:
        return did_you_mean(env_id, relatives)
    for prefix, other in _OTHER_NAMES.items():
        if env_id.startswith(prefix):
            return other
    for module, begins in _REGISTRARS.items():
        if re.match(begins, env_id):
            game = re.fullmatch(r"([A-Za-z0-9]+)NoFrameskip-v4", env_id)
            short = f"; or atari:{game[1]}-v4, with what papers put around it" if game else ""
            return f"{module} registers it, so name both: {module}:{env_id}{short}"
    # Similar are the names without their versions: "Nope-v0" is not "Hopper-v5".
    similar = get_close_matches(stem.lower(), {name.rpartition("-v")[0].lower() for name in names}, cutoff=0.7)
    near = [name for name in names if name.rpartition("-v")[0].lower() in similar]
    return closest(env_id, near, "; name the module that registers it too, module:ID")


def _extra(env_id: str) -> str | None:
    """The extra that an environment of gymnasium's own needs; None if unknown."""
    registered = gymnasium.registry.get(env_id.rpartition(":")[2])
    entry = "" if registered is None else str(registered.entry_point)
    found = [extra for extra in ("box2d", "mujoco") if entry.startswith(f"gymnasium.envs.{extra}")]
    return f"it needs the extra {found[0]}: pip install 'flowrl-engine[{found[0]}]'" if found else None


def _arguments(env_id: str) -> list[str]:
    """The arguments of `gymnasium.make` for an id; empty if unknown."""
    module, _, name = env_id.rpartition(":")
    registered = None if module in LIBRARIES else gymnasium.registry.get(name)
    entry = None if registered is None else registered.entry_point
    known = parameters(load_env_creator(entry) if isinstance(entry, str) else entry)
    return [*known, "max_episode_steps", "disable_env_checker"] if known else []


def _unknown(args: Mapping[str, Any], known: list[str]) -> str | None:
    """The first unknown argument, with the closest known one."""
    names = [name for name in args if known and name not in known]
    return f"{names[0]!r}: {did_you_mean(names[0], known)}" if names else None
