"""ObjectReplayBuffer: the newest Python objects of any kind, drawn uniformly."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.data.replay.base import Store
from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.data.replay.ring_storage import must_equal
from flowrl.errors import SchemaError
from flowrl.saved import Saved


class ObjectReplayBuffer(Store):
    """A list of the newest `capacity` objects: league snapshots, trajectories of any shape, dicts.

    Data with columns belongs in a `ReplayBuffer`, which is many times faster; this buffer takes any object. It returns
    the object itself, not a copy. In a plan, items in and out are lists of objects.
    `add` and `sample` may be called from different threads; they never wait.

    Args:
        capacity: objects.
        limiter: keeps objects drawn and added in a ratio; its rows are objects here.
        seed: seed of the buffer's generator (P7); None: the run that opens the buffer provides one.

    State: the objects. Objects that are not plain data are pickled on disk, and read only from a trusted checkpoint.
    Raises: ValueError for an invalid setting or request, SchemaError unless items are lists.

    >>> buffer = ObjectReplayBuffer(capacity=2, seed=0)
    >>> buffer.add(["first", {"elo": 1200}])
    >>> buffer.add([None])
    >>> buffer, buffer.sample(3)
    (ObjectReplayBuffer(capacity=2, items=2), [{'elo': 1200}, {'elo': 1200}, {'elo': 1200}])
    """

    def __init__(self, capacity: int, *, limiter: RateLimiter | None = None, seed: int | None = None) -> None:
        if not isinstance(capacity, int | np.integer) or capacity < 1:
            raise ValueError(f"capacity is {capacity}: it is a whole number of objects, at least 1")
        super().__init__(limiter, seed)
        self._capacity = capacity
        self._items: list[Any] = []  # a ring once it is full: object i is at i % capacity
        self._inserts = self._samples = 0

    @property
    def capacity(self) -> int:
        """The capacity in objects."""
        return self._capacity

    @property
    def inserts(self) -> int:
        """Objects ever added."""
        return self._inserts

    @property
    def samples(self) -> int:
        """Objects ever drawn."""
        return self._samples

    def __len__(self) -> int:
        return len(self._items)

    def rows_of(self, item: Sequence[Any]) -> int:
        """The number of objects in a list."""
        return len(item) if isinstance(item, (list, tuple)) else 1  # `add` rejects anything else

    def __repr__(self) -> str:
        return f"ObjectReplayBuffer(capacity={self.capacity}, items={len(self)})"

    def add(self, items: Sequence[Any]) -> None:
        """Add objects in their order, overwriting the oldest.

        Raises: SchemaError unless it is a list or tuple; ValueError for more objects than the limiter's `insert_batch`.
        """
        if not isinstance(items, (list, tuple)):
            raise SchemaError(
                f"ObjectReplayBuffer adds a list of objects, got a {type(items).__name__}; "
                "write add([item]), in a plan .batch(1) before StoreToReplay"
            )
        if self.limiter is not None:
            self.limiter.check_insert(len(items))
        with self._lock:
            for item in items:
                if len(self._items) < self._capacity:
                    self._items.append(item)
                else:
                    self._items[self._inserts % self._capacity] = item
                self._inserts += 1

    def sample(self, batch_size: int) -> list[Any]:
        """Draw objects, uniform with replacement, so possibly more than are stored (B7).

        Raises: ValueError if nothing is stored, if batch_size < 1 or above the limiter's `sample_batch`, and if
            neither a seed nor a run provides a generator.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: draw at least 1 object")
        if self.limiter is not None:
            self.limiter.check_sample(batch_size)
        with self._lock:
            if not self._items:
                raise ValueError("sample() from an empty buffer: add objects first, or ask can_sample()")
            drawn = self._generator.integers(len(self._items), size=batch_size).tolist()
            self._samples += batch_size
            return [self._items[i] for i in drawn]

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state: after loading, the next sample is equal (B5)."""
        with self._lock:
            return copy.deepcopy(
                {
                    "capacity": self._capacity,
                    "items": self._items,
                    "inserts": self._inserts,
                    "samples": self._samples,
                    "generator": self._generator_state(),
                }
            )

    def _load(self, saved: Saved) -> None:
        must_equal(saved, {"capacity": self._capacity})
        self._inserts, self._samples = saved.count("inserts"), saved.count("samples")
        self._items = copy.deepcopy(saved.get("items", list))
        if len(self._items) != min(self._inserts, self._capacity):
            saved.refuse("inserts", f"the number of objects ever added, of which it holds {len(self._items)}")
        self._load_generator(saved)
