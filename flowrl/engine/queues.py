"""A bounded queue between branches of a plan, or from other threads into one."""

from __future__ import annotations

import copy
import threading
from collections import deque
from typing import Any

from flowrl.engine.context import Bell, Context
from flowrl.errors import PlanError, Stalled


class Queue:
    """First in, first out, at most `maxsize` items (F7).

    Args:
        maxsize: Items it holds; a full queue blocks who puts, an empty one who takes.
        external: It is fed by `put` from other threads, so a plan may sleep on it.
        producers: It ends when as many `Enqueue` operators have ended, or with `close()`.
    """

    def __init__(self, maxsize: int, *, external: bool = False, producers: int = 1) -> None:
        if maxsize < 1:
            raise PlanError(f"a queue needs maxsize >= 1, got {maxsize}")
        self.maxsize, self.external, self.producers = maxsize, external, producers
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

    fills_up = True

    @property
    def holds_items(self) -> bool:
        """Can something come out of it before anything in a plan puts something in?"""
        return bool(len(self)) or self.external

    @property
    def closed(self) -> bool:
        """Nothing further will be put."""
        return self._ended >= self.producers

    def start(self, context: Context) -> None:
        """Ring this run's bell from now on."""
        self._bell = context.bell

    def put(self, item: Any, seconds: float = 60.0) -> None:
        """Append an item from any thread; waits for room.

        Raises:
            Stalled: the queue stayed full for so long.
        """
        with self._room:
            if not self._room.wait_for(lambda: not self.full, seconds):
                raise Stalled(f"the queue stayed full ({self.maxsize} items) for {seconds:g} s: is its plan pulled?")
            self._items.append(item)
        self._bell.ring()

    def get(self) -> Any:
        """The oldest item; IndexError if there is none."""
        with self._room:
            item = self._items.popleft()
            self._room.notify()
        return item

    def close(self) -> None:
        """One producer has ended."""
        with self._room:
            self._ended += 1
        self._bell.ring()

    def stop(self) -> None:
        """The run is closed: what is in the queue stays, and producers may start anew."""
        with self._room:
            self._ended = 0

    def state_dict(self) -> dict[str, Any]:
        with self._room:
            return {"items": copy.deepcopy(list(self._items)), "ended": self._ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._room:
            self._items = deque(copy.deepcopy(state["items"]))
            self._ended = state["ended"]
            self._room.notify_all()
