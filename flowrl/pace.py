"""How long workers take for a request, and how long is too long beside their fellows."""

from __future__ import annotations

import statistics
from array import array
from collections import deque
from collections.abc import Mapping
from functools import partial

import attrs

#: A request is late when it takes so many times as long as requests usually do ...
LATE_FACTOR = 10.0
#: ... and so many seconds: a process that was started again has much to import.
LATE_SECONDS = 10.0
#: Newest requests that say what is usual.
RECENT = 101
#: Workers that a report lists one by one.
LISTED = 8


@attrs.define(eq=False)
class Pace:
    """Items and seconds of each worker since the run opened: numbers side by side, for there may be many workers.

    >>> pace = Pace()
    >>> pace.expect(2)
    >>> for worker, seconds in ((0, 0.25), (0, 0.75), (1, 0.5)):
    ...     pace.answered(worker, seconds)
    >>> pace.usual, pace.limit
    (0.5, 10.0)
    >>> pace.report({0: 1, 1: 2}, late={1: 30.0})
    '0: 2 items, 1 request, 0.5 s each; 1: 1 item, 2 requests, 0.5 s each, no answer for 30 s'
    """

    items: array[int] = attrs.field(factory=partial(array, "q"))
    seconds: array[float] = attrs.field(factory=partial(array, "d"))
    _recent: deque[float] = attrs.field(factory=lambda: deque(maxlen=RECENT))

    def expect(self, workers: int) -> None:
        """There are so many workers from now on."""
        for numbers in (self.items, self.seconds):
            numbers.extend([0] * (workers - len(numbers)))

    def answered(self, worker: int, seconds: float) -> None:
        self.items[worker] += 1
        self.seconds[worker] += seconds
        self._recent.append(seconds)

    @property
    def usual(self) -> float:
        """Seconds of one request: the median of the newest ones."""
        return statistics.median(self._recent) if self._recent else 0.0

    @property
    def limit(self) -> float:
        """Seconds after which a request is late."""
        return max(LATE_SECONDS, LATE_FACTOR * self.usual)

    def report(self, requests: Mapping[int, int], late: Mapping[int, float]) -> str:
        """In words, for the workers of `requests`, which says how many each has not answered yet."""
        if len(requests) <= LISTED:
            return "; ".join(f"{worker}: {self._words(worker, n, late)}" for worker, n in requests.items())
        items = [self.items[worker] for worker in requests]
        total = f"{len(requests)} workers: {min(items)} to {max(items)} items each, {sum(requests.values())} requests"
        there = [worker for worker in late if worker in requests]  # and was not removed meanwhile
        return "; ".join([total, *(f"{worker}: {self._words(worker, requests[worker], late)}" for worker in there)])

    def _words(self, worker: int, requests: int, late: Mapping[int, float]) -> str:
        items = self.items[worker]
        words = [f"{items} item{'s' * (items != 1)}", f"{requests} request{'s' * (requests != 1)}"]
        words += [f"{self.seconds[worker] / items:.2g} s each"] if items else []
        words += [f"no answer for {late[worker]:.0f} s"] if worker in late else []
        return ", ".join(words)
