"""What an operator is.

An operator is any callable `item -> item`, or a small class made with `@operator`: its init fields are
configuration and shared resources, its `state()` fields are what a checkpoint holds, and a `context()` field
receives the run's context. What else it may have, each only if it needs it, says
`flowrl.engine.protocols.OperatorContract`; a source has `pull()` instead of `__call__`.

A fresh run works on a fresh copy: init fields are shared, state fields start anew.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, dataclass_transform

import attrs

from flowrl.engine.context import Context
from flowrl.engine.protocols import Array, Columns, OperatorContract, ResourceContract, Saveable, has_member
from flowrl.errors import CheckpointError

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ROLE = "flowrl.role"

#: The operator classes that say what they provide, for messages to those who miss it.
PROVIDERS: weakref.WeakSet[Any] = weakref.WeakSet()


def state(*, default: Any = attrs.NOTHING, factory: Any = None, init: Literal[False] = False) -> Any:
    """A field that changes while the operator works, and that a checkpoint holds."""
    return attrs.field(default=default, factory=factory, init=init, repr=False, metadata={_ROLE: "state"})


def runtime(*, default: Any = None, factory: Any = None, init: Literal[False] = False) -> Any:
    """A field that belongs to one run, and to no checkpoint."""
    given = {"default": default} if factory is None else {"factory": factory}
    return attrs.field(**given, init=init, repr=False)


def context(*, init: Literal[False] = False) -> Any:
    """The field that receives the run's `Context`; outside a run it is a context of its own."""
    return attrs.field(factory=Context, init=init, repr=False, metadata={_ROLE: "context"})


@dataclass_transform(field_specifiers=(attrs.field, state, runtime, context))
def operator(cls: _Class) -> _Class:
    """Make a class an operator.

    >>> @operator
    ... class RunningSum:
    ...     scale: float = 1.0
    ...     total: float = state(default=0.0)
    ...
    ...     def __call__(self, item):
    ...         self.total += self.scale * item
    ...         return self.total
    >>> add = RunningSum(scale=2.0)
    >>> [add(item) for item in [1, 2, 3]]
    [2.0, 6.0, 12.0]
    """
    made = attrs.define(slots=False, eq=False)(cls)
    made.__flowrl_operator__ = True  # type: ignore[attr-defined]
    if isinstance(OperatorContract(made).provides, tuple):
        PROVIDERS.add(made)
    return made


def pure(function: _Function) -> _Function:
    """Declare that a function may be applied to an item again after it failed."""
    function.pure = True  # type: ignore[attr-defined]
    return function


def declare(**what: Any) -> Callable[[_Function], _Function]:
    """Let a function say what classes do: the `requires`, `provides`, `schema` ... of `OperatorContract`."""

    def declared(function: _Function) -> _Function:
        for name, value in what.items():
            setattr(function, name, value)
        return function

    return declared


def is_operator(op: Any) -> bool:
    """Is it of a class that was made with `@operator`?"""
    return has_member(type(op), "__flowrl_operator__")


def fresh(op: Any, context: Context) -> Any:
    """The copy of an operator that one run works with; anything else than an operator class is shared."""
    if not is_operator(op):
        return op
    made = attrs.evolve(op)
    for name in _fields(op, "context"):
        setattr(made, name, context)
    return made


def operator_state(op: Any, path: str = "") -> dict[str, Any]:
    """A copy of the state fields of an operator, {} if it has none.

    Raises:
        CheckpointError: a field cannot be copied; named by the operator's path, or name, and the field's.
    """
    saved = {}
    for name in _fields(op, "state"):
        try:
            saved[name] = copy.deepcopy(vars(op)[name])
        except Exception as error:  # each type raises its own kind of error
            what = f"{path or name_of(op)}: its state {name!r}, a {type(vars(op)[name]).__name__},"
            raise CheckpointError(f"{what} cannot be copied, so it cannot be saved: {error}") from error
    return saved


def configuration(op: Any) -> dict[str, Any]:
    """The init fields of an operator by name."""
    return {field.name: vars(op)[field.name] for field in attrs.fields(type(op)) if field.init}


def state_fields(op: Any) -> list[str]:
    """The names of the fields of an operator that a checkpoint holds."""
    return _fields(op, "state")


def load_operator_state(op: Any, saved: Mapping[str, Any]) -> None:
    """Put saved state fields back; those that were not saved stay as they are."""
    for name in _fields(op, "state"):
        if name in saved:
            setattr(op, name, copy.deepcopy(saved[name]))


def resources(op: Any) -> Iterator[Any]:
    """What an operator shares and a checkpoint must hold once: its init fields that can save their state.

    A bound method (`for_each(policy.learn)`) shares the object it belongs to. A resource may name further
    ones that it is made of in an attribute `resources`.
    """
    found = list(configuration(op).values()) if is_operator(op) else [op.__self__ if inspect.ismethod(op) else op]
    while found:
        item = found.pop(0)
        if not isinstance(item, type) and isinstance(item, Saveable):
            yield item
            found.extend(ResourceContract(item).resources)


def name_of(op: Any) -> str:
    """The name of an operator in paths: that of its function or class."""
    name = getattr(op, "__name__", None) or type(op).__name__
    return "lambda" if name == "<lambda>" else str(name)


def describe(item: Any) -> str:
    """What an item looks like: types and shapes, no values.

    >>> describe({"a": [1, 2], "b": 3})
    'dict(a: list of 2, b: int)'
    """
    if isinstance(item, Array):
        return f"{item.dtype}{list(item.shape)}"
    if isinstance(item, Columns):
        inner = ", ".join(f"{key}: {describe(value)}" for key, value in item.items())
        return f"{type(item).__name__}({inner})"
    if isinstance(item, (list, tuple, set)):
        return f"{type(item).__name__} of {len(item)}"
    return type(item).__name__


def _fields(op: Any, role: str) -> list[str]:
    if not is_operator(op):
        return []
    return [field.name for field in attrs.fields(type(op)) if field.metadata.get(_ROLE) == role]
