"""The definition of an operator.

An operator is any callable `item -> item`, or a small class decorated with `@operator`: its init fields hold
configuration and shared resources, a checkpoint saves its `state()` fields, and a `context()` field
receives the run's context. `flowrl.engine.protocols.OperatorContract` lists the other members that it may
have; a source has `pull()` instead of `__call__`.

Each run works on a fresh copy: init fields are shared, state fields start anew.
"""

from __future__ import annotations

import copy
import math
import operator as python_operator
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, TypeVar, dataclass_transform

import attrs

from flowrl.engine.context import Context
from flowrl.engine.protocols import Array, Columns, OperatorContract, has_member
from flowrl.errors import CheckpointError, PlanError
from flowrl.saved import Saved, annotations_of, fits, words

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ROLE, _CHECK, _ADDED = "flowrl.role", "flowrl.check", "flowrl.added"

#: The operator classes that declare `provides`; errors suggest them as remedies.
PROVIDERS: weakref.WeakSet[Any] = weakref.WeakSet()


def state(
    *,
    default: Any = attrs.NOTHING,
    factory: Any = None,
    check: Callable[[Any, Any], str] | None = None,
    added: bool = False,
    init: Literal[False] = False,
) -> Any:
    """A field that changes while the operator works; checkpoints save it.

    A saved value is loaded if it is of the annotated type, or of the type of the default (D7).

    Args:
        check: Called with the operator and a saved value of that type: what was expected instead, "" if it fits.
        added: Whether older versions of the operator had no such field; what they saved leaves it as it begins.
    """
    metadata = {_ROLE: "state", _CHECK: check, _ADDED: added}
    return attrs.field(default=default, factory=factory, init=init, repr=False, metadata=metadata)


def not_negative(op: Any, value: int) -> str:
    """A check of a `state()` field: a whole number of at least 0."""
    return "" if fits(value, int) and value >= 0 else "a whole number of at least 0"


def runtime(*, default: Any = None, factory: Any = None, init: Literal[False] = False) -> Any:
    """A field that belongs to one run; checkpoints leave it out."""
    initial = {"default": default} if factory is None else {"factory": factory}
    return attrs.field(**initial, init=init, repr=False)


def context(*, init: Literal[False] = False) -> Any:
    """The field that receives the run's `Context`; outside a run it holds a separate one."""
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
    defined = attrs.define(slots=False, eq=False)(cls)
    defined.__flowrl_operator__ = True  # type: ignore[attr-defined]
    if isinstance(OperatorContract(defined).provides, tuple):
        PROVIDERS.add(defined)
    return defined


def pure(function: _Function) -> _Function:
    """Declare that a function may be applied to an item again after a failure."""
    function.pure = True  # type: ignore[attr-defined]
    return function


def declare(**members: Any) -> Callable[[_Function], _Function]:
    """Set members of `OperatorContract` on a function: `requires`, `provides`, `schema` ..."""

    def decorate(function: _Function) -> _Function:
        for name, value in members.items():
            setattr(function, name, value)
        return function

    return decorate


def is_operator(op: Any) -> bool:
    """Whether an object's class is decorated with `@operator`."""
    return has_member(type(op), "__flowrl_operator__")


def fresh(op: Any, context: Context) -> Any:
    """A copy of an operator for one run; a function or other object is shared between runs."""
    if not is_operator(op):
        return op
    copied = attrs.evolve(op)
    for name in _fields(op, "context"):
        setattr(copied, name, context)
    return copied


def operator_state(op: Any, path: str = "") -> dict[str, Any]:
    """A copy of the state fields of an operator, {} if it has none.

    Raises:
        CheckpointError: a field cannot be copied; names the operator, by its path if it has one, and the field.
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
    """The names of an operator's state fields."""
    return _fields(op, "state")


def added_fields(op: Any) -> list[str]:
    """Those of them that older versions did not have."""
    return [name for name in state_fields(op) if attrs.fields_dict(type(op))[name].metadata[_ADDED]]


def check_operator_state(op: Any, saved: Saved) -> None:
    """Raise a CheckpointError unless the saved state fields are of their types and pass their checks."""
    for field in attrs.fields(type(op)) if is_operator(op) else ():
        if field.metadata.get(_ROLE) != "state" or field.name not in saved:
            continue
        value, kind = saved.get(field.name), annotations_of(op.__class__).get(field.name, Any)
        as_default = type(value) is type(vars(op)[field.name]) and not isinstance(value, Collection)
        if not as_default and not fits(value, kind, exact=False):
            saved.refuse(field.name, f"{words(kind)}, as the field is annotated")
        if (check := field.metadata[_CHECK]) is not None and (expected := check(op, value)):
            saved.refuse(field.name, expected)


def load_operator_state(op: Any, saved: Mapping[str, Any]) -> None:
    """Restore saved state fields; the others keep their values."""
    for name in _fields(op, "state"):
        if name in saved:
            setattr(op, name, copy.deepcopy(saved[name]))


def whole(who: str, name: str, value: Any, least: int, otherwise: str = "") -> int:
    """A size as an int; numpy's integers count too.

    Raises:
        PlanError: it is no whole number, or below `least`.
    """
    try:
        number = python_operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise PlanError(f"{who} needs {name} >= {least}{otherwise}, a whole number, got {value!r}")
    return number


def name_of(op: Any) -> str:
    """The name of an operator in paths: that of its function or class."""
    name = getattr(op, "__name__", None) or type(op).__name__
    return "lambda" if name == "<lambda>" else str(name)


def describe(item: Any) -> str:
    """The types and shapes of an item, without values.

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


def summarize(item: Any) -> str:
    """The values of an item: its numbers, then a line for each column with type, shape, minimum, mean and maximum.

    >>> print(summarize({"loss": 0.53, "updates": 3, "by_policy": {"a": 1.0}}))
    loss=0.53  updates=3  by_policy.a=1
    """
    if isinstance(item, (list, tuple)) and item and isinstance(item[0], Columns):
        return f"{type(item).__name__} of {len(item)}, the first of which is {summarize(item[0])}"
    if not isinstance(item, Columns):
        return " ".join([describe(item), _spread(item)]) if isinstance(item, Array) else _value(item)
    leaves = dict(_leaves(item))
    columns = {name: value for name, value in leaves.items() if isinstance(value, Array) and tuple(value.shape)}
    numbers = "  ".join(f"{name}={_value(value)}" for name, value in leaves.items() if name not in columns)
    if not columns:
        return numbers or describe(item)
    kinds = {name: describe(value) for name, value in columns.items()}
    wide, widest = max(map(len, kinds)), max(map(len, kinds.values()))
    rows = [f"  {n:<{wide}}  {kinds[n]:<{widest}}  {_spread(value)}".rstrip() for n, value in columns.items()]
    return "\n".join([f"{type(item).__name__} {numbers}".rstrip(), *rows])


def _leaves(item: Columns, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in item.items():
        if isinstance(value, Columns) and not isinstance(value, Array):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value(value: Any) -> str:
    """A single value in a few characters."""
    if isinstance(value, Array) and not tuple(value.shape):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = repr(value)
    return text if len(text) <= 60 else describe(value)


def _spread(column: Array) -> str:
    """The least, mean and largest value of a column; "" if it has none."""
    size = math.prod(column.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of values that are not finite
        try:
            least, total, most = (float(value) for value in (column.min(), column.sum(), column.max()))
        except (TypeError, ValueError, RuntimeError):  # no numbers, or none at all
            return ""
    return f"min {least:.4g}  mean {total / size:.4g}  max {most:.4g}"


def _fields(op: Any, role: str) -> list[str]:
    if not is_operator(op):
        return []
    return [field.name for field in attrs.fields(type(op)) if field.metadata.get(_ROLE) == role]
