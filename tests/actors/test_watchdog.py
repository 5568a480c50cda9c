"""The watchdog, on a clock of the test."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from flowrl.actors import watchdog
from flowrl.actors.watchdog import Watchdog


class Clock:
    """Time goes on by waiting; `suspended` is added to the wait that begins at a time."""

    def __init__(self, suspended: dict[float, float]) -> None:
        self.now, self.suspended = 0.0, suspended

    def wait(self, seconds: float) -> bool:
        self.now += seconds + self.suspended.get(self.now, 0.0)
        return self.now > 2000


@attrs.define(eq=False)
class Silent:
    """A worker that was asked at a time, and has answered nothing since."""

    clock: Clock
    watchdog: Watchdog
    asked: float
    patience: float = 100.0
    ended: float | None = None

    @property
    def silent(self) -> float:
        return self.clock.now - max(self.asked, self.watchdog.resumed)

    def give_up(self) -> None:
        self.ended = self.clock.now


CASES: list[Any] = [
    pytest.param({}, [110, 310, None], id="each by its own requests"),
    pytest.param({40.0: 500}, [660, 660, None], id="suspended"),
    pytest.param({40.0: 9}, [109, 309, None], id="a little late"),
]


@pytest.mark.parametrize(("suspended", "ended"), CASES)
def test_a_worker_that_hangs_is_ended(
    suspended: dict[float, float], ended: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10: by the time since it was asked; that in which this process was suspended itself does not count."""
    dog, clock = Watchdog(worker_timeout=100), Clock(suspended)
    monkeypatch.setattr(watchdog, "monotonic", lambda: clock.now)
    monkeypatch.setattr(dog, "_ended", clock)
    workers = [Silent(clock, dog, 5), Silent(clock, dog, 205), Silent(clock, dog, 5, patience=5000)]
    monkeypatch.setattr(dog, "_workers", set(workers))
    dog._watch()
    assert [worker.ended for worker in workers] == ended
