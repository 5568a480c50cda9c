"""The array operations of `SumTree` as loops that numba compiles, with identical results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowrl.data.types import Array

FANOUT = 16
"""Children of a node: few enough to share two cache lines, and a power of 2, to combine them by halves."""


class Loops(NamedTuple):
    """The two operations that take most time."""

    climb: Callable[..., None]
    descend: Callable[..., Array]


@functools.cache
def compiled() -> Loops:
    """The loops as machine code, compiled at their first call.

    It is kept for other processes beside this file, or in the user's folder of caches.
    """
    import numba

    compile_: Any = numba.njit  # numba has partial types
    try:
        return Loops(compile_(climb, cache=True), compile_(descend, cache=True))
    except RuntimeError:  # nothing can be written in either place
        return Loops(compile_(climb), compile_(descend))


def climb(levels: tuple[Array, ...], top: Array, slots: Array) -> None:
    """Recompute the sums above some slots, half with half."""
    part = np.empty(FANOUT)
    nodes = slots.copy()
    for depth in range(len(levels)):
        level = levels[depth]
        above = levels[depth + 1] if depth + 1 < len(levels) else top.reshape(-1, 1)
        width = above.shape[1]
        last = -1
        for i in range(len(nodes)):
            node = nodes[i] // FANOUT
            nodes[i] = node
            if node == last:
                continue
            last = node
            for child in range(FANOUT // 2):
                part[child] = level[node, child] + level[node, child + FANOUT // 2]
            half = FANOUT // 4
            while half > 0:
                for child in range(half):
                    part[child] += part[child + half]
                half //= 2
            above[node // width, node % width] = part[0]


def descend(levels: tuple[Array, ...], top: Array, uniform: Array) -> Array:
    """The slot at each fraction of the total, level by level, so that memory accesses overlap."""
    bounds = np.zeros(len(top) + 1)
    bound = 0.0
    for i in range(len(top)):
        bound += top[i]
        bounds[i + 1] = bound
    rests = np.minimum(uniform * bounds[-1], np.nextafter(bounds[-1], 0.0))
    nodes: Array = np.searchsorted(bounds[1:], rests, side="right")
    rests -= bounds[nodes]
    inner = np.empty(FANOUT)
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        for i in range(len(nodes)):
            node, rest, bound = nodes[i], rests[i], 0.0
            for child in range(FANOUT):
                bound += level[node, child]
                inner[child] = bound
            if rest >= bound:
                rest = np.nextafter(bound, 0.0)
            first = 0  # the child whose bound exceeds the rest; counted without a branch, which would mispredict
            for child in range(FANOUT):
                first += inner[child] <= rest
            rests[i] = rest - inner[first - 1] if first > 0 else rest
            nodes[i] = node * FANOUT + first
    return nodes
