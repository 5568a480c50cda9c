"""Likeness: whether a batch has the names, dtypes and shapes of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np

from flowrl.data.arrays import Array
from flowrl.data.batch import Batch
from flowrl.data.columns import check_names, describe
from flowrl.data.leaves import Leaf, leaves, nested
from flowrl.data.packed import Spec
from flowrl.errors import SchemaError


class Likeness:
    """Takes the arrays out of batches that are like the first one, by a few comparisons of lists.

    Args:
        specs: of one row. envs: environments of a fragment; None for rows `[B, ...]`.
    """

    def __init__(self, specs: Mapping[Leaf, Spec], envs: int | None) -> None:
        self._flat = envs is None
        self._leaves = list(specs)
        self._nested = any(len(leaf) > 1 for leaf in specs)
        self._names = self._leaves if self._nested else [leaf[0] for leaf in specs]
        self._dtypes = [spec.dtype for spec in specs.values()]
        self._features = [spec.shape if envs is None else (envs, *spec.shape) for spec in specs.values()]
        self._steps, self._alike = 0, list[Any]()

    def parts(self, batch: Batch) -> list[Array]:
        """The arrays of a batch in the order of the first one's; none if it has no rows.

        Raises: SchemaError naming the column, what is expected and what it is.
        """
        if (parts := self._quickly(batch)) is not None:
            return parts
        if batch.is_empty:
            return []
        found = leaves(batch)
        known = {leaf: found[leaf] for leaf in self._leaves if leaf in found}  # in the order of the first batch
        if (parts := self._quickly(nested(known | found))) is not None:
            return parts
        if not batch.shape:
            raise SchemaError(f"the columns are not of one length: {batch!r}")
        if len(batch.shape) != (1 if self._flat else 2):
            raise SchemaError(
                f"the buffer was filled with {_layout(self._flat)}, got {_layout(not self._flat)}: {batch!r}"
            )
        example = nested(
            {leaf: np.empty((1, *shape), d) for leaf, shape, d in zip(self._leaves, self._features, self._dtypes)}
        )
        batch = batch.to_numpy()
        _check(example[:, None] if self._flat else example, batch[:, None] if self._flat else batch)
        raise AssertionError("a batch that does not fit, for no reason")

    def _quickly(self, batch: Batch) -> list[Array] | None:
        """None where a closer look is needed."""
        columns: Any = leaves(batch) if self._nested else batch
        if list(columns.keys()) != self._names:
            return None
        parts: list[Array] = list(columns.values())
        try:
            if (steps := len(parts[0])) != self._steps:
                shapes = [(steps, *shape) for shape in self._features]
                self._steps, self._alike = steps, list(zip(repeat(np.ndarray), self._dtypes, shapes))
            alike = [(type(part), part.dtype, part.shape) for part in parts] == self._alike
        except (AttributeError, TypeError):  # a nested batch has no dtype, a number no length
            return None
        return parts if alike and steps else None


def _layout(flat: bool) -> str:
    return "rows [B, ...]" if flat else "fragments [T, N, ...]"


def _check(columns: Batch, block: Batch, path: str = "") -> None:
    """Raise a SchemaError unless the block has the names, dtypes and shapes (time aside) of the storage."""
    if block.keys() != columns.keys():
        check_names(dict(columns), block, f"column {path!r} of the batch" if path else "the batch")
    for name, column in columns.items():
        part, where = block[name], f"{path}.{name}" if path else name
        if isinstance(column, Batch) and isinstance(part, Batch):
            _check(column, part, where)
        elif (
            isinstance(column, Batch)
            or isinstance(part, Batch)
            or part.dtype != column.dtype
            or part.shape[1:] != column.shape[1:]
        ):
            raise SchemaError(
                f"column {where!r}: the buffer stores {describe(column[0])} per step, got {describe(part[0])}"
            )
