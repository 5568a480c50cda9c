"""The fragment that a rollout worker fills: columns `[T, N, ...]`, allocated once, written step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import Column, check_names
from flowrl.saved import Saved


class Fragment:
    """Rows of N environments; a column is an array, or a nested batch for dictionary observations.

    Rows in which an environment only reset itself are not written (T1). From the first such row on, every environment
    has its own cursor; rows past T begin the next fragment.

    State: the rows that belong to the next fragment.
    """

    def __init__(self, num_envs: int) -> None:
        self._ids = np.arange(num_envs)
        self._columns = Batch()
        self._names: frozenset[str] = frozenset()  # of the columns
        self._room = 0  # capacity of the columns in rows
        self._reserved = 1
        self._rows = 0  # the highest cursor; every environment's while `_cursor` is None
        self._cursor: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def rows(self) -> int:
        """The number of rows that every environment has."""
        return self._rows if self._cursor is None else int(self._cursor.min())

    def reserve(self, rows: int) -> None:
        """Size the next allocation for this number of rows."""
        self._reserved = rows

    def write(self, row: dict[str, Column], acted: np.ndarray[Any, np.dtype[np.bool_]] | None) -> None:
        """Write one row `[N, ...]` of each column, for the environments that acted (None: all).

        Raises:
            SchemaError: rows with other columns wait for the next fragment.
        """
        if row.keys() != self._names:
            if self._rows:
                waiting = f"{self._rows} rows of another policy wait for the next fragment (reset_env() drops them)"
                check_names(dict(self._columns.items()), row, f"{waiting}; the policy's row")
            self._room = 0
        if self._rows >= self._room:
            self._allocate(row)
        if acted is not None and self._cursor is None and not acted.all():
            self._cursor = np.full(len(self._ids), self._rows)
        if self._cursor is None:
            at = self._rows
            for name, column in self._columns.items():
                column[at] = row[name]
            self._rows += 1
        else:
            at_ids = (self._cursor, self._ids)
            for name, column in self._columns.items():
                column[at_ids] = row[name]  # environments that did not act overwrite this row next time
            self._cursor += 1 if acted is None else acted
            self._rows = int(self._cursor.max())

    def cut(self, rows: int) -> Batch:
        """Remove and return the first `rows` rows of every environment; the batch owns its arrays."""
        taken: Batch = self._columns[:rows]
        over: Batch = self._columns[rows : self._rows]
        self._columns, self._room, self._rows = Batch(), 0, self._rows - rows
        if self._cursor is not None:
            self._cursor -= rows
            if (self._cursor == self._rows).all():
                self._cursor = None
        if self._rows:
            self._restore(over)
        return taken

    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows written, by environment."""
        return np.full(len(self._ids), self._rows) if self._cursor is None else self._cursor.copy()

    def cut_all(self) -> Batch:
        """Remove and return everything, also rows that only some environments have: see `lengths`."""
        taken: Batch = self._columns[: self._rows]
        self._reserved = max(1, self._rows)  # the next fragment is likely as long
        self.clear()
        return taken

    def clear(self) -> None:
        """Drop all rows."""
        self._columns, self._room, self._rows, self._cursor = Batch(), 0, 0, None

    def state_dict(self) -> dict[str, Any]:
        columns = self._columns[: self._rows].map(np.copy) if self._rows else Batch()
        if self._cursor is None:
            return {"columns": columns.to_dict(), "rows": self._rows, "cursor": None}
        # Unwritten rows hold arbitrary memory, but equal states must be equal (D5).
        columns[np.arange(self._rows)[:, None] >= self._cursor] = 0
        return {"columns": columns.to_dict(), "rows": self._rows, "cursor": self._cursor.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved fragment")
        rows, cursor = saved.count("rows"), saved.get("cursor", list[int] | None)
        columns = Batch(saved.get("columns", dict)).map(np.asarray)
        if rows and (columns.is_empty or len(columns.shape) < 2 or columns.shape[0] != rows):
            saved.refuse("columns", f"{rows} rows [T, N, ...] of each column")
        if cursor is not None and not all(0 <= each <= rows for each in cursor):
            saved.refuse("cursor", f"rows of each environment, 0 .. {rows}")
        self.clear()
        self._rows = rows
        self._cursor = None if cursor is None else np.array(cursor, np.int64)
        if rows:
            self._restore(columns)

    def _restore(self, columns: Batch) -> None:
        self._room = max(self._reserved, self._rows)
        self._columns = columns.map(lambda column: np.empty((self._room, *column.shape[1:]), column.dtype))
        self._columns[: self._rows] = columns
        self._names = frozenset(columns)

    def _allocate(self, row: dict[str, Column]) -> None:
        """Allocate columns for the reserved rows, or for twice the present number."""
        self._room = max(self._reserved, 2 * self._rows)
        grown = Batch(row).map(lambda value: np.empty((self._room, *value.shape), value.dtype))
        if self._rows:
            grown[: self._rows] = self._columns[: self._rows]
        self._columns = grown
        self._names = frozenset(row)
