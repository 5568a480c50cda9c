"""Shard: one of several stores, on its worker, and its record in `ReplayActors`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import numpy as np

from flowrl.data.replay.base import Store
from flowrl.engine.workers.futures import Future
from flowrl.saved import Saved


class ShardCounts(NamedTuple):
    """The rows of a shard, and the most rows that a draw of 1 can return."""

    rows: int
    most: int


_NOTHING = ShardCounts(0, 1)


class Shard:
    """A store on a worker of a `ReplayActors`.

    Args:
        make: Factory of the store.
    """

    def __init__(self, make: Callable[[], Store]) -> None:
        self.store = make()

    def start(self, seed: int) -> None:
        """Set a generator with this seed, unless the store has one."""
        self.store.start(_Seed(seed))

    def add(self, item: Any) -> ShardCounts:
        """Add rows; returns the new counts."""
        self.store.add(item)
        return self.counts()

    def counts(self) -> ShardCounts:
        """The counts of the store."""
        return ShardCounts(len(self.store), self.store.most_rows(1))

    def draw(self, batch_size: int) -> tuple[Any, int] | None:
        """A sample and its number of rows; None if there is not enough."""
        if not self.store.can_sample(batch_size):
            return None
        drawn = self.store.sample(batch_size)
        return drawn, self.store.rows_of(drawn)

    def update_priorities(self, *of: np.ndarray[Any, Any]) -> int:
        """See `PrioritizedReplayBuffer.update_priorities`."""
        dropped: int = self.store.update_priorities(*of)  # type: ignore[attr-defined]
        return dropped

    def state_dict(self) -> dict[str, Any]:
        return self.store.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.store.load_state_dict(state)


class _Seed:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def seed(self, name: str = "") -> int:
        return self._seed


@attrs.define
class ShardRecord:
    """The local record of a shard.

    Attributes:
        number: Unique number of this shard; a replacement of a dead shard gets a new one.
        counts: Those when it last reported them.
        adds: The number of additions to it.
        lacks: The smallest batch that it could not provide, None if unknown. It is not asked for as much again before
            the next addition.
    """

    number: int
    counts: ShardCounts = _NOTHING
    adds: int = 0
    lacks: int | None = 0

    @classmethod
    def of(cls, saved: Saved) -> ShardRecord:
        """A saved record."""
        stock, lacks = saved.get("stock", tuple[int, int]), saved.get("lacks", int | None, least=0)
        return cls(saved.count("number"), ShardCounts(*stock), saved.count("adds"), lacks)

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "stock": tuple(self.counts), "adds": self.adds, "lacks": self.lacks}

    def may_give(self, batch_size: int) -> bool:
        """Whether it may be able to provide this batch."""
        return self.lacks is None or batch_size < self.lacks

    def added(self) -> None:
        """Count an addition on its way."""
        self.adds += 1
        self.lacks = None

    def refused(self, batch_size: int, adds: int) -> None:
        """Record that it could not provide a batch after this number of additions."""
        if adds == self.adds:
            self.lacks = batch_size if self.lacks is None else min(self.lacks, batch_size)


@attrs.define(eq=False)
class ShardRequest:
    """An outstanding request to a shard.

    Attributes:
        index: Index of the shard.
        record: Record of the shard at the time of the request; it may have died since.
        rows, nbytes: Size of the item on its way, or the most rows of a sample.
        adds: Additions before the request. batch_size: Size of a draw.
        remote: Whether it needs a value from elsewhere, which may be lost while the shard is alive.
        lost: Whether the shard died, or the value is lost; known when it is settled.
    """

    index: int
    record: ShardRecord
    future: Future[Any]
    rows: int = 0
    nbytes: int = 0
    adds: int = 0
    batch_size: int = 0
    remote: bool = False
    lost: bool = False
