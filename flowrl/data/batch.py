"""Batch: columns of experience with common leading axes; cutting, joining and converting them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.data import columns as cols
from flowrl.data.columns import Column, MissingColumn
from flowrl.errors import SchemaError, did_you_mean
from flowrl.storage.codec import register_columns

if TYPE_CHECKING:
    import torch


class Batch:
    """Dict-like columns of numpy arrays, torch tensors and nested batches, any mixture of them.

    A fragment has columns `[T, N, ...]`, a batch of rows `[B, ...]`; `shape` holds the axes that all columns share.
    Mappings become nested batches, lists and numbers become arrays; arrays and tensors are held, not copied.
    Arrays of Python objects are columns too, shown as `info=object[4, 2]`.
    Methods win on attribute access (`b.items`); use the key for a column of such a name (`b["items"]`).
    A list of mappings is stacked, a row each; arithmetic takes a batch of the same columns, or one value for all.
    An unknown column raises a `MissingColumn`, both KeyError and AttributeError, that names the closest one.

    >>> b = Batch(obs=np.zeros((4, 2, 3), np.float32), goal={"x": np.zeros((4, 2))}, reward=np.ones((4, 2)))
    >>> b
    Batch[4, 2](obs=float32[4, 2, 3], goal=Batch[4, 2](x=float64[4, 2]), reward=float64[4, 2])
    >>> b[:, 1] += 1
    >>> b[1:3, 1].reward
    array([2., 2.])
    >>> Batch([{"a": 1}, {"a": 2}]) * 10
    Batch[2](a=int64[2])
    """

    __slots__ = ("_columns",)
    __array_ufunc__ = None  # array + batch is the batch's to compute
    __hash__ = None  # type: ignore[assignment]  # mutable, and equal by value
    _columns: dict[str, Column]

    def __init__(
        self, columns: Mapping[str, Any] | Batch | Sequence[Mapping[str, Any] | Batch] | None = None, /, **more: Any
    ) -> None:
        _set_columns(self, {})
        if type(columns) in (list, tuple):
            columns = Batch.stack([Batch(row) for row in columns])  # type: ignore[arg-type, union-attr]
        self.update(columns, **more)  # type: ignore[arg-type]

    @staticmethod
    def of(columns: dict[str, Column]) -> Batch:
        """A Batch around a dict of arrays, tensors and batches, without the checks of the constructor."""
        return _wrap(columns)

    # -- columns

    def __getattr__(self, name: str) -> Column:
        # Python calls this only for names that the class lacks, so methods cost nothing extra.
        try:
            return self._columns[name]
        except KeyError:
            raise self._missing(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RESERVED:
            raise AttributeError(f"{name!r} is a method of Batch: set such a column by its key, batch[{name!r}] = ...")
        self[name] = value

    def __getitem__(self, key: Any) -> Any:
        """A column by name, else every column indexed on the leading axes (views where numpy has views)."""
        if isinstance(key, str):
            try:
                return self._columns[key]
            except KeyError:
                raise self._missing(key) from None
        if type(key) is tuple:
            _refuse_ellipsis(key)
        taken = {name: column[key] for name, column in self._columns.items()}
        if type(key) is tuple or isinstance(key, _INTEGERS):
            for name, value in taken.items():
                if not isinstance(value, _KEPT) and cols.kind(value) == "other":
                    taken[name] = cols.boxed(value)  # a single object from its array
        return _wrap(taken)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a column by name, else assign on the leading axes: from a batch, or one value for all."""
        if isinstance(key, str):
            self._columns[key] = _column(value, key)
            return
        if type(key) is tuple:
            _refuse_ellipsis(key)
        for column, part in self._beside(value):
            column[key] = part

    def __delitem__(self, name: str) -> None:
        """Drop a column, by key or as an attribute."""
        self.pop(name)

    __delattr__ = __delitem__

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._columns]

    def keys(self) -> KeysView[str]:
        """The column names."""
        return self._columns.keys()

    def values(self) -> ValuesView[Column]:
        """The columns."""
        return self._columns.values()

    def items(self) -> ItemsView[str, Column]:
        """Names and columns."""
        return self._columns.items()

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or the default if there is none."""
        return self._columns.get(name, default)

    def pop(self, name: str) -> Column:
        """Remove a column and return it."""
        column = self[name]
        del self._columns[name]
        return column

    def update(self, other: Mapping[str, Any] | Batch | None = None, /, **columns: Any) -> None:
        """Set columns in place."""
        if other is not None and type(other) is not dict and not isinstance(other, Batch | Mapping):
            raise TypeError(f"columns come as a mapping or a batch, not as a {type(other).__name__}: {other!r}")
        given = columns if other is None else {**other, **columns} if columns else other
        mine, array = self._columns, np.ndarray
        for name, value in given.items():
            if type(name) is not str and not isinstance(name, str):
                raise TypeError(f"a column is named by a string, not by {name!r}")
            mine[name] = value if type(value) is array else _column(value, name)

    def replace(self, **columns: Any) -> Batch:
        """A new batch with these columns set; the others are shared, not copied."""
        return _wrap(self._columns | {name: _column(value, name) for name, value in columns.items()})

    def select(self, names: Iterable[str]) -> Batch:
        """A new batch of the named columns, shared, in the order of the names."""
        columns = self._columns
        try:
            return _wrap({name: columns[name] for name in names})
        except KeyError as error:
            raise self._missing(error.args[0]) from None

    # -- shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The longest leading shape that all columns share: `(T, N)` of a fragment, `(B,)` of rows."""
        common: tuple[int, ...] | None = None
        for column in self._columns.values():
            shape = column.shape
            if not shape and isinstance(column, Batch) and not column._columns:
                continue  # a nested batch without columns has no rows to count
            if common is None:
                common = shape
            elif shape[: len(common)] != common:
                common = cols.common_axes(common, shape)
        return tuple(common or ())

    @property
    def rows(self) -> int:
        """The number of rows: the product of `shape`, 0 without columns."""
        return math.prod(self.shape) if self._columns else 0

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no rows."""
        return self.rows == 0

    def __len__(self) -> int:
        shape = self.shape
        if not shape and self._columns:
            raise TypeError(f"no length: the columns share no leading axis in {self!r}")
        return shape[0] if shape else 0

    def flat(self) -> Batch:
        """Merge the first two axes, time-major: `[T, N, ...]` -> `[T * N, ...]`, views if strides allow."""
        shape = self.shape
        if len(shape) < 2:
            raise ValueError(f"flat() merges two leading axes, but there are {len(shape)} in {self!r}")
        time, envs = shape[:2]
        return self.map(lambda column: column.reshape((time * envs, *column.shape[2:])))

    def split(self, size: int, shuffle: bool = False, generator: np.random.Generator | None = None) -> Iterator[Batch]:
        """Batches of `size` rows along axis 0, the last maybe shorter; views, or in the generator's order."""
        if size < 1:
            raise ValueError(f"size is {size}: a part needs at least 1 row")
        rows = len(self)
        if not shuffle:
            return (self[start : start + size] for start in range(0, rows, size))
        if generator is None:
            raise ValueError("split(shuffle=True) draws from a generator: give one, numpy.random.default_rng(seed)")
        order = generator.permutation(rows)
        return (self[order[start : start + size]] for start in range(0, rows, size))

    @staticmethod
    def cat(batches: Sequence[Batch], axis: int = 0) -> Batch:
        """Join along an existing leading axis. Raises SchemaError if columns differ."""
        return _join(batches, axis, "cat")

    @staticmethod
    def stack(batches: Sequence[Batch], axis: int = 0) -> Batch:
        """Join along a new leading axis. Raises SchemaError if columns differ."""
        return _join(batches, axis, "stack")

    # -- conversion

    def map(self, function: Callable[[Column], Any]) -> Batch:
        """A new batch of `function(array)` for every array and tensor, nested ones too."""
        items = self._columns.items()
        return _wrap({name: c.map(function) if isinstance(c, Batch) else function(c) for name, c in items})

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Column]]:
        """Every array and tensor with its name; nested names are dotted, `obs.image`."""
        for name, column in self._columns.items():
            if isinstance(column, Batch):
                yield from column.leaves(f"{prefix}{name}.")
            else:
                yield prefix + name, column

    def to_torch(self, device: torch.device | str | None = None) -> Batch:
        """All columns as tensors, on `device` if given. On the CPU they share memory with writable arrays.

        Raises: SchemaError naming the columns whose dtype torch lacks: objects, text.
        """
        try:
            return self.map(lambda column: cols.tensor(column, device))
        except TypeError:
            if unfit := [f"{name!r} is {cols.describe(c)}" for name, c in self.leaves() if not cols.numeric(c)]:
                raise SchemaError(
                    f"torch has no such dtype: column {', column '.join(unfit)}; select() the others first"
                ) from None
            raise

    def to_numpy(self) -> Batch:
        """All columns as arrays; CPU tensors share their memory."""
        return self.map(cols.array)

    def to(self, device: torch.device | str) -> Batch:
        """Tensors moved to `device`; arrays stay arrays (`to_torch(device)` moves everything)."""
        return self.map(lambda column: column.to(device) if cols.kind(column) == "tensor" else column)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dicts of the same columns, for storage; `Batch(d)` is the inverse."""
        return {name: c.to_dict() if isinstance(c, Batch) else c for name, c in self._columns.items()}

    # -- arithmetic; in place so that `b[:, 1] += 6` works

    def __add__(self, other: Any) -> Batch:
        return self._computed(operator.add, other)

    def __sub__(self, other: Any) -> Batch:
        return self._computed(operator.sub, other)

    def __mul__(self, other: Any) -> Batch:
        return self._computed(operator.mul, other)

    def __truediv__(self, other: Any) -> Batch:
        return self._computed(operator.truediv, other)

    def __pow__(self, other: Any) -> Batch:
        return self._computed(operator.pow, other)

    def __neg__(self) -> Batch:
        return self.map(operator.neg)

    def __radd__(self, other: Any) -> Batch:
        return self._computed(lambda column, part: part + column, other)

    def __rsub__(self, other: Any) -> Batch:
        return self._computed(lambda column, part: part - column, other)

    def __rmul__(self, other: Any) -> Batch:
        return self._computed(lambda column, part: part * column, other)

    def __rtruediv__(self, other: Any) -> Batch:
        return self._computed(lambda column, part: part / column, other)

    def __iadd__(self, other: Any) -> Batch:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> Batch:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> Batch:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> Batch:
        return self._in_place(operator.itruediv, other)

    def _computed(self, function: Callable[[Any, Any], Any], other: Any) -> Batch:
        return _wrap(dict(zip(self._columns, [function(c, part) for c, part in self._beside(other)])))

    def _in_place(self, function: Callable[[Any, Any], Any], other: Any) -> Batch:
        # Numbers from an array cannot change in place, hence the assignment.
        self._columns.update(self._computed(function, other)._columns)
        return self

    def _beside(self, other: Any) -> list[tuple[Column, Any]]:
        """Each column with its part of `other`; anything but a batch is paired with every column."""
        if type(other) is not dict and not isinstance(other, (Batch, Mapping)):
            return [(column, other) for column in self._columns.values()]
        if other.keys() != self._columns.keys():
            cols.check_names(self._columns, other, "the batch on the right")
        return [(column, _like(name, column, other[name])) for name, column in self._columns.items()]

    # -- the rest

    def __eq__(self, other: object) -> bool:
        """Same names, kinds, dtypes, shapes and values; NaN equals NaN. Column order does not count."""
        if not isinstance(other, Batch):
            return NotImplemented
        mine, theirs = self._columns, other._columns
        return mine.keys() == theirs.keys() and all(cols.same(mine[name], theirs[name]) for name in mine)

    def __reduce__(self) -> tuple[type[Batch], tuple[dict[str, Column]]]:
        return type(self), (self._columns,)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}={cols.describe(column)}" for name, column in self._columns.items())
        return f"Batch{list(self.shape)}({columns})" if self._columns else "Batch()"

    def __str__(self) -> str:
        """What `repr` says, and a line with the values of each column, long ones abridged."""
        values = (
            f"  {name}: {np.array2string(cols.array(column), precision=4, threshold=8, edgeitems=2)}"
            for name, column in self.leaves()
        )
        return "\n".join([repr(self), *("  " + " ".join(line.split()) for line in values)])

    def _missing(self, name: str) -> MissingColumn:
        if name.startswith("__"):  # other libraries probe names such as `__array__`: skip the advice
            return MissingColumn(name)
        return MissingColumn(f"the batch has no column {name!r}: {did_you_mean(name, self._columns)}")


_RESERVED = frozenset(dir(Batch))
_INTEGERS = (int, np.integer)
_KEPT = (np.ndarray, np.generic, Batch)
_set_columns = Batch.__dict__["_columns"].__set__


def _wrap(columns: dict[str, Column]) -> Batch:
    """A Batch around a dict of converted columns, without the checks of its constructor."""
    batch = object.__new__(Batch)
    _set_columns(batch, columns)
    return batch


def _column(value: Any, name: str) -> Column:
    if isinstance(value, Batch) or cols.kind(value) != "other":
        return value
    if isinstance(value, Mapping):
        return Batch(value)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise SchemaError(
            f"column {name!r} is no array: {error}; pad it, or say that it holds objects: np.array(..., dtype=object)"
        ) from error


def _like(name: str, column: Column, part: Any) -> Any:
    """A value in the kind of its column; raises before any column changes."""
    nested = type(part) is not np.ndarray and isinstance(part, Mapping | Batch)
    if isinstance(column, Batch):
        if nested:
            column._beside(part)
        return part
    if nested:
        raise SchemaError(f"column {name!r} is {cols.describe(column)}, on the right it is {part!r}")
    return cols.like(column, part)


def _refuse_ellipsis(key: tuple[Any, ...]) -> None:
    if any(part is Ellipsis for part in key):
        raise IndexError("'...' reaches into the features of a column: write the leading axes out, as in b[:, 1]")


def _join(batches: Sequence[Batch], axis: int, how: str) -> Batch:
    if not batches:
        raise ValueError(f"Batch.{how} of no batches: give at least one")
    if axis < 0:
        raise ValueError(f"axis is {axis}: leading axes count from the front, 0 or more")
    first = batches[0]._columns
    for i, batch in enumerate(batches[1:], 1):
        if batch._columns.keys() != first.keys():
            cols.check_names(first, batch, f"batch {i} to {how}")
    joined = {}
    for name, column in first.items():
        parts, kind = [batch._columns[name] for batch in batches], cols.kind(column)
        for i, part in enumerate(parts):
            if cols.kind(part) != kind:
                raise SchemaError(f"column {name!r}: {cols.describe(column)} in batch 0, {cols.describe(part)} in {i}")
        try:
            joined[name] = _join(parts, axis, how) if kind == "other" else cols.join(parts, axis, how)
        except (ValueError, RuntimeError):  # numpy's and torch's
            if len({part.shape[:axis] + part.shape[axis + (how == "cat") :] for part in parts}) == 1:
                raise
            shapes = " and ".join(dict.fromkeys(map(cols.describe, parts)))
            raise SchemaError(f"column {name!r}: cannot {how} {shapes} along axis {axis}") from None
    return _wrap(joined)


register_columns("batch", Batch)
