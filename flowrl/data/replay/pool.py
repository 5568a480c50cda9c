"""Pool: arrays that are used again once nobody holds them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from flowrl.data.types import Array


class Pool:
    """Gives out arrays of which no view, tensor or batch is held anywhere, before it makes new ones.

    Large new arrays cost more than filling them: the system clears each page of theirs first. Who holds an array is
    what Python's reference counts say, so an item that is kept, or still on its way, keeps its arrays.

    >>> pool = Pool()
    >>> first = pool.empty((2,), np.dtype(np.int64))
    >>> pool.empty((2,), np.dtype(np.int64)) is first
    False
    >>> at = id(first); view = first[:1]; del first
    >>> id(pool.empty((2,), np.dtype(np.int64))) == at
    False
    >>> del view
    >>> id(pool.empty((2,), np.dtype(np.int64))) == at
    True
    """

    def __init__(self) -> None:
        self._arrays: dict[Any, list[Array]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array like `np.empty(shape, dtype)`."""
        for array in self._arrays.get((shape, dtype), ()):
            if sys.getrefcount(array) <= _IDLE:
                return array
        self._forget_idle()
        made = np.empty(shape, dtype)
        self._arrays.setdefault((shape, dtype), []).append(made)
        return made

    def _forget_idle(self) -> None:
        """Keep no array that nobody asks for any longer: whole episodes have another shape in each draw."""
        for kind, arrays in list(self._arrays.items()):
            if held := [array for array in arrays if sys.getrefcount(array) > _IDLE]:
                self._arrays[kind] = held
            else:
                del self._arrays[kind]

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        return Pool, ()  # what is in flight belongs to the original


def _references_to_an_idle_array() -> int:
    for array in [np.empty(0)]:
        return sys.getrefcount(array)
    raise AssertionError


_IDLE = _references_to_an_idle_array()
"""References that the loop over a pool's list counts where nobody else has one."""
