"""A bounded queue between branches of a plan, or from other threads into one."""

from __future__ import annotations

import copy
import threading
from collections import deque
from typing import Any

from flowrl.engine.context import Bell, Context
from flowrl.engine.operator import whole
from flowrl.engine.stages import as_item
from flowrl.errors import Stalled
from flowrl.saved import Saved


class Queue:
    """First in, first out, at most `maxsize` items (F7).

    Args:
        maxsize: Most items it holds; a full queue blocks producers, an empty one consumers.
        external: Whether other threads fill it by `put`, so that a plan may sleep on it.
        producers: Number of `Enqueue` operators or calls of `close()` after which it ends.
    """

    def __init__(self, maxsize: int, *, external: bool = False, producers: int = 1) -> None:
        self.maxsize, self.external = whole("a queue", "maxsize", maxsize, 1), external
        self.producers = whole("a queue", "producers", producers, 1)
        self._items: deque[Any] = deque()
        self._ended = 0
        self._room = threading.Condition()
        self._bell = Bell()

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Queue({len(self)} of {self.maxsize})"

    @property
    def full(self) -> bool:
        return len(self._items) >= self.maxsize

    @property
    def capacity(self) -> int:
        """The same as `maxsize`, by the name that all stores have."""
        return self.maxsize

    fills_up = True

    @property
    def holds_items(self) -> bool:
        """Whether it can emit an item before an operator of a plan puts one in."""
        return bool(len(self)) or self.external

    @property
    def closed(self) -> bool:
        """Whether all producers have ended."""
        return self._ended >= self.producers

    def start(self, context: Context) -> None:
        """Ring this run's bell from now on."""
        self._bell = context.bell

    def put(self, item: Any, seconds: float = 60.0) -> None:
        """Append an item from any thread; waits up to `seconds` for room.

        Raises:
            Stalled: the queue stayed full.
        """
        as_item(item)
        with self._room:
            if not self._room.wait_for(lambda: not self.full, seconds):
                raise Stalled(f"the queue stayed full ({self.maxsize} items) for {seconds:g} s: is its plan pulled?")
            self._items.append(item)
        self._bell.ring()

    def get(self) -> Any:
        """Remove and return the oldest item; IndexError if there is none."""
        with self._room:
            item = self._items.popleft()
            self._room.notify()
        return item

    def close(self) -> None:
        """Report the end of one producer."""
        with self._room:
            self._ended += 1
        self._bell.ring()

    def stop(self) -> None:
        """Called when the run closes: the items stay, and producers may start anew."""
        with self._room:
            self._ended = 0

    def state_dict(self) -> dict[str, Any]:
        with self._room:
            return {"items": copy.deepcopy(list(self._items)), "ended": self._ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._room:
            saved = Saved(state, "the saved queue")
            items, ended = copy.deepcopy(saved.get("items", list)), saved.count("ended")
            self._items, self._ended = deque(items), ended
            self._room.notify_all()
