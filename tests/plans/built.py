"""What is built of a configuration, as plain values that can be compared."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from flowrl.engine.graph import graph
from flowrl.runs.config import Configuration
from flowrl.trainer.trainer import Trainer

#: What says it all itself.
PLAIN = (type(None), bool, int, float, complex, str, bytes, type, PurePath, np.dtype, torch.dtype, torch.device)

#: Attributes that say when something was made, or where in memory, or who looks at it; and what a policy and its file
#: were told.
NOT_LOOKED_AT = ("settings", "described", "_opened", "_looked", "_reported", "_places", "__weakref__")


def built(kind: type[Trainer], settings: Mapping[str, Any]) -> Any:
    """The operators, the policy, the buffers and the workers of a plan, before anything runs."""
    with kind(config=settings) as trainer:
        return described([(node.kind, node.name, node.op) for node in graph(trainer.algorithm)] + [trainer.workers])


def described(thing: Any) -> Any:
    """An object as nested tuples: classes, attributes, contents, what functions close over, numbers bit by bit.

    Of a configuration, and of the settings that a policy keeps, nothing is said: what counts is what is made of them.
    """
    numbered: dict[int, int] = {}
    alive: list[Any] = []  # so that no `id` is used twice

    def look(thing: Any) -> Any:
        if isinstance(thing, PLAIN):
            return repr(thing)
        if isinstance(thing, Configuration):
            return "a configuration"
        if id(thing) in numbered:
            return numbered[id(thing)]
        numbered[id(thing)] = len(numbered)
        alive.append(thing)
        if isinstance(thing, torch.Tensor):
            return type(thing), look(thing.detach().cpu().numpy())
        if isinstance(thing, np.ndarray | np.generic):
            return thing.dtype.str, thing.shape, thing.tobytes()
        if isinstance(thing, functools.partial):
            return look(thing.func), look(thing.args), look(thing.keywords)
        if isinstance(thing, types.MethodType):
            return look(thing.__func__), look(thing.__self__)
        if isinstance(thing, types.FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
            return thing.__module__, thing.__qualname__, look([cells, thing.__defaults__, thing.__kwdefaults__])
        if isinstance(thing, Mapping):
            return type(thing), tuple((look(key), look(value)) for key, value in thing.items())
        if isinstance(thing, list | tuple):
            return type(thing), tuple(look(each) for each in thing)
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        own = {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(thing, "__dict__", {})
        return type(thing), tuple((name, look(value)) for name, value in own.items() if name not in NOT_LOOKED_AT)

    return look(thing)
