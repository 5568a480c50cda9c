"""SlotSet: the slots of a buffer that can be drawn, numbered without gaps."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Index: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class SlotSet:
    """A set of slots out of 0 .. slots − 1 whose members have the numbers 0 .. size − 1, in no particular order.

    Adding and removing takes time in proportion to what is added and removed.

    >>> few = SlotSet(10)
    >>> few.add(np.array([3, 5, 8]))
    >>> few.discard(np.array([3, 4]))
    >>> few.members
    array([8, 5])
    """

    def __init__(self, slots: int) -> None:
        self.size = 0
        self._members = np.empty(slots, np.int64)
        self._number = np.full(slots, -1)  # of a slot among the members

    @property
    def members(self) -> Index:
        """The slots by number; a view that the next change spoils."""
        return self._members[: self.size]

    def add(self, slots: Index) -> None:
        """Give numbers to slots, different ones that have none."""
        numbers = np.arange(self.size, self.size + len(slots))
        self._members[numbers], self._number[slots] = slots, numbers
        self.size += len(slots)

    def discard(self, slots: Index) -> None:
        """Take different slots out, those that are in; the last members get the numbers that become free."""
        numbers = self._number[slots]
        numbers = numbers[numbers >= 0]
        if not len(numbers):
            return
        self._number[self._members[numbers]] = -1
        size = self.size - len(numbers)
        last = self._members[size : self.size]
        moved, free = last[self._number[last] >= 0], numbers[numbers < size]
        self._members[free], self._number[moved] = moved, free
        self.size = size
