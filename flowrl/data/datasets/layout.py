"""Layout: the columns of a dataset, and the conversion of batches to them and back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from flowrl.data import columns as cols
from flowrl.data.batch import Batch
from flowrl.data.steps import is_fragment
from flowrl.data.types import Array
from flowrl.engine.schema import ColumnSchema, Schema
from flowrl.errors import SchemaError

#: Kinds of dtypes of plain bytes: numbers, booleans, text and dates of fixed width.
_PLAIN = "biufcSUmM"


@attrs.frozen
class Stored:
    """A column of a dataset: its name (`obs.image` if nested), dtype, shape per row, and file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    file: str

    @property
    def bytes_per_row(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@attrs.frozen
class Layout:
    """The columns, and their places in a batch as nested dicts of indices. Fragments have 2 leading axes."""

    axes: int
    tree: dict[str, Any]
    columns: tuple[Stored, ...]

    @classmethod
    def of(cls, batch: Batch) -> Layout:
        """The layout of batches like this one. Raises SchemaError if they cannot be stored."""
        axes, shape = 2 if is_fragment(batch) else 1, batch.shape
        leaves = list(batch.leaves())
        if len(shape) < axes or all(len(column.shape) > axes for _, column in leaves):
            raise SchemaError(f"cannot tell rows from features, no column has one number per row: {batch!r}")
        if unfit := [f"{name!r} is {cols.describe(c)}" for name, c in leaves if cols.array(c).dtype.kind not in _PLAIN]:
            raise SchemaError(
                f"column {', column '.join(unfit)}: a dataset holds numbers and text of fixed width, no objects, which "
                "only a pickle could hold; leave it out with select() before recording"
            )
        if unshown := [name for name, _ in leaves if not name.isprintable()]:
            raise SchemaError(f"column {unshown[0]!r}: the names in a dataset are printable")
        if not any(cols.array(column).nbytes for _, column in leaves) and all(shape[:axes]):
            raise SchemaError(f"no column of {batch!r} holds anything to record")
        stored = []
        for i, (name, column) in enumerate(leaves):
            file = f"{i:02}-{re.sub(r'[^a-zA-Z0-9_]+', '-', name)[:40]}.bin"
            stored.append(Stored(name, cols.array(column).dtype, tuple(column.shape[axes:]), file))
        return cls(axes, _numbered(batch, iter(range(len(stored)))), tuple(stored))

    def taken_apart(self, batch: Batch) -> tuple[tuple[int, ...], list[Array]]:
        """The leading shape of a batch, and its columns `[rows, ...]` in the order of the layout.

        Raises: SchemaError for names, dtypes or shapes unlike those of the dataset.
        """
        found = [cols.array(column) for column in _in_order(self.tree, batch)]
        shape = found[0].shape[: self.axes]
        for stored, array in zip(self.columns, found):
            if array.dtype != stored.dtype or array.shape != (*shape, *stored.shape):
                axes = "[T, N]" if self.axes == 2 else "[B]"
                raise SchemaError(
                    f"column {stored.name!r}: the dataset has {stored} per row {axes}, got {cols.describe(array)} "
                    f"in {batch!r}"
                )
        rows = math.prod(shape)
        return shape, [
            np.ascontiguousarray(array).reshape(rows, *each.shape) for each, array in zip(self.columns, found)
        ]

    def put_together(self, arrays: Sequence[Array]) -> Batch:
        """A batch from columns in the order of the layout."""

        def filled(tree: dict[str, Any]) -> Batch:
            return Batch({name: filled(at) if isinstance(at, dict) else arrays[at] for name, at in tree.items()})

        return filled(self.tree)

    def schema(self) -> Schema:
        """The schema of the batches: experience of some earlier policy."""
        lead = ("T", "N") if self.axes == 2 else ("B",)
        words = frozenset({"experience", "fragments" if self.axes == 2 else "rows"})
        return Schema({each.name: ColumnSchema(str(each.dtype), (*lead, *each.shape)) for each in self.columns}, words)

    def to_json(self) -> dict[str, Any]:
        columns = [{**attrs.asdict(each), "dtype": each.dtype.str} for each in self.columns]
        return {"axes": self.axes, "tree": self.tree, "columns": columns}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Layout:
        """The layout from JSON. Raises KeyError, TypeError or ValueError if it is malformed."""
        stored = [
            Stored(str(each["name"]), np.dtype(each["dtype"]), tuple(map(int, each["shape"])), str(each["file"]))
            for each in given["columns"]
        ]
        if any(each.dtype.kind not in _PLAIN or not re.fullmatch(r"[\w-]+\.bin", each.file) for each in stored):
            raise ValueError("a column of an unknown kind")
        if given["axes"] not in (1, 2) or any(size < 0 for each in stored for size in each.shape):
            raise ValueError("a shape that there is not")
        if not all(each.name.isprintable() for each in stored):
            raise ValueError("a name that cannot be shown")
        if not any(each.bytes_per_row for each in stored):
            raise ValueError("no column that takes room, so any number of rows")
        layout = cls(int(given["axes"]), given["tree"], tuple(stored))
        numbers = [np.array(i) for i in range(len(stored))]
        found = [(name, int(number)) for name, number in layout.put_together(numbers).leaves()]
        if found != [(each.name, i) for i, each in enumerate(stored)]:
            raise ValueError("columns and their tree differ")
        return layout


def as_bytes(array: Array) -> Any:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8) if array.nbytes else b""


def _numbered(batch: Batch, numbers: Any) -> dict[str, Any]:
    return {name: _numbered(c, numbers) if isinstance(c, Batch) else next(numbers) for name, c in batch.items()}


def _in_order(tree: dict[str, Any], batch: Batch, path: str = "") -> Iterator[Any]:
    """The columns of a batch in the order of the tree, whose names it must have."""
    cols.check_names(tree, batch, f"column {path!r} of the batch" if path else "the batch")
    for name, inner in tree.items():
        where = f"{path}.{name}" if path else name
        if isinstance(inner, dict) != isinstance(batch[name], Batch):
            raise SchemaError(f"column {where!r}: one of the dataset and {batch!r} has it nested, the other not")
        if isinstance(inner, dict):
            yield from _in_order(inner, batch[name], where)
        else:
            yield batch[name]
