"""Eligibility: the rows that may still be drawn if uses or staleness are limited (rule B10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.data.types import Array, Index, Mask
from flowrl.saved import Saved

_UNLIMITED = 2**31 - 1


class Eligibility:
    """The slots that may be drawn, as a list with removal in constant time.

    Args:
        max_uses: how often a row is drawn at most. max_staleness: how many policy versions a row may be older than
            the newest one stored.
    """

    def __init__(self, max_uses: int | None, max_staleness: int | None) -> None:
        self.max_uses = max_uses
        self.max_staleness = max_staleness
        self.reset(0)

    def reset(self, slots: int) -> None:
        """Empty the list, for this number of slots."""
        self.count = 0
        """Slots that may be drawn."""
        self.uses_left = 0
        """The number of draws until all rows are used up, if nothing is added."""
        self._members: Index = np.empty(slots, np.int64)
        self._place: Index = np.full(slots, -1, np.int64)  # index in members; -1: may not be drawn
        self._left: Index = np.zeros(slots, np.int64)  # remaining uses of members
        self._version: Index = np.zeros(slots if self.max_staleness is not None else 0, np.int64)
        self._of_version: dict[int, list[Index]] = {}
        self._filed = 0

    @property
    def slots(self) -> int:
        """The number of slots, 0 at first."""
        return len(self._place)

    @property
    def of_versions(self) -> bool:
        """Whether it needs the policy version of rows."""
        return self.max_staleness is not None

    @property
    def members(self) -> Index:
        """The slots that may be drawn; a view, valid until the next change."""
        return self._members[: self.count]

    def nth(self, number: Index) -> Index:
        """The slots that may be drawn by number, 0 .. count − 1."""
        return self._members[number]

    def stored(
        self, written: Index, drawable: Index, uses: Array | None, version: Array | None, newest: int | None
    ) -> tuple[Index, Index]:
        """Rows were written.

        Args:
            written: slots whose former rows are gone. drawable: those whose rows can be drawn from now on.
            uses, version: of the drawable rows: how often they were drawn, and the policy version that collected them.
            newest: the newest stored version.

        Returns: the drawable slots that may be drawn, and slots that have become too stale.
        """
        self._remove(written)
        left = np.full(len(drawable), _UNLIMITED) if uses is None else (self.max_uses or _UNLIMITED) - uses
        allowed = left > 0
        if self.max_staleness is None or version is None or newest is None:
            self._insert(drawable[allowed], left[allowed])
            return drawable[allowed], drawable[:0]
        least = newest - self.max_staleness
        allowed &= version >= least
        self._version[drawable] = version
        self._insert(drawable[allowed], left[allowed])
        self._file(drawable[allowed])
        return drawable[allowed], self._expired(least)

    def can_draw(self, rows: int) -> bool:
        """Whether so many rows can be drawn."""
        return self.count > 0 and (self.max_uses is None or self.uses_left >= rows)

    def why(self, rows: int) -> str:
        """Why so many rows cannot be drawn."""
        limits = {"max_uses": self.max_uses, "max_staleness": self.max_staleness}
        given = " and ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        return f"with {given}, {self.count} of the rows stored may be drawn, not often enough for {rows}"

    def accept(self, slots: Index) -> tuple[Array, Index]:
        """Count one use of each drawn slot `[B]`; returns which had a use left, and the slots now used up."""
        if self.max_uses is None:
            return np.ones(len(slots), np.bool_), slots[:0]
        accepted = _occurrence(slots) < self._left[slots]
        drawn = slots[accepted]
        np.subtract.at(self._left, drawn, 1)
        self.uses_left -= len(drawn)
        used_up = np.unique(drawn[self._left[drawn] == 0])
        self._remove(used_up)
        return accepted, used_up

    def state_dict(self) -> dict[str, Any]:
        """A copy as plain data: the order of the slots determines later draws."""
        members = self._members[: self.count].copy()
        return {
            "max_uses": self.max_uses,
            "max_staleness": self.max_staleness,
            "slots": len(self._place),
            "members": members,
            "left": self._left[members],
            "versions": self._version[members] if self.max_staleness is not None else None,
        }

    @classmethod
    def of(cls, saved: Saved, slots: int, drawable: Mask) -> Eligibility:
        """One with a saved state, for a number of slots of which the first ones `[size]` may be `drawable`."""
        made = cls(saved.get("max_uses"), saved.get("max_staleness"))
        members = saved.array("members", np.int64, (None,), least=0, most=len(drawable) - 1)
        listed = np.zeros(len(drawable), np.bool_)
        listed[members] = True
        if np.count_nonzero(listed) < len(members) or (listed & ~drawable).any():
            saved.refuse("members", "slots that can be drawn, each once")
        left = saved.array("left", np.int64, (len(members),), least=1, most=made.max_uses or _UNLIMITED)
        if saved.get("slots", int) != slots:
            saved.refuse("slots", f"{slots}, those of a buffer of this capacity")
        made.reset(slots)
        made._insert(members, left)
        if made.max_staleness is not None:
            made._version[members] = saved.array("versions", np.int64, (len(members),))
            made._file(members)
        return made

    def _insert(self, slots: Index, left: Array) -> None:
        end = self.count + len(slots)
        self._members[self.count : end] = slots
        self._place[slots] = np.arange(self.count, end)
        self._left[slots] = left
        self.uses_left += int(left.sum())
        self.count = end

    def _remove(self, slots: Index) -> Index:
        """Remove slots that are in the list; returns them. The last entries fill the gaps."""
        slots = slots[self._place[slots] >= 0]
        places, kept = self._place[slots], self.count - len(slots)
        self.uses_left -= int(self._left[slots].sum())
        self._place[slots] = -1
        tail = self._members[kept : self.count]
        movers, holes = tail[self._place[tail] >= 0], places[places < kept]
        self._members[holes], self._place[movers] = movers, holes
        self.count = kept
        return slots

    def _file(self, slots: Index) -> None:
        """Record the slots of each version; entries of overwritten rows are dropped later."""
        self._filed += len(slots)
        if self._filed > 2 * len(self._place):
            self._of_version, slots, self._filed = {}, self._members[: self.count].copy(), self.count
        versions = self._version[slots]
        for version in np.unique(versions).tolist():
            self._of_version.setdefault(version, []).append(slots[versions == version])

    def _expired(self, least: int) -> Index:
        """Remove the rows of versions before `least`; returns their slots."""
        gone = [self._of_version.pop(version) for version in list(self._of_version) if version < least]
        if not gone:
            return np.empty(0, np.int64)
        slots = np.unique(np.concatenate([part for parts in gone for part in parts]))
        self._filed -= sum(len(part) for parts in gone for part in parts)
        return self._remove(slots[self._version[slots] < least])


def _occurrence(values: Index) -> Index:
    """The number of equal values before each one.

    >>> _occurrence(np.array([5, 7, 5, 5]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    count = np.arange(len(values))
    first = np.maximum.accumulate(np.where(np.r_[True, ranked[1:] != ranked[:-1]], count, 0))
    found = np.empty(len(values), np.int64)
    found[order] = count - first
    return found
