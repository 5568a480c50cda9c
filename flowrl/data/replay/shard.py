"""Shard: a store among several, as its worker has it and as `ReplayActors` keeps its books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import numpy as np

from flowrl.data.replay.base import Store
from flowrl.engine.futures import Future


class ShardCounts(NamedTuple):
    """What a shard holds: rows, and the most rows that drawing 1 can give."""

    rows: int
    most: int


_NOTHING = ShardCounts(0, 1)


class Shard:
    """A store, where it is: what a `ReplayActors` asks of its workers.

    Args:
        make: Makes the store.
    """

    def __init__(self, make: Callable[[], Store]) -> None:
        self.store = make()

    def start(self, seed: int) -> None:
        """Draw with a generator of this seed, unless the store has one."""
        self.store.start(_Seed(seed))

    def add(self, item: Any) -> ShardCounts:
        """Add rows; what is there then."""
        self.store.add(item)
        return self.stock()

    def stock(self) -> ShardCounts:
        """What is there."""
        return ShardCounts(len(self.store), self.store.most_rows(1))

    def draw(self, batch_size: int) -> tuple[Any, int] | None:
        """What is drawn and its rows; None where there is not enough."""
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
    """What is known of a shard without asking it.

    Attributes:
        number: Of this shard: one that takes the place of a dead one has a number of its own.
        stock: What it held when it last said so.
        adds: How often something was added to it.
        lacks: The smallest batch that it could not give, None where nothing is known to be too much. It is not asked
            for so much again before something was added to it.
    """

    number: int
    stock: ShardCounts = _NOTHING
    adds: int = 0
    lacks: int | None = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> ShardRecord:
        """The books that were saved."""
        return cls(**{**state, "stock": ShardCounts(*state["stock"])})

    def state_dict(self) -> dict[str, Any]:
        return {**attrs.asdict(self, recurse=False), "stock": tuple(self.stock)}

    def may_give(self, batch_size: int) -> bool:
        """Whether asking for so much is not known to be in vain."""
        return self.lacks is None or batch_size < self.lacks

    def added(self) -> None:
        """Something is on its way to it."""
        self.adds += 1
        self.lacks = None

    def refused(self, batch_size: int, adds: int) -> None:
        """It could not give so much, after so many adds."""
        if adds == self.adds:
            self.lacks = batch_size if self.lacks is None else min(self.lacks, batch_size)


@attrs.define(eq=False)
class ShardRequest:
    """Something that a shard was asked, and that is not settled yet.

    Attributes:
        index: Of the shard among the others.
        books: Those of the shard that was asked; it may have died since.
        rows, nbytes: What is on its way to it, or at most promised by it.
        adds: What was added before. batch_size: Of a draw.
        remote: Whether it needs a value from elsewhere, which may be lost while the shard is well.
    """

    index: int
    books: ShardRecord
    future: Future[Any]
    rows: int = 0
    nbytes: int = 0
    adds: int = 0
    batch_size: int = 0
    remote: bool = False
