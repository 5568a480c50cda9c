"""A dataset whose rows reach to the end of their episodes."""

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

#: What tells the steps of an episode from those of others, where it is there; most significant last.
EPISODE = ("t", "episode_id", "env_id", "worker")
#: The columns that windows are made of, besides.
OF_STEPS = ("reward", "terminated", "truncated", "next_obs", "episode_id", "t")


class ReturnsView:
    """The rows of a dataset as windows of as many steps as their episodes still have; to be read as a `Dataset` is.

    Of step t of an episode of T steps: reward = Σᵢ γⁱ rₜ₊ᵢ over the k = T − t steps that are left, the discounted
    return; next_obs, terminated and truncated of its last one; discount = γᵏ · (1 − terminated), by which the return
    of an episode that was cut is bootstrapped (N2, N3, T6). All else is that of step t.

    An episode may go on from one batch to the next; where a step is missing it is cut, and where the last batch ends.
    What is recorded later is seen after `refresh()`. Numbers for each row are kept in memory, and no columns.

    Args:
        data: With the columns of `OF_STEPS`.
        gamma: Discount per step.
        batches: Of how many of its batches; None: of all.

    Raises: DatasetError where its rows are no single steps, or several are the same one.
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
        """Make the windows of so many batches."""
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
        """What it is called where something is wrong with it."""
        return self.data.path

    @property
    def rows(self) -> int:
        """Rows of the dataset, padding included."""
        return self.data.rows

    def real_rows(self, batches: int | None = None) -> Array:
        """The numbers of the rows of the first so many batches, or of all, without padding."""
        return self.data.real_rows(self.batches if batches is None else batches)

    def take(self, rows: Sequence[int] | Array) -> Batch:
        """Rows by number `[B, ...]`."""
        rows = np.asarray(rows)
        ends = self.data.take(self._last[rows]).select(["next_obs", "terminated", "truncated"])
        made = {"reward": self._return[rows], "discount": self._discount[rows]}
        return self.data.take(rows).replace(**made, **dict(ends.items()))

    def __getitem__(self, number: int) -> Batch:
        """A batch as it was recorded, of single steps."""
        return self.data[number]

    def refresh(self) -> ReturnsView:
        """See what has been recorded since: episodes that ended with the last batch may go on; gives itself."""
        self.data.refresh()
        if len(self.data) != self.batches:
            self._look(len(self.data))
        return self

    def first(self, batches: int) -> ReturnsView:
        """As it was when there were so many batches; itself if these are all."""
        return self if batches == self.batches else ReturnsView(self.data, self.gamma, batches)

    def verify(self, start: int = 0) -> ReturnsView:
        """Compare the checksums of the dataset."""
        self.data.verify(start)
        return self

    def schema(self) -> Schema:
        """What is known of its batches."""
        found = self.data.schema()
        axes = found.columns["reward"].shape
        made = {"reward": ColumnSchema("float64", axes), "discount": ColumnSchema("float32", axes)}
        return Schema({**found.columns, **made}, found.words)
