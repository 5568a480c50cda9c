"""Rings: the storage of replay buffers, one ring of rows per environment with one write cursor for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import check_names, describe
from flowrl.errors import CheckpointError, SchemaError

Index: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_NONE: Index = np.empty(0, np.int64)


class Rings:
    """Preallocated columns `[L, N, ...]`: N rings of L = capacity // N steps each, oldest overwritten first.

    Time-major, so that a fragment `[T, N, ...]` is one block copy; flat rows `[B, ...]` are a ring with N = 1.
    Slots are numbered time-major too, `time * N + environment`. Rings fill from slot 0 on, so the first
    `size` slots are those in use.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.columns: Batch | None = None
        self.slots = Batch()
        """All columns as one row per slot `[L * N, ...]`, a view of `columns`."""
        self.length = self.envs = 0
        """Steps that each ring has room for, and how many rings there are; 0 before the first write."""
        self.flat = False
        self.written = 0
        """Steps ever written to each ring; the cursor is this modulo L."""

    @property
    def size(self) -> int:
        """Rows stored."""
        return min(self.written, self.length) * self.envs

    @property
    def inserts(self) -> int:
        """Rows ever written."""
        return self.written * self.envs

    def write(self, batch: Batch, *, slots: bool = False) -> tuple[Index, Index]:
        """Copy rows `[B, ...]` or a fragment `[T, N, ...]` in.

        Returns: the slots written, in order of time, and those that became drawable by it; nothing unless `slots`.

        Raises: SchemaError for names, dtypes or shapes unlike those of the first write; ValueError where N
            environments do not fit into the capacity.
        """
        flat, block = len(batch.shape) == 1, batch.to_numpy()
        if flat:
            block = block[:, None]
        if self.columns is None:
            self.columns, self.flat = self._allocate(block), flat
        elif flat != self.flat:
            raise SchemaError(f"the buffer was filled with {_layout(self.flat)}, got {_layout(flat)}: {batch!r}")
        _check_fits(self.columns, block)
        # Of a fragment longer than the ring the end is kept, where it would have come to lie.
        steps, length = len(block), self.length
        kept = min(steps, length)
        start = (self.written + steps - kept) % length
        before_end = min(kept, length - start)
        first, rest = steps - kept, steps - kept + before_end
        self.columns[start : start + before_end] = block[first:rest]
        if rest < steps:
            self.columns[: steps - rest] = block[rest:]
        self.written += steps
        if not slots:
            return _NONE, _NONE
        rows = np.arange(start * self.envs, (start + kept) * self.envs) % (self.length * self.envs)
        return rows, rows

    @property
    def drawable(self) -> int:
        """Rows that may be drawn as far as the storage knows: those whose next observation is there (B2)."""
        return self.size

    def nth(self, number: Index) -> Index:
        """The slots of the drawable rows by number, 0 .. drawable − 1: `nth(generator.integers(drawable))`."""
        return number

    def take(self, slot: Index, names: Iterable[str] | None = None) -> Batch:
        """Copies of the rows at slots of any shape, `[*slot.shape, ...]`; of the named columns, or of all."""
        rows: Batch = (self.slots if names is None else self.slots.select(names))[slot]
        return rows

    def generation(self, slot: Index) -> Index:
        """How many times each slot had been written."""
        return (self.written - 1 - slot // self.envs) // self.length + 1

    def following(self, slot: Index, n: int) -> tuple[Index, np.ndarray[Any, np.dtype[np.bool_]]]:
        """The slots of n steps of one ring from each slot on, `[n, B]`, and where the newest step is reached.

        Beyond the newest step, the write cursor, its slot is repeated.
        """
        to_newest = min(self.written, self.length) - 1 - self._age(slot)
        ahead = np.minimum(np.arange(n)[:, None], to_newest)
        return self._moved(slot, ahead), ahead == to_newest

    def preceding(self, slot: Index, n: int) -> tuple[Index, np.ndarray[Any, np.dtype[np.bool_]]]:
        """The slots of n steps of one ring from each slot back, `[n, B]`, and where the oldest step is reached.

        Before the oldest step its slot is repeated.
        """
        to_oldest = self._age(slot)
        back = np.minimum(np.arange(n)[:, None], to_oldest)
        return self._moved(slot, -back), back == to_oldest

    def _age(self, slot: Index) -> Index:
        """How many steps after the oldest one of its ring each slot is."""
        oldest = self.written % self.length if self.written > self.length else 0
        return (slot // self.envs - oldest) % self.length

    def _moved(self, slot: Index, steps: Index) -> Index:
        return (slot // self.envs + steps) % self.length * self.envs + slot % self.envs

    def state_dict(self) -> dict[str, Any]:
        """Plain data, copied."""
        columns = None if self.columns is None else self.columns[: self.written].map(np.copy).to_dict()
        return {"capacity": self.capacity, "columns": columns, "flat": self.flat, "written": self.written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError for the state of another capacity."""
        if state["capacity"] != self.capacity:
            raise CheckpointError(
                f"the saved buffer has capacity {state['capacity']}, this one {self.capacity}; it must be equal"
            )
        self.columns, self.slots, self.length, self.envs = None, Batch(), 0, 0
        self.flat, self.written = state["flat"], state["written"]
        if state["columns"] is not None:
            block = Batch(state["columns"])
            self.columns = self._allocate(block)
            self.columns[: len(block)] = block

    def _allocate(self, block: Batch) -> Batch:
        length, envs = self.capacity // block.shape[1], block.shape[1]
        if length < 1:
            raise ValueError(f"capacity is {self.capacity}: {envs} environments need at least 1 row each")
        columns = block.map(lambda column: np.empty((length, *column.shape[1:]), column.dtype))
        self.slots, self.length, self.envs = columns.flat(), length, envs
        return columns


def _layout(flat: bool) -> str:
    return "rows [B, ...]" if flat else "fragments [T, N, ...]"


def _check_fits(columns: Batch, block: Batch, path: str = "") -> None:
    """Raise a SchemaError unless the block has the names, dtypes and shapes (time aside) of the storage."""
    if block.keys() != columns.keys():
        check_names(dict(columns), block, f"column {path!r} of the batch" if path else "the batch")
    for name, column in columns.items():
        part, where = block[name], f"{path}.{name}" if path else name
        if isinstance(column, Batch) and isinstance(part, Batch):
            _check_fits(column, part, where)
        elif (
            isinstance(column, Batch)
            or isinstance(part, Batch)
            or part.dtype != column.dtype
            or part.shape[1:] != column.shape[1:]
        ):
            raise SchemaError(
                f"column {where!r}: the buffer stores {describe(column[0])} per step, got {describe(part[0])}"
            )
