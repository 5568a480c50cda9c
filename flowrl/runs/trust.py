"""Code that a run directory or a configuration file names, which runs only if somebody trusts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from flowrl.envs.adapters.convert import LIBRARIES
from flowrl.errors import ConfigError

#: Whether to run such code, or a function that is told of it and answers that.
Trust: TypeAlias = bool | Callable[[str], bool]

#: Environments of flowrl.
OURS = {f"flowrl.envs.{name}" for name in ("cartpole:without_velocities", "goals:bit_flipping", "goals:point_reach")}
OURS |= {f"flowrl.envs.corridor:{name}" for name in ("key_corridor", "cue_corridor")}
#: Modules of which any name is a harmless wrapper.
WRAPPERS = {"minigrid.wrappers"}
#: Modules that register ids with gymnasium.
REGISTER = {"ale_py", "gymnasium_robotics", "minigrid"}
#: An id, which no function or class of a module can be called.
_ID = re.compile(r".+-v\d+")
#: What may be found in a text that names something in a module.
_NAME = re.compile(r"[^\W\d]\w*\s*:(?!\d+$)")
#: Settings in which some names are harmless.
_ENVIRONMENTS = ("env", "eval_env", "wrappers", "eval_wrappers")
#: Settings that name files, each opened by a reader that runs no code of them.
_FILES = ("data", "opponents", "eval_opponent")
#: Settings of environments: none runs code before one is made.
LATER = (*_ENVIRONMENTS, "env_args", "eval_env_args", "env_manager_args", "agents", "intrinsic")


def code_in(values: Mapping[str, Any]) -> list[str]:
    """The settings among `values` that may run code of others than gymnasium, flowrl and what its extras install.

    That is every text in them, at whatever depth and by whatever key, that can name something in a module, unless its
    setting is known not to import it: so settings that are yet to be declared are asked about too.

    >>> code_in({"env": "CartPole-v1", "wrappers": ["TimeLimit(9)"], "eval_env": "minigrid:MiniGrid-Empty-8x8-v0"})
    []
    >>> code_in({"env": "os:system", "env_args": {"command": "ls"}, "wrappers": ["theirs:Shaped(2)"], "seed": 3})
    ["env='os:system'", "wrappers='theirs:Shaped(2)'"]
    >>> code_in({"manager": {"network": "os:system"}}), len(code_in({"wrappers": ["Hierarchy(intrinsic='os:system')"]}))
    (["manager.network='os:system'"], 1)
    >>> code_in({"device": "cuda:0", "data": "minari:mujoco/hopper/expert-v0", "address": "auto"})
    ["address='auto'"]
    """
    found = [each for key, value in values.items() for each in _leaves(str(key), value)]
    return [f"{path}={value!r}" for path, value in found if _may_run(path, value)]


def check_trust(what: object, code: Sequence[str], trusted: Trust) -> None:
    """Let `what` run this code, if there is any.

    Raises: ConfigError if nobody trusts it.
    """
    if not code or trusted is True:
        return
    words = f"{what} runs code that does not come with flowrl: {', '.join(code)}"
    if not trusted or not trusted(words):
        raise ConfigError(f"{words}; if you trust it: flowrl.load(..., trusted=True)")


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values in nested tables and lists, and the keys of such tables, with the path of keys to each."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield path, key
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(path, inner)
    else:
        yield path, value


def _may_run(path: str, value: Any) -> bool:
    if path in _ENVIRONMENTS:
        return value is not None and not _is_harmless(value)
    if path.rpartition(".")[2] == "address":
        return value is not None  # the machines there answer with pickles
    return path not in _FILES and (callable(value) or (isinstance(value, str) and _NAME.search(value) is not None))


def _is_harmless(name: Any) -> bool:
    if not isinstance(name, str):
        return False
    name, _, arguments = name.partition("(")
    if _NAME.search(arguments):
        return False  # as the reward of a Hierarchy
    name = name.strip()
    module, colon, rest = name.partition(":")
    if not colon or name in OURS:
        return True
    if module in LIBRARIES:
        return ":" not in rest  # gym imports what is before it
    return module in WRAPPERS or (module in REGISTER and _ID.fullmatch(rest) is not None)
