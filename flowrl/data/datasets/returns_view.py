"""A view of a dataset whose rows hold the return to the end of their episodes."""

from __future__ import annotations

from collections.abc import Sequence

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
        last = ends[np.searchsorted(ends, rows)]
        return_ = discounted(reward, terminated, truncated, np.zeros_like(reward), gamma=gamma)
        discount = np.where(terminated[last], 0, gamma ** (last - rows + 1.0))
        self._return, self._discount = np.zeros(data.rows), np.zeros(data.rows, np.float32)
        self._last = np.zeros(data.rows, np.int64)
        self._return[real[order]], self._discount[real[order]] = return_, discount
        self._last[real[order]] = real[order][last]

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

    def refresh(self) -> ReturnsView:
        """Include batches recorded since, which may continue episodes of the last batch; returns self."""
        self.data.refresh()
        if len(self.data) != self.batches:
            self._look(len(self.data))
        return self

    def first(self, batches: int) -> ReturnsView:
        """The view of the first `batches` batches; self if these are all."""
        return self if batches == self.batches else ReturnsView(self.data, self.gamma, batches)

    def verify(self, start: int = 0) -> ReturnsView:
        """Compare the checksums of the dataset."""
        self.data.verify(start)
        return self

    def schema(self) -> Schema:
        """The schema of its batches."""
        found = self.data.schema()
        axes = found.columns["reward"].shape
        made = {"reward": ColumnSchema("float64", axes), "discount": ColumnSchema("float32", axes)}
        return Schema({**found.columns, **made}, found.words)
