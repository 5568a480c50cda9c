"""The watchdog: a worker that hangs counts as dead."""

from __future__ import annotations

import threading
from math import inf
from time import monotonic
from typing import Protocol

#: Most seconds between two looks.
LOOK_SECONDS = 30.0


class Watched(Protocol):
    """A worker, as the watchdog sees it."""

    @property
    def silent(self) -> float:
        """Seconds for which it has left a request unanswered, and answered nothing; 0 without requests."""
        ...

    @property
    def patience(self) -> float:
        """Seconds of silence after which it counts as dead."""
        ...

    def give_up(self) -> None:
        """End it, so that its requests fail with WorkerDied."""
        ...


class Watchdog:
    """A thread that ends workers whose silence exceeds their patience.

    Attributes:
        resumed: When this process last went on after it was suspended, by SIGSTOP or a sleep of the machine. The
            workers may have been suspended too, so silence is counted from then on.
    """

    def __init__(self, worker_timeout: float) -> None:
        self.resumed = -inf
        self._every = min(worker_timeout / 10, LOOK_SECONDS)
        self._workers: set[Watched] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, worker: Watched) -> None:
        self._workers.add(worker)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="flowrl-watchdog", daemon=True)
            self._thread.start()

    def discard(self, worker: Watched) -> None:
        self._workers.discard(worker)

    def _watch(self) -> None:
        looked = monotonic()
        while not self._ended.wait(self._every):
            slept, looked = monotonic() - looked, monotonic()
            if slept > 2 * self._every + 1:
                self.resumed = looked
            for worker in self._workers.copy():
                if worker.silent > worker.patience:
                    self.discard(worker)
                    worker.give_up()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
