"""What does the engine cost per item with 10, 100, 1 000 and 10 000 workers in flight?

The workers are simulated: a virtual clock answers their requests in an order drawn beforehand, so that the engine and
nothing else is measured, in CPU seconds; garbage is not collected meanwhile, since the collector looks at the workers
of all sizes. Answers come one at a time, the engine asleep in between, or those of a tenth of the workers at once. The
bare loop answers and asks again without the engine. Aim: flat, the cost with most workers at most 1.5 times that with
fewest.

    python benchmarks/scheduler_scale.py [--workers 10 100 1000 10000] [--items 20000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import gc
import logging
from collections.abc import Callable, Iterator
from itertools import count, cycle
from time import process_time
from typing import Any

import numpy as np
from common import interleaved, print_machine

from flowrl import Plan, from_items, from_workers
from flowrl.engine.protocols import WAITING, Signal
from flowrl.engine.run import Run
from flowrl.engine.workers.calls import Answer
from flowrl.engine.workers.futures import Future

ANSWER = Answer(0, False, {"env_steps": 1}, {})


class Clock:
    """A virtual clock, on which requests take exponential times: whichever waits is as likely to be the next one.

    So it needs no queue by time, whose cost would grow with the workers.
    """

    def __init__(self) -> None:
        self._waiting: list[Future[Any]] = []
        self._draws = cycle(np.random.default_rng(0).random(9_973).tolist())

    def ask(self) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append(future)
        return future

    def answer(self, requests: int) -> None:
        waiting = self._waiting
        for _ in range(min(requests, len(waiting))):
            next_one = int(next(self._draws) * len(waiting))
            waiting[next_one], waiting[-1] = waiting[-1], waiting[next_one]
            waiting.pop().set_result(ANSWER)


class Simulated:
    """A worker whose answers to `pull_plan` and `work` take time on the clock; all else it does at once."""

    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def submit(self, method: str, *args: Any) -> Future[Any]:
        if method in ("pull_plan", "work"):
            return self.clock.ask()
        done: Future[Any] = Future()
        done.set_result(None)
        return done


class SimulatedWorkers:
    """What a plan needs of a set of workers."""

    def __init__(self, workers: int, clock: Clock) -> None:
        self.members = [Simulated(clock) for _ in range(workers)]


class Nothing:
    """A source that no simulated worker pulls."""

    def pull(self) -> Any:
        raise AssertionError("simulated workers run no plan")


def asynchronous(workers: int, clock: Clock) -> Plan:
    return from_workers(SimulatedWorkers(workers, clock), Nothing()).gather_async()


def synchronous(workers: int, clock: Clock) -> Plan:
    return from_workers(SimulatedWorkers(workers, clock), Nothing()).gather_sync()


def calls(workers: int, clock: Clock) -> Plan:
    return from_items(count).call(Simulated(clock), "work", in_flight=workers)


#: How many answers come while the engine sleeps once, of so many workers.
ONE, TENTH = (lambda workers: 1), (lambda workers: max(1, workers // 10))
CASES: dict[str, tuple[Callable[[int, Clock], Plan], Callable[[int], int]]] = {
    "gather_async, answers one by one": (asynchronous, ONE),
    "gather_async, a tenth at a time": (asynchronous, TENTH),
    "gather_sync, answers one by one": (synchronous, ONE),
    "call in order, answers one by one": (calls, ONE),
}


def items_of(run: Run, clock: Clock, answers: int) -> Iterator[Any]:
    """The items of a run whose sleep is a step of the clock."""
    while True:
        item = run.step()
        if item is WAITING:
            clock.answer(answers)
            assert run.context.bell.wait(1), "nobody rang"
        elif item.__class__ is not Signal:
            yield item


def bare(workers: int, answers: int) -> Iterator[Any]:
    """The same clock without an engine."""
    clock, done = Clock(), []
    for _ in range(workers):
        clock.ask().add_done_callback(done.append)
    while True:
        clock.answer(answers)
        for future in done[:]:
            yield future.result().item
            clock.ask().add_done_callback(done.append)
        del done[: len(done)]


def measure(name: str, sizes: list[int], items: int, rounds: int) -> None:
    """Print the cost per item for each number of workers, and how much it grows."""
    make, answers = CASES[name]
    runs, streams = [], {}
    for workers in sizes:
        clock = Clock()
        run = make(workers, clock).run()
        runs.append(run)
        streams[f"{workers}"] = items_of(run, clock, answers(workers))
        streams[f"{workers} bare"] = bare(workers, answers(workers))

    def take(stream: Iterator[Any]) -> Callable[[], None]:
        def some() -> None:
            for _ in range(items):
                next(stream)

        return some

    contestants = {size: take(stream) for size, stream in streams.items()}
    for some in contestants.values():
        some()  # so that every worker has been asked
    costs = {size: seconds / items * 1e6 for size, seconds in interleaved(contestants, rounds, process_time).items()}
    print(name)
    for workers in sizes:
        cost, alone = costs[f"{workers}"], costs[f"{workers} bare"]
        spread = f"min {cost.min():.1f}, max {cost.max():.1f}; bare {np.median(alone):.1f}"
        print(f"  {workers:>6} workers {np.median(cost):>8.1f} µs of CPU per item  ({spread})")
    growth = np.median(costs[f"{sizes[-1]}"]) / np.median(costs[f"{sizes[0]}"])
    print(f"  {sizes[-1]} / {sizes[0]} workers: {growth:.2f}", flush=True)
    for run in runs:
        run.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--items", type=int, default=20_000, help="of a round, at least as many as workers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=list(CASES))
    options = parser.parse_args()
    logging.getLogger("flowrl").setLevel(logging.ERROR)  # all workers are slow while the others are measured
    print_machine("attrs")
    gc.disable()
    print(f"{options.items:,} items a round, {options.rounds} rounds")
    for name in [options.only] if options.only else CASES:
        measure(name, options.workers, options.items, options.rounds)


if __name__ == "__main__":
    main()
