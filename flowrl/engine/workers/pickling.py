"""Pickling objects for other processes, with errors that name the part that cannot be pickled."""

from __future__ import annotations

import dis
import io
import pickle
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MappingProxyType, MethodType, MethodWrapperType, ModuleType
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]

from flowrl.errors import PlanError


def pack(value: Any, what: str) -> bytes:
    """The value as bytes; functions and classes of a script include their code.

    Raises:
        PlanError: a part of the value cannot be pickled; `what` names the whole in the message.
    """
    try:
        return cast(bytes, cloudpickle.dumps(value))
    except Exception as error:
        raise refusal(value, what, error) from error


class _PlainPickler(pickle.Pickler):
    """Pickles built-in values and objects of flowrl, which all processes have."""

    def reducer_override(self, obj: Any) -> Any:
        kind = obj if isinstance(obj, (type, FunctionType)) else type(obj)
        if kind.__module__.startswith("flowrl."):
            return NotImplemented
        raise TypeError(f"{type(obj)} may not be there, or is better sent otherwise")


def pack_plain(value: Any) -> bytes | None:
    """The value as bytes, for `pickle.loads`, if it has built-in values and objects of flowrl alone; else None.

    It takes a third of the time of `pack`. Arrays are left to those who share their memory.

    >>> import numpy as np
    >>> pickle.loads(pack_plain(("pull", 0, [1.5]))), pack_plain([np.zeros(2)]), pack_plain(lambda: 0)
    (('pull', 0, [1.5]), None, None)
    """
    packed = io.BytesIO()
    try:
        _PlainPickler(packed, 5).dump(value)
    except Exception:
        return None
    return packed.getvalue()


def refusal(value: Any, what: str, error: Exception) -> PlanError:
    """The error for a value that cannot be sent: names its smallest part that cannot, and where that is.

    >>> import threading
    >>> print(refusal({"a": [1, threading.Lock()]}, "the item", TypeError("...")))
    the item cannot be sent to another process: ['a'][1], a lock: cannot pickle '_thread.lock' object
    """
    where, part, seen = "", value, {id(value)}
    while found := _broken_part(part, seen):
        where, part, error = where + found[0], *found[1:]
    at = f"{where}, a {type(part).__name__}".lstrip("., ")
    return PlanError(f"{what} cannot be sent to another process: {at}: {error}")


def _broken_part(value: Any, seen: set[int]) -> tuple[str, Any, Exception] | None:
    for where, part in parts(value):
        if id(part) in seen:
            continue
        seen.add(id(part))
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            return where, part, error
    return None


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with the suffix that accesses it, such as ".name" or "[0]"."""
    if isinstance(value, (dict, MappingProxyType)):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))  # a thread may write
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((f"[{k}]", part) for k, part in enumerate(list(value)))
    elif isinstance(value, partial):
        yield from [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, FunctionType):
        yield from ((f", variable {name}", part) for name, part in _used(value))
    if isinstance(value, (MethodType, BuiltinMethodType, MethodWrapperType)):
        yield ".__self__", value.__self__
    if isinstance(value, MethodType):
        yield ".__func__", value.__func__
    yield from ((f".{name}", part) for name, part in attributes(value).items())


def attributes(value: Any) -> dict[str, Any]:
    """What a value has in its `__dict__` and its slots, by name; an empty slot is None."""
    slots = [name for cls in type(value).__mro__ for name in _tuple(vars(cls).get("__slots__", ()))]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function can read: of its closure, its defaults, and the globals that it names.

    A function of another module is not followed: that module has it.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults)
    yield from (function.__kwdefaults__ or {}).items()
    for name, *attrs in dict.fromkeys(_globals(function.__code__)):
        value = function.__globals__.get(name)
        if not isinstance(value, FunctionType) or value.__globals__ is function.__globals__:
            yield name, value
        for attr in attrs:
            name, value = f"{name}.{attr}", vars(value).get(attr) if isinstance(value, ModuleType) else None
            if not isinstance(getattr(value, "__self__", None), (ModuleType, type(None))):
                yield name, value  # as np.random.rand, which has a generator


def _globals(code: CodeType) -> Iterator[tuple[str, ...]]:
    """The globals that code names, each with the attributes of it that it reads."""
    found: list[str] = []
    for each in dis.get_instructions(code):
        if found and each.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            yield tuple(found)
            found = []
        if found or each.opname == "LOAD_GLOBAL":
            found.append(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)


def _tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
