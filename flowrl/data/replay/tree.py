"""Leaves: the arrays of a batch, at any depth, each with its path.

`Batch.leaves` returns them with dotted names, for display; two leaves may share a name, but not a path.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import array
from flowrl.data.types import Array

Leaf: TypeAlias = tuple[str, ...]
"""The path of an array in a batch: `("reward",)`, or `("obs", "image")` in a nested one."""


class Spec(NamedTuple):
    """Dtype and shape of one row of a column."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


def leaves(batch: Batch, under: Leaf = ()) -> dict[Leaf, Array]:
    """The arrays of a batch and its nested batches; tensors as arrays."""
    found: dict[Leaf, Array] = {}
    for name, column in batch.items():
        if type(column) is np.ndarray:
            found[(*under, name)] = column
        elif isinstance(column, Batch):
            found.update(leaves(column, (*under, name)))
        else:
            found[(*under, name)] = array(column)
    return found


def nested(columns: Mapping[Leaf, Any]) -> Batch:
    """The batch with these leaves.

    >>> nested({("obs", "x"): np.zeros(2), ("reward",): np.zeros(2)})
    Batch[2](obs=Batch[2](x=float64[2]), reward=float64[2])
    """
    made: dict[str, Any] = {leaf[0]: column for leaf, column in columns.items()}
    if all(len(leaf) == 1 for leaf in columns):
        return Batch.of(made)
    made = {}
    for leaf, column in columns.items():
        inside = made
        for name in leaf[:-1]:
            inside = inside.setdefault(name, {})
        inside[leaf[-1]] = column
    return Batch(made)


def under(name: str, among: Collection[Leaf]) -> Iterator[Leaf]:
    """The leaves that a top-level column consists of."""
    return (leaf for leaf in among if leaf[0] == name)
