"""Columns: preallocated storage of rows, small columns side by side in one array of records."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import array

Index: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Array: TypeAlias = np.ndarray[Any, Any]
Leaf: TypeAlias = tuple[str, ...]
"""Where an array is in a batch: `("reward",)`, or `("obs", "image")` in a nested one."""
New: TypeAlias = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]
"""Makes an array of a shape and dtype."""

_WIDE = 512
"""Bytes of a row from which on a column is better gathered by itself than copied out of a record."""

_BLOCK = 2**20


class Spec(NamedTuple):
    """What one row of a column is."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


class Columns:
    """Rows in numbered slots, all columns allocated at once.

    Columns of less than 512 bytes a row are fields of one packed record, so that drawing a row touches one place in
    memory instead of one per column; wide columns and objects have an array each. What is taken out is contiguous.
    """

    def __init__(self, specs: Mapping[Leaf, Spec], slots: int, new: New) -> None:
        packed = [leaf for leaf, spec in specs.items() if spec.bytes < _WIDE and not spec.dtype.hasobject]
        fields = {leaf: str(i) for i, leaf in enumerate(packed)}
        record = np.dtype([(field, *specs[leaf]) for leaf, field in fields.items()])
        self._records = new((slots,), record)
        self.arrays: dict[Leaf, Array] = {}
        """Views of all rows, `[slots, ...]`."""
        for leaf, spec in specs.items():
            if leaf in fields:
                self.arrays[leaf] = self._records[fields[leaf]]
            else:
                # Objects cannot lie in a file.
                make = np.empty if spec.dtype.hasobject else new
                self.arrays[leaf] = make((slots, *spec.shape), spec.dtype)
        self._places = {leaf: (fields.get(leaf), array) for leaf, array in self.arrays.items()}
        self.bytes = slots * sum(spec.bytes for spec in specs.values())

    def take(self, slots: Index, leaves: Collection[Leaf], new: New = np.empty) -> dict[Leaf, Array]:
        """Copies of rows, `[*slots.shape, ...]`; `new` makes the arrays of wide columns."""
        records, taken = None, {}
        for leaf in leaves:
            field, column = self._places[leaf]
            if field is not None:
                if records is None:
                    records = self._records.take(slots, mode="clip")
                taken[leaf] = records[field].copy()
            elif column.dtype.hasobject:
                taken[leaf] = column[slots]
            else:
                out = new((*slots.shape, *column.shape[1:]), column.dtype)
                taken[leaf] = column.take(slots, axis=0, out=out, mode="clip")  # `clip`: else `out` is written twice
        return taken


def in_directory(directory: str | Path) -> New:
    """Makes arrays in files of their full size, which are gone when the arrays are, however the process ends.

    Raises: OSError where the disk has no room; nothing is left on it then.
    """

    def new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                _fill(file, size)
                return np.ndarray(shape, dtype, mmap.mmap(file.fileno(), size))
        except OSError as error:
            message = f"no room for a buffer of {size:,} bytes a column: {error.strerror}"
            raise OSError(error.errno, message, str(directory)) from error

    return new


def _fill(file: Any, size: int) -> None:
    """Give a file its full size, for writing to a mapped one without room would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for at in range(0, size, _BLOCK):
        file.write(bytes(min(_BLOCK, size - at)))
    file.flush()


def leaves(batch: Batch, under: Leaf = ()) -> dict[Leaf, Array]:
    """The arrays of a batch, those of nested batches among them; tensors as arrays."""
    found: dict[Leaf, Array] = {}
    for name, column in batch.items():
        if type(column) is np.ndarray:
            found[(*under, name)] = column
        elif isinstance(column, Batch):
            found.update(leaves(column, (*under, name)))
        else:
            found[(*under, name)] = array(column)
    return found


def nested(columns: Mapping[Leaf, Any]) -> Batch:
    """The batch of leaves.

    >>> nested({("obs", "x"): np.zeros(2), ("reward",): np.zeros(2)})
    Batch[2](obs=Batch[2](x=float64[2]), reward=float64[2])
    """
    made: dict[str, Any] = {leaf[0]: column for leaf, column in columns.items()}
    if all(len(leaf) == 1 for leaf in columns):
        return Batch.of(made)
    made = {}
    for leaf, column in columns.items():
        inside = made
        for name in leaf[:-1]:
            inside = inside.setdefault(name, {})
        inside[leaf[-1]] = column
    return Batch(made)


def under(name: str, among: Collection[Leaf]) -> Iterator[Leaf]:
    """The leaves that a top-level column consists of."""
    return (leaf for leaf in among if leaf[0] == name)
