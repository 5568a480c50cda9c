"""Reading a saved state: a field is believed once it is what its reader expects (D7)."""

from __future__ import annotations

import functools
import reprlib
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from numbers import Integral, Real
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import attrs

from flowrl.errors import CheckpointError, FlowError, SchemaError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

#: The largest count: JSON keeps it exactly, and sums of many fit into 64 bits.
MOST = 2**53

_REQUIRED: Any = object()


class Saved:
    """The named fields of a saved state.

    Args:
        state: A mapping; anything else is refused.
        what: The name of the state in errors.

    Raises: CheckpointError, also from each method: the field, its value, and what was expected.

    >>> saved = Saved({"written": -1, "cut": True}, "the saved buffer")
    >>> saved.get("cut", bool)
    True
    >>> saved.get("written", int, least=0)
    Traceback (most recent call last):
    flowrl.errors.CheckpointError: the saved buffer: written is -1, expected int of at least 0
    """

    def __init__(self, state: Any, what: str) -> None:
        if not isinstance(state, Mapping):
            raise CheckpointError(f"{what} is {shown(state)}, expected named fields")
        self.state, self.what = state, what

    def __contains__(self, name: str) -> bool:
        return name in self.state

    def get(
        self, name: str, kind: Any = Any, *, least: float | None = None, most: float = MOST, otherwise: Any = _REQUIRED
    ) -> Any:
        """The value of a field.

        Args:
            kind: A type, as in an annotation: `int | None`, `list[int]`, ...
            least, most: The range of a number, if there is one.
            otherwise: The value of a missing field, which is an error without.
        """
        value = self.state.get(name, otherwise)
        if value is _REQUIRED:
            raise CheckpointError(f"{self.what} has no {name}; it has {shown(sorted(map(str, self.state)))}")
        if not fits(value, kind):
            self.refuse(name, words(kind))
        if least is not None and value is not None and not least <= value <= most:
            self.refuse(name, f"{words(kind)} of at least {least}" + ("" if value < least else f", at most {most}"))
        return value

    def count(self, name: str, otherwise: Any = _REQUIRED) -> int:
        """A whole number, at least 0."""
        return int(self.get(name, int, least=0, otherwise=otherwise))

    def inside(self, name: str) -> Saved:
        """The state of a part."""
        return Saved(self.get(name), f"{self.what}, {name}")

    def array(
        self, name: str, dtype: Any, shape: tuple[int | None, ...], *, least: float | None = None, most: float = MOST
    ) -> Array:
        """An array of this dtype and shape (None: any length) with all values within `least` and `most`; no copy."""
        import numpy as np

        given = self.get(name)
        value = np.asarray(given) if isinstance(given, np.generic) else given  # numpy's array of no axes
        alike = isinstance(value, np.ndarray) and value.dtype == dtype and len(value.shape) == len(shape)
        if not alike or any(size not in (None, length) for size, length in zip(shape, value.shape)):
            axes = ", ".join("any" if size is None else str(size) for size in shape)
            self.refuse(name, f"{np.dtype(dtype)}[{axes}]")
        if least is not None and value.size:
            low, high = value.min(), value.max()
            if not least <= low <= high <= most:
                raise CheckpointError(f"{self.what}: {name} holds {low} .. {high}, expected {least} .. {most}")
        array: Array = given
        return array

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise: the field is not as expected."""
        raise CheckpointError(f"{self.what}: {name} is {shown(self.state[name])}, expected {expected}")


def random_generator(saved: Saved, name: str) -> np.random.Generator | None:
    """A numpy generator with a saved state; None for None.

    PCG64 draws different numbers, and so ends every search for one in a range, only if its increment is odd.
    """
    import numpy as np

    if (state := saved.get(name, dict | None)) is None:
        return None
    generator = np.random.default_rng(0)
    try:
        generator.bit_generator.state = state
        odd = state["state"]["inc"] % 2 == 1
    except Exception as error:  # numpy raises whatever it stumbles over
        raise CheckpointError(f"{saved.what}: {name} is no state of a PCG64 generator: {error!r}") from error
    if not odd:
        saved.refuse(name, "the state of a PCG64 generator, whose inc is odd")
    return generator


@contextmanager
def all_or_nothing(owner: Any, what: str) -> Iterator[None]:
    """Give an object its attributes back if the block, which replaces them and changes none in place, raises (D7)."""
    before = dict(vars(owner))
    try:
        yield
    except BaseException as error:
        vars(owner).clear()
        vars(owner).update(before)
        _raise(error, what)


def load_whole(load: Callable[[Any], Any], state: Any, before: Any, what: str) -> None:
    """Load a state by a function that changes parts in place; if it raises, load the state `before` again (D7)."""
    try:
        load(state)
    except BaseException as error:
        load(before)
        _raise(error, what)


def _raise(error: BaseException, what: str) -> NoReturn:
    """Raise what says that a state is malformed, whatever its reader stumbled over; a death or a signal as it is."""
    if not isinstance(error, Exception) or (isinstance(error, FlowError) and not isinstance(error, SchemaError)):
        raise error
    raise CheckpointError(f"{what} is malformed: {type(error).__name__}: {error}") from error


# -- types


def fits(value: Any, kind: Any, *, exact: bool = True) -> bool:
    """Whether a value is of an annotated type, contents included; unknown kinds of annotations fit all.

    Unless `exact`, one kind of number does for another: people write `int` for what becomes a float.

    >>> fits({"a": (1.5, 2)}, dict[str, tuple[float, int]]), fits([1, "2"], list[int]), fits(True, int)
    (True, False, False)
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, each, exact=exact) for each in args)
    if kind is None or kind is types.NoneType:
        return value is None
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in args)
    if kind in (int, float):
        if isinstance(value, bool):
            return not exact
        one = isinstance(value, HasShape) and value.shape == () and "float" in str(value.dtype)
        return isinstance(value, Integral if kind is int and exact else Real) or (one and kind is float and not exact)
    known: Any = kind if origin is None else origin
    if known is Any or not isinstance(known, type) or "_is_protocol" in vars(known):
        return True
    if not isinstance(value, known):
        return False
    if origin is None:
        return _is_record(value)
    held: Any = value
    if issubclass(known, tuple):
        each_of = [args[0]] * len(held) if args[1:] == (...,) else list(args)
        return len(held) == len(each_of) and all(fits(each, one, exact=exact) for each, one in zip(held, each_of))
    if issubclass(known, (list, deque, AbstractSet)):
        return args[0] is Any or all(fits(each, args[0], exact=exact) for each in held)
    if issubclass(known, Mapping):
        return all(fits(key, args[0], exact=exact) and fits(each, args[-1], exact=exact) for key, each in held.items())
    return True


def _is_record(value: Any) -> bool:
    """Whether the fields of a named tuple or attrs object of flowrl are of their types; True for other objects."""
    kind: Any = type(value)
    if not kind.__module__.startswith("flowrl.") or not {"_fields", "__attrs_attrs__"} & vars(kind).keys():
        return True
    fields = dict(zip(kind._fields, value)) if "_fields" in vars(kind) else attrs.asdict(value, recurse=False)
    return all(fits(fields.get(name), each) for name, each in annotations_of(kind).items())


@functools.cache
def annotations_of(kind: Any) -> dict[str, Any]:
    """The annotations of a class and its bases; `Any` for names that only type checkers import."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        there = vars(sys.modules.get(base.__module__, types))
        for name, written in vars(base).get("__annotations__", {}).items():
            one = types.SimpleNamespace(__annotations__={name: written})
            try:
                found[name] = get_type_hints(one, there)[name]
            except Exception:  # an annotation is any expression
                found[name] = Any
    return {name: each for name, each in found.items() if get_origin(each) is not ClassVar}


@runtime_checkable
class HasShape(Protocol):
    """Arrays and tensors."""

    dtype: Any
    shape: Any


def shown(value: Any) -> str:
    """A value of a file in an error: short, whatever it is.

    >>> shown("a" * 1000), shown(10**5000), shown({"a": [1, 2]})
    ("'aaaaaaaaaaaa...aaaaaaaaaaaaa'", 'a huge int', "{'a': [1, 2]}")
    """
    if isinstance(value, HasShape):
        return f"{value.dtype}{list(value.shape)}"
    try:
        return reprlib.repr(value)
    except Exception:  # too many digits, or an error of the class's own
        return f"a huge {type(value).__name__}"


def words(kind: Any) -> str:
    """A type in an error.

    >>> words(int | None), words(dict[str, int])
    ('int | None', 'dict[str, int]')
    """
    return str(kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind).replace("typing.", "")
