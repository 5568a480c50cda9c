"""SumTree: samples slots in proportion to their masses, in plain numpy or compiled."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from typing import Any

import numpy as np

from flowrl.data.replay import sum_tree_loops as loops
from flowrl.data.replay.sum_tree_loops import FANOUT
from flowrl.data.types import Floats, Index

TOP = 4096
"""Most nodes of the top level, which is searched as a whole: numpy does that faster than two levels."""


class SumTree:
    """Masses ≥ 0 of `capacity` slots, all 0 at first; `find` draws slots with probability mass / total.

    A node is the sum of its 16 children. A change is never added to the sums above: they are recomputed from their
    children, so they cannot drift (P5), and depend on the masses alone.

    Args:
        capacity: slots.
        compiled: run loops compiled by numba (the extra `compiled`), or whole-array numpy. The results are identical,
            bit for bit. None: compiled if numba is installed.

    Raises: ValueError for compiled=True without numba.

    >>> tree = SumTree(4, compiled=False)
    >>> tree[np.array([0, 2])] = np.array([1.0, 3.0])
    >>> tree.find(np.array([0.0, 0.2, 0.3, 0.9]))
    array([0, 0, 2, 2])
    """

    def __init__(self, capacity: int, *, compiled: bool | None = None) -> None:
        self.capacity, self._wanted = capacity, compiled
        there = importlib.util.find_spec("numba") is not None
        if compiled and not there:
            raise ValueError("compiled=True needs numba (the extra `compiled`): pip install numba, or leave it out")
        self.compiled = there if compiled is None else compiled
        self._levels: list[Floats] = []
        nodes = capacity
        while not self._levels or nodes > TOP:
            groups = -(-nodes // FANOUT)
            self._levels.append(np.zeros((groups, FANOUT)))
            nodes = groups
        self._top = np.zeros(nodes)
        # Largest and smallest mass of each group of slots, and the groups in which they are outdated.
        groups = len(self._levels[0])
        self._largest, self._smallest = np.zeros(groups), np.full(groups, np.inf)
        self._stale = np.zeros(groups, bool)

    def __repr__(self) -> str:
        return f"SumTree(capacity={self.capacity}, compiled={self.compiled})"

    def __getitem__(self, slots: Index) -> Floats:
        """Masses of slots."""
        masses: Floats = self.masses[slots]
        return masses

    def __setitem__(self, slots: Index, mass: Floats | float) -> None:
        """Set the masses of slots; for repeated slots the last counts."""
        self.masses[slots] = mass
        self._stale[slots // FANOUT] = True
        if self.compiled:
            loops.compiled().climb(tuple(self._levels), self._top, slots)
        else:
            self._climb(slots)

    @property
    def masses(self) -> Floats:
        """The masses of all slots, a view."""
        return self._levels[0].reshape(-1)[: self.capacity]

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(np.cumsum(self._top)[-1])

    @property
    def largest(self) -> float:
        """The largest mass; 0 if there is none."""
        self._look_up()
        return float(self._largest.max())

    @property
    def smallest(self) -> float:
        """The smallest mass above 0; infinite if there is none."""
        self._look_up()
        return float(self._smallest.min())

    def find(self, uniform: Floats) -> Index:
        """The slot at each fraction `[B]`, in [0, 1), of the cumulative mass.

        A slot of mass 0 is never found, not even at the rounded edges of its neighbors (P5).

        Raises: ValueError if there is no mass.
        """
        if not self._top.max() > 0:
            raise ValueError("nothing can be found in a SumTree without mass")
        if self.compiled:
            found: Index = loops.compiled().descend(tuple(self._levels), self._top, uniform)
            return found
        return self._descend(uniform)

    def fill(self, masses: Floats) -> None:
        """Set the mass of every slot."""
        self.masses[:] = masses
        self._stale[:] = True
        self._climb(np.arange(0, self.capacity, FANOUT))

    def _climb(self, node: Index) -> None:
        """Recompute the sums above these nodes."""
        for level, above in zip(self._levels, [*self._levels[1:], self._top]):
            node = node // FANOUT
            above.reshape(-1)[node] = _halved(_children(level, node), np.add)

    def _descend(self, uniform: Floats) -> Index:
        bounds = np.zeros(len(self._top) + 1)
        np.cumsum(self._top, out=bounds[1:])
        # If mass lies below an upper edge, the node found has some: its upper bound exceeds its lower one.
        rest = np.minimum(uniform * bounds[-1], np.nextafter(bounds[-1], 0))
        node: Index = bounds[1:].searchsorted(rest, side="right")
        rest = rest - bounds[node]
        row = np.arange(len(node))
        for level in reversed(self._levels):
            bounds = np.zeros((FANOUT + 1, len(node)))
            bounds[1:] = _children(level, node)
            for lower, upper in pairwise(bounds):
                upper += lower
            rest = np.minimum(rest, np.nextafter(bounds[-1], 0))
            child = np.add.reduce((bounds[1:] <= rest).view(np.int8), axis=0, dtype=np.int8)
            rest = rest - bounds[child, row]
            node = node * FANOUT + child
        return node

    def _look_up(self) -> None:
        groups = np.flatnonzero(self._stale)
        masses = _children(self._levels[0], groups)
        self._largest[groups] = _halved(masses, np.maximum)
        self._smallest[groups] = _halved(np.where(masses > 0, masses, np.inf), np.minimum)
        self._stale[groups] = False

    def __getstate__(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "compiled": self._wanted, "masses": self.masses.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["capacity"], compiled=state["compiled"])  # type: ignore[misc]
        self.fill(state["masses"])


def _children(level: Floats, node: Index) -> Floats:
    """`[16, B]`: numpy works fastest along the longest axis."""
    children: Floats = np.ascontiguousarray(level.take(node, axis=0).T)
    return children


def _halved(children: Floats, combine: np.ufunc) -> Floats:
    """Combine each column of `[16, B]` to one number, half with half: an order that the loops follow exactly."""
    while len(children) > 1:
        half = len(children) // 2
        children = combine(children[:half], children[half:])
    combined: Floats = children[0]
    return combined
