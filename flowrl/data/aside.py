"""Aside: the few next observations that the next row of a ring does not hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowrl.data.arrays import Array, Index
from flowrl.data.leaves import Leaf
from flowrl.data.packed import Spec


class Aside:
    """Rows in numbered places, as many as are needed; freed places are used again.

    >>> aside = Aside({("obs",): Spec(np.dtype(np.float32), ())})
    >>> aside.put({("obs",): np.array([7, 8])})
    array([0, 1])
    >>> aside.free(np.array([0]))
    >>> aside.put({("obs",): np.array([9])}), aside.take(np.array([1, 0]))
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
        """These rows are not needed any longer."""
        self._free.extend(places.tolist())

    def _grow(self) -> None:
        before, self._room = self._room, max(16, 2 * self._room)
        for leaf, column in self._rows.items():
            self._rows[leaf] = np.empty((self._room, *column.shape[1:]), column.dtype)
            self._rows[leaf][:before] = column
        self._free[:0] = range(self._room - 1, before - 1, -1)
