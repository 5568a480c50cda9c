"""Small operators, sources and workers that the tests of the engine share."""

from __future__ import annotations

import threading
from typing import Any

from flowrl import Context, Plan, context, from_workers, operator, state
from flowrl.engine.protocols import DONE, WAITING, Signal
from flowrl.engine.run import Run
from flowrl.engine.workers.local import InlineWorker
from flowrl.engine.workers.subplan import SubplanWorker
from flowrl.testing import ManualWorkers

N = [1, 2, 3, 4, 5]


@operator
class Total:
    """Running sum: an operator with state."""

    scale: int = 1
    total: int = state(default=0)

    def __call__(self, item: int) -> int:
        self.total += self.scale * item
        return self.total


@operator
class Pairs:
    """Pairs of items, for `combine`; an odd last one comes alone."""

    open: list[Any] = state(factory=list)

    def __call__(self, item: Any) -> list[Any]:
        self.open.append(item)
        return self.finish() if len(self.open) == 2 else []

    def finish(self) -> list[Any]:
        pair, self.open = self.open, []
        return [tuple(pair)] if pair else []


@operator
class Noise:
    """Adds a draw of its own random stream and counts it."""

    context: Context = context()

    def __call__(self, item: float) -> float:
        self.context.count("draws")
        self.context.record("drawn", item)
        return item + float(self.context.generator().random())


@operator
class Numbers:
    """Source on a worker: worker 0 gives 0, 1, 2 ..., worker 1 gives 100, 101 ...; counts env_steps."""

    n: int
    position: int = state(default=0)
    context: Context = context()

    def pull(self) -> Any:
        if self.position == self.n:
            return DONE
        self.position += 1
        self.context.count("env_steps", 10)
        return 100 * self.context.worker.index + self.position - 1


class Host(SubplanWorker):
    """A worker's side that knows its number."""

    def __init__(self, index: int = -1) -> None:
        super().__init__()
        self.index = index


def hosts() -> Any:
    """A factory for `ManualWorkers`, which number them."""
    return Host


class InlineWorkers:
    """Workers of this process that answer at once."""

    def __init__(self, count: int) -> None:
        self.members = [InlineWorker(Host(index)) for index in range(count)]

    def __repr__(self) -> str:
        return f"{len(self.members)} inline workers"


class Fails:
    """A function that fails at given items, the first `times` times; it keeps what it has seen."""

    def __init__(self, *items: Any, times: int = 10**9, pure: bool = False) -> None:
        self.items, self.times, self.pure = items, times, pure
        self.seen: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.seen.append(item)
        if item in self.items and self.times > 0:
            self.times -= 1
            raise ValueError(f"cannot do {item}")
        return item


def fail(item: Any) -> Any:
    """An operator that cannot."""
    raise ZeroDivisionError("broken")


def settle(run: Run) -> list[Any]:
    """Pull until the run sleeps or ends; the items that came."""
    items = []
    while (item := run.step()) is not WAITING and item is not DONE:
        if item.__class__ is not Signal:
            items.append(item)
    return items


def answer_meanwhile(workers: ManualWorkers) -> threading.Thread:
    """Arrival, in a thread, what has been asked by now: for calls that wait for it."""
    thread = threading.Thread(target=lambda: [workers.answer() for _ in list(workers.requests)])
    thread.start()
    return thread


def gathered(workers: ManualWorkers, *, sync: bool = False, n: int = 9, in_flight: int = 1) -> Plan:
    part = from_workers(workers, Numbers(n)).for_each(Total())
    return part.gather_sync() if sync else part.gather_async(in_flight)


def answer_all(run: Run, workers: ManualWorkers) -> list[Any]:
    """Arrival until nobody is asked any more; the items."""
    items = settle(run)
    while workers.requests:
        workers.answer()
        items += settle(run)
    return items
