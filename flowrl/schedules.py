"""Settings that change while a run goes on: numbers, or functions of what has been counted so far."""

from __future__ import annotations

from collections.abc import Callable

import attrs

#: A number, or a function of a count: of env steps where nothing else is said (Q7).
Schedule = float | Callable[[int], float]


def value_at(schedule: Schedule, count: int) -> float:
    """The value of a schedule after so many."""
    return schedule(count) if callable(schedule) else schedule


@attrs.frozen
class linear_schedule:
    """From `start` to `end` over `steps`, then constant; without an `end` constant all the time.

    >>> epsilon = linear_schedule(1.0, 0.1, 100)
    >>> [round(epsilon(step), 2) for step in (0, 50, 100, 1000)]
    [1.0, 0.55, 0.1, 0.1]
    """

    start: float
    end: float | None
    steps: int

    def __call__(self, count: int) -> float:
        if self.end is None:
            return self.start
        return self.start + (self.end - self.start) * min(1.0, count / max(1, self.steps))
