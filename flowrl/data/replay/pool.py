"""Pool: arrays that are reused once they are no longer referenced."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from flowrl.data.types import Array


class Pool:
    """Reuses arrays without any view, tensor or batch that refers to them, before it allocates new ones.

    Allocating large arrays costs more than filling them, since the system clears each page first. Python's reference
    counts show who refers to an array, so an item that is kept, or on its way, keeps its arrays.

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
        """Drop arrays of shapes no longer requested: whole episodes have another shape in each draw."""
        for kind, arrays in list(self._arrays.items()):
            if held := [array for array in arrays if sys.getrefcount(array) > _IDLE]:
                self._arrays[kind] = held
            else:
                del self._arrays[kind]

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        return Pool, ()  # arrays in flight belong to the original


def are_referred_to(arrays: Iterable[Array]) -> bool:
    """Whether anybody but the one collection that holds them refers to one of the arrays, or to a part of it."""
    return any(sys.getrefcount(array) > _IDLE for array in arrays)


def _references_to_an_idle_array() -> int:
    for array in [np.empty(0)]:
        return sys.getrefcount(array)
    raise AssertionError


_IDLE = _references_to_an_idle_array()
"""The reference count of an unused array inside a loop over what holds it."""
