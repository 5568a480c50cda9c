"""Code that a run directory or a configuration file names, which runs only if somebody trusts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from flowrl.envs.adapters.convert import LIBRARIES
from flowrl.errors import ConfigError
from flowrl.settings import NATURE

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


def code_in(values: Mapping[str, Any]) -> list[str]:
    """The settings among `values` that run code of others than gymnasium, flowrl and what its extras install.

    >>> code_in({"env": "CartPole-v1", "wrappers": ["TimeLimit(9)"], "eval_env": "minigrid:MiniGrid-Empty-8x8-v0"})
    []
    >>> code_in({"env": "os:system", "env_args": {"command": "ls"}, "wrappers": ["theirs:Shaped(2)"], "seed": 3})
    ["env='os:system'", "wrappers='theirs:Shaped(2)'"]
    >>> code_in({"intrinsic": "os:system", "wrappers": ["Hierarchy(options=2)"]})
    ["intrinsic='os:system'"]
    >>> code_in({"agents": "os:system"}), code_in({"agents": {"left": "a:b"}})
    (["agents='os:system'"], [])
    >>> len(code_in({"wrappers": ["Hierarchy(intrinsic='os:system')"]}))
    1
    """
    named = [(key, values.get(key)) for key in ("env", "eval_env")]
    for key in ("wrappers", "eval_wrappers"):
        layers = values.get(key)
        named += [(key, each) for each in (layers if isinstance(layers, (list, tuple)) else [layers])]
    found = [(key, name) for key, name in named if name is not None and not _is_harmless(name)]
    # The network is a class of a module; the machines at an address answer with pickles.
    found += [(key, values[key]) for key in ("network", "address") if values.get(key) not in (None, NATURE)]
    found += [(key, name) for key in ("intrinsic", "agents") if _names_a_function(name := values.get(key))]
    return [f"{key}={name!r}" for key, name in found]


def check_trust(what: object, code: Sequence[str], trusted: Trust) -> None:
    """Let `what` run this code, if there is any.

    Raises: ConfigError if nobody trusts it.
    """
    if not code or trusted is True:
        return
    words = f"{what} runs code that does not come with flowrl: {', '.join(code)}"
    if not trusted or not trusted(words):
        raise ConfigError(f"{words}; if you trust it: flowrl.load(..., trusted=True)")


def _names_a_function(text: Any) -> bool:
    return isinstance(text, str) and ":" in text


def _is_harmless(name: Any) -> bool:
    if not isinstance(name, str):
        return False
    name, _, arguments = name.partition("(")
    name = name.strip()
    if name == "Hierarchy" and _names_a_function(arguments):
        return False  # as its reward
    module, colon, rest = name.partition(":")
    if not colon or name in OURS:
        return True
    if module in LIBRARIES:
        return ":" not in rest  # gym imports what is before it
    return module in WRAPPERS or (module in REGISTER and _ID.fullmatch(rest) is not None)
