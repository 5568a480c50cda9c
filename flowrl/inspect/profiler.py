"""Profiles of a run while it goes: since its first result, of the last seconds, and what does not move."""

from __future__ import annotations

from collections import deque
from time import perf_counter as clock

import attrs

from flowrl.engine.recording.ledger import Ledger, ledger
from flowrl.engine.run import Run
from flowrl.inspect.profile import Profile

#: Profiles over which the recent seconds go.
RECENT = 10
#: Seconds after which an operator that waits has stalled: many do so for a moment.
STALLED = 5.0


@attrs.define
class Profiler:
    """Takes profiles of a run, whose pace is given in a counter."""

    run: Run
    counter: str = "env_steps"
    _first: Ledger = attrs.field(init=False)  # when the run was opened, or has given its first result
    _results: int = attrs.field(default=0, init=False)
    _at_first_result: Ledger | None = attrs.field(default=None, init=False)
    _recent: deque[Ledger] = attrs.field(factory=lambda: deque(maxlen=RECENT), init=False)
    _moved: dict[str, tuple[int, float]] = attrs.field(factory=dict, init=False)  # items of an operator, since when

    def __attrs_post_init__(self) -> None:
        self._first = ledger(self.run)
        self._recent.append(self._first)

    def count_result(self) -> None:
        """Say that the run has given a result. The first one ends the time that a profile leaves out."""
        self._results += 1
        if self._results == 1:
            self._at_first_result = ledger(self.run)
        elif self._at_first_result is not None:
            self._first, self._at_first_result = self._at_first_result, None

    def profile(self) -> Profile:
        """The profile now: since the first result, or since the run was opened if there is no later one."""
        began = clock()
        now = ledger(self.run)
        recent, stalls = now.since(self._recent[0]), self._stalls(began)
        self._recent.append(now)
        return Profile(now.since(self._first), self._first.driver.wall, self.counter, recent, stalls)

    def _stalls(self, now: float) -> tuple[str, ...]:
        """What operators wait for that have passed nothing on for some seconds."""
        for meter in self.run.meters():
            items, _ = self._moved.get(meter.path, (-1, 0.0))
            if meter.items != items:
                self._moved[meter.path] = meter.items, now
        words = dict[str, float]()
        for path, lines in self.run.waits().items():
            seconds = now - self._moved[path][1]
            if seconds >= STALLED:
                words |= {line: max(seconds, words.get(line, 0.0)) for line in lines}
        return tuple(f"{line} ({seconds:.0f} s)" for line, seconds in words.items())
