"""Columns of rows: packed records, and the final observations that no next row holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from flowrl.data.replay.shared_frames import SharedFrames
from flowrl.data.replay.tree import Leaf, Spec
from flowrl.data.types import Array, Index, New


class FinalObservations:
    """Rows in numbered places, which grow as needed; freed places are reused.

    >>> final_obs = FinalObservations({("obs",): Spec(np.dtype(np.float32), ())})
    >>> final_obs.put({("obs",): np.array([7, 8])})
    array([0, 1])
    >>> final_obs.free(np.array([0]))
    >>> final_obs.put({("obs",): np.array([9])}), final_obs.take(np.array([1, 0]))
    (array([0]), {('obs',): array([8., 9.], dtype=float32)})
    """

    def __init__(self, specs: Mapping[Leaf, Spec]) -> None:
        self._rows = {leaf: np.empty((0, *spec.shape), spec.dtype) for leaf, spec in specs.items()}
        self._free: list[int] = []
        self._room = 0

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return sum(column.nbytes for column in self._rows.values())

    @property
    def count(self) -> int:
        """Rows kept."""
        return self._room - len(self._free)

    def put(self, rows: Mapping[Leaf, Array]) -> Index:
        """Keep rows `[k, ...]`; returns their places `[k]`."""
        count = len(next(iter(rows.values())))
        while len(self._free) < count:
            self._grow()
        places = np.array(self._free[len(self._free) - count :][::-1], np.int64)
        del self._free[len(self._free) - count :]
        for leaf, column in self._rows.items():
            column[places] = rows[leaf]
        return places

    def take(self, places: Index) -> dict[Leaf, Array]:
        """Copies of the rows at places."""
        return {leaf: column[places] for leaf, column in self._rows.items()}

    def free(self, places: Index) -> None:
        """Release places."""
        self._free.extend(places.tolist())

    def _grow(self) -> None:
        before, self._room = self._room, max(16, 2 * self._room)
        for leaf, column in self._rows.items():
            self._rows[leaf] = np.empty((self._room, *column.shape[1:]), column.dtype)
            self._rows[leaf][:before] = column
        self._free[:0] = range(self._room - 1, before - 1, -1)


_WIDE = 512
"""Bytes per row from which a separate column is faster than a field of a record."""


class RecordColumns:
    """Rows in numbered slots, all columns allocated at once.

    Columns below 512 bytes per row are fields of one packed record, so that drawing a row touches one place in memory
    instead of one per column; wide columns and objects have their own array. Returned columns are contiguous.

    Args:
        shared: for columns that hold numbers, what they are numbers of.
    """

    def __init__(
        self, specs: Mapping[Leaf, Spec], slots: int, new: New, shared: Mapping[Leaf, SharedFrames] | None = None
    ) -> None:
        self.shared = shared or {}
        specs = {leaf: self.shared[leaf].numbers if leaf in self.shared else spec for leaf, spec in specs.items()}
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
                # Objects cannot live in a file.
                make = np.empty if spec.dtype.hasobject else new
                self.arrays[leaf] = make((slots, *spec.shape), spec.dtype)
        self._places = {leaf: (fields.get(leaf), array, self.shared.get(leaf)) for leaf, array in self.arrays.items()}
        self.bytes = slots * sum(spec.bytes for spec in specs.values())

    def take(self, slots: Index, leaves: Collection[Leaf], new: New = np.empty) -> dict[Leaf, Array]:
        """Copies of rows, `[*slots.shape, ...]`; `new` allocates the arrays of wide columns."""
        records, taken = None, {}
        for leaf in leaves:
            field, column, frames = self._places[leaf]
            if field is not None:
                if records is None:
                    records = self._records.take(slots, mode="clip")
                part = records[field]
                taken[leaf] = part.copy() if frames is None else frames.take(part, new)
            elif column.dtype.hasobject:
                taken[leaf] = column[slots]
            else:
                out = new((*slots.shape, *column.shape[1:]), column.dtype)
                taken[leaf] = column.take(slots, axis=0, out=out, mode="clip")  # `clip`: else `out` is written twice
        return taken
