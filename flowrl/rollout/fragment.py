"""The fragment that a rollout worker fills: columns `[T, N, ...]`, allocated once, written step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import Column, check_names
from flowrl.saved import Saved

Lengths = np.ndarray[Any, np.dtype[np.int64]]


class Fragment:
    """Rows of N environments; a column is an array, or a nested batch for dictionary observations.

    A step writes one row of a block `[S, N, ...]`. An environment that only reset itself has no row of it (T1): a mask
    says so, and when the rows are cut, each environment's are moved together. Rows past T begin the next fragment.

    State: the rows that belong to the next fragment.
    """

    def __init__(self, num_envs: int) -> None:
        self._ids = np.arange(num_envs)
        self._reserved = 1
        self._block = Batch()
        self._names: frozenset[str] = frozenset()  # of its columns
        self._room = 0  # S
        self._steps = 0  # rows of the block that are written
        self._lengths: Lengths | None = None  # rows of each environment; None: each has all of the block
        self._acted = np.empty((0, num_envs), np.bool_)  # whose rows they are, unless all have all

    @property
    def rows(self) -> int:
        """The number of rows that every environment has."""
        return self._steps if self._lengths is None else int(self._lengths.min())

    def reserve(self, rows: int) -> None:
        """Size the next allocation for this number of rows."""
        self._reserved = rows

    def write(self, row: dict[str, Column], acted: np.ndarray[Any, np.dtype[np.bool_]] | None) -> None:
        """Write one row `[N, ...]` of each column, for the environments that acted (None: all).

        Raises:
            SchemaError: rows with other columns wait for the next fragment.
        """
        if row.keys() != self._names:
            if rows := self.lengths().max():
                waiting = f"{rows} rows of another policy wait for the next fragment (reset_env() drops them)"
                check_names(dict(self._block.items()), row, f"{waiting}; the policy's row")
            self.clear()
            self._room = 0
        if not self._room:
            self._allocate(Batch(row), self._reserved)
        elif self._steps == self._room:
            written, lengths = self._written(), self.lengths()
            if 2 * lengths.max() >= self._room:  # moved together, they would soon fill it again
                self._allocate(Batch(row), max(self._reserved, 2 * self._room))
            self._begin(written, lengths)
        at = self._steps
        for name, column in self._block.items():
            column[at] = row[name]
        self._steps += 1
        if self._lengths is None:
            if acted is None or acted.all():
                return
            self._lengths = np.full(len(self._ids), at)
            self._acted[:at] = True
        self._acted[at] = True if acted is None else acted
        self._lengths += self._acted[at]

    def cut(self, rows: int) -> Batch:
        """Remove and return the first `rows` rows of every environment; the batch owns its arrays."""
        if self._lengths is None and rows == self._steps:  # as usual: nothing stays
            whole, self._block = self._block, Batch()
            self._room = self._steps = 0
            return whole if len(whole) == rows else whole[:rows]
        written, lengths = self._written(), self.lengths()
        if self._lengths is None:
            self._room = 0  # the block is the batch's
        self._begin(written[rows:], np.maximum(lengths - rows, 0))
        taken: Batch = written[:rows]
        return taken

    def lengths(self) -> Lengths:
        """Rows written, by environment."""
        return np.full(len(self._ids), self._steps) if self._lengths is None else self._lengths.copy()

    def cut_all(self) -> Batch:
        """Remove and return everything, also rows that only some environments have: see `lengths`."""
        rows = int(self.lengths().max())
        self._reserved = max(1, rows)  # the next fragment is likely as long
        return self.cut(rows)

    def clear(self) -> None:
        """Drop all rows."""
        self._steps, self._lengths = 0, None

    def state_dict(self) -> dict[str, Any]:
        lengths = self.lengths()
        columns, rows = self._written().map(np.copy), int(lengths.max())
        if (lengths == rows).all():
            return {"columns": columns.to_dict() if rows else {}, "rows": rows, "cursor": None}
        # Unwritten rows hold arbitrary numbers, but equal states must be equal (D5).
        columns[np.arange(rows)[:, None] >= lengths] = 0
        return {"columns": columns.to_dict(), "rows": rows, "cursor": lengths.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved fragment")
        rows, cursor = saved.count("rows"), saved.get("cursor", list[int] | None)
        columns = Batch(saved.get("columns", dict)).map(np.asarray)
        if rows and (columns.is_empty or len(columns.shape) < 2 or columns.shape[0] != rows):
            saved.refuse("columns", f"{rows} rows [T, N, ...] of each column")
        if cursor is not None and not all(0 <= each <= rows for each in cursor):
            saved.refuse("cursor", f"rows of each environment, 0 .. {rows}")
        self._room = 0
        self._begin(columns, np.array([rows] * len(self._ids) if cursor is None else cursor, np.int64))

    def _written(self) -> Batch:
        """`[T, N, ...]`: the rows of each environment one after the other, and then any, T the most that one has."""
        written: Batch = self._block[: self._steps]
        if self._lengths is None:
            return written
        order = np.argsort(~self._acted[: self._steps], axis=0, kind="stable")[: self._lengths.max()]
        places = order * len(self._ids) + self._ids
        return written.map(lambda column: column.reshape(-1, *column.shape[2:]).take(places, axis=0))

    def _begin(self, rows: Batch, lengths: Lengths) -> None:
        """Begin the block with these rows `[T, N, ...]`, of which each environment has the first ones."""
        self._steps = count = len(rows)
        self._lengths = None if (lengths == count).all() else lengths
        if count > self._room:
            self._allocate(rows[0], max(self._reserved, count))
        if count:
            self._block[:count] = rows
            self._acted[:count] = np.arange(count)[:, None] < lengths

    def _allocate(self, row: Batch, room: int) -> None:
        """Allocate a block for rows like this one."""
        self._block = row.map(lambda column: np.empty((room, *column.shape), column.dtype))
        self._acted = np.empty((room, len(self._ids)), np.bool_)
        self._names, self._room = frozenset(row), room
