"""Views of a dataset whose rows hold the return to the end of their episodes, and perhaps the steps before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.datasets.dataset import Dataset
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.data.types import Array
from flowrl.engine.schema import ColumnSchema, Schema
from flowrl.errors import DatasetError
from flowrl.returns import discounted

#: The columns that order steps by episode, if present; most significant last.
EPISODE = ("t", "episode_id", "agent", "env_id", "worker")
#: The further columns of windows.
OF_STEPS = ("reward", "terminated", "truncated", "next_obs", "episode_id", "t")


class ReturnsView:
    """The rows of a dataset as windows to the end of their episodes, with the interface of `Dataset`.

    For step t of an episode of T steps: reward = Σᵢ γⁱ rₜ₊ᵢ over the remaining k = T − t steps, the discounted return;
    next_obs, terminated and truncated of the last step; discount = γᵏ · (1 − terminated), which bootstraps the return
    of an episode that was cut (N2, N3, T6). All other columns are those of step t.

    Episodes may span batches; an episode is cut where a step is missing, and where the last batch ends. `refresh()`
    includes batches recorded later. It keeps some numbers per row in memory, but no columns.

    Args:
        data: A dataset with the columns of `OF_STEPS`.
        gamma: Discount per step.
        batches: The number of batches to include; None: all.

    Raises: DatasetError if rows are not single steps, or several rows are the same step.
    """

    def __init__(self, data: Dataset | MinariEpisodes, gamma: float, batches: int | None = None) -> None:
        if "discount" in data.schema().columns:
            raise DatasetError(
                f"{data.path} has windows of several steps (the column 'discount'), whose rewards are sums already: "
                "record single steps, before NStep"
            )
        self.data, self.gamma = data, gamma
        self._look(len(data) if batches is None else batches)

    def _look(self, batches: int) -> None:
        """Compute the windows of the first `batches` batches."""
        data, gamma, self.batches = self.data, self.gamma, batches
        real = data.real_rows(batches)
        there = data.schema().columns
        steps = data.take(real, [name for name in (*EPISODE, "reward", "terminated", "truncated") if name in there])
        keys = [steps[name] for name in EPISODE if name in steps]
        order = np.lexsort(keys)
        t, *others = (key[order] for key in keys)
        of_one = np.logical_and.reduce([key[1:] == key[:-1] for key in others])
        goes_on = of_one & (t[1:] == t[:-1] + 1)
        if (of_one & (t[1:] == t[:-1])).any():
            raise DatasetError(
                f"{data.path} has several rows that say they are one step of one episode: give the episodes of "
                "recordings that were put together numbers of their own (episode_id)"
            )
        terminated, truncated = (steps[name][order] != 0 for name in ("terminated", "truncated"))
        truncated[:-1] |= ~goes_on & ~terminated[:-1]
        reward = steps["reward"][order].astype(np.float64)
        ended = terminated | truncated
        ended[-1:] = True
        rows, ends = np.arange(len(order)), np.flatnonzero(ended)
        self._order, self._ends = real[order], ends  # rows in the order of time, and where episodes end in it
        last = ends[np.searchsorted(ends, rows)]
        return_ = discounted(reward, terminated, truncated, np.zeros_like(reward), gamma=gamma)
        discount = np.where(terminated[last], 0, gamma ** (last - rows + 1.0))
        self._return, self._discount = np.zeros(data.rows), np.zeros(data.rows, np.float32)
        self._last = np.zeros(data.rows, np.int64)
        self._return[self._order], self._discount[self._order] = return_, discount
        self._last[self._order] = self._order[last]

    def __len__(self) -> int:
        return self.batches

    def __repr__(self) -> str:
        return f"whole episodes of {self.data!r}"

    @property
    def path(self) -> object:
        """Its name in error messages."""
        return self.data.path

    @property
    def rows(self) -> int:
        """Rows of the dataset, padding included."""
        return self.data.rows

    def real_rows(self, batches: int | None = None) -> Array:
        """Indices of the rows of the first `batches` batches, or of all, without padding."""
        return self.data.real_rows(self.batches if batches is None else batches)

    def take(self, rows: Sequence[int] | Array) -> Batch:
        """Rows by index `[B, ...]`."""
        rows = np.asarray(rows)
        ends = self.data.take(self._last[rows]).select(["next_obs", "terminated", "truncated"])
        made = {"reward": self._return[rows], "discount": self._discount[rows]}
        return self.data.take(rows).replace(**made, **dict(ends.items()))

    def __getitem__(self, number: int) -> Batch:
        """A batch of single steps, as recorded."""
        return self.data[number]

    def refresh(self) -> Self:
        """Include batches recorded since, which may continue episodes of the last batch; returns self."""
        self.data.refresh()
        if len(self.data) != self.batches:
            self._look(len(self.data))
        return self

    def first(self, batches: int) -> ReturnsView:
        """The view of the first `batches` batches; self if these are all."""
        return self if batches == self.batches else ReturnsView(self.data, self.gamma, batches)

    def verify(self, start: int = 0) -> Self:
        """Compare the checksums of the dataset."""
        self.data.verify(start)
        return self

    def schema(self) -> Schema:
        """The schema of its batches."""
        found = self.data.schema()
        axes = found.columns["reward"].shape
        made = {"reward": ColumnSchema("float64", axes), "discount": ColumnSchema("float32", axes)}
        return Schema({**found.columns, **made}, found.words)


class ContextView(ReturnsView):
    """The rows of a dataset as sequences `[context, B, ...]`: each row, last, and the steps of its episode before it.

    Columns: obs, action and t of each step; return_to_go, the sum of the rewards from it to the end of its episode;
    mask, False on the padding before the first step, which repeats that.

    Args:
        context: Length of the sequences.
        data, batches: See `ReturnsView`.

    Raises: DatasetError if no episode is as long, so that acting would go beyond the data; see `ReturnsView` too.
    """

    def __init__(self, data: Dataset | MinariEpisodes, context: int, batches: int | None = None) -> None:
        self.context = context
        super().__init__(data, 1.0, batches)

    def _look(self, batches: int) -> None:
        super()._look(batches)
        first = np.append(0, self._ends[:-1] + 1)[: len(self._ends)]
        longest = int((self._ends - first).max(initial=-1)) + 1
        if longest < self.context:
            raise DatasetError(
                f"context={self.context}: the longest episode of {self.path} has {longest} steps: take at most as many"
            )
        places = np.arange(len(self._order))
        self._place, self._first = np.zeros((2, self.data.rows), np.int64)
        self._place[self._order] = places
        self._first[self._order] = first[np.searchsorted(self._ends, places)]

    def __repr__(self) -> str:
        return f"sequences of {self.context} steps of {self.data!r}"

    def take(self, rows: Sequence[int] | Array) -> Batch:
        """The sequences `[context, B, ...]` that end with these rows."""
        rows = np.asarray(rows)
        at, first = self._place[rows] - np.arange(self.context)[::-1, None], self._first[rows]
        numbers = self._order[np.maximum(at, first)]
        steps = self.data.take(numbers.ravel(), ("obs", "action", "t"))
        steps = steps.map(lambda column: column.reshape(*numbers.shape, *column.shape[1:]))
        return steps.replace(return_to_go=self._return[numbers], mask=at >= first)

    def first(self, batches: int) -> ContextView:
        """See `ReturnsView.first`."""
        return self if batches == self.batches else ContextView(self.data, self.context, batches)

    def schema(self) -> Schema:
        """The schema of sequences."""
        found = self.data.schema()
        axes = 2 if "fragments" in found.words else 1
        kept = {name: c for name, c in found.columns.items() if name.partition(".")[0] in ("obs", "action", "t")}
        columns = {name: ColumnSchema(c.dtype, ("T", "N", *c.shape[axes:])) for name, c in kept.items()}
        made = {"return_to_go": ColumnSchema("float64", ("T", "N")), "mask": ColumnSchema("bool", ("T", "N"))}
        return Schema({**columns, **made}, frozenset({"fragments", "sequences"}))
