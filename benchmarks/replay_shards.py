"""How many rows go into and out of replay shards that are Ray actors, beside a buffer of this process?

float32[4] observations, and pixels uint8[4, 84, 84], five columns; adds and draws of 256 rows. "in, by value" sends
batches from this process; "in, by reference" tells the shards where batches are that another actor made and Ray keeps,
as rows of remote workers are. "out" is `Replay(actors, 256, in_flight)`, "out, while learning" the time that a learner,
who is busy for `--learn` ms a batch, waits for it on top. Contestants take turns in one run.

    python benchmarks/replay_shards.py [--rounds 7] [--learn 5] [--only rows pixels]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from common import interleaved, print_machine, ratio_with_interval
from replay_peers import Contest

from flowrl.actors.actors import Actors
from flowrl.data import Batch, ReplayActors, ReplayBuffer, Store
from flowrl.engine.workers.local import wait_for
from flowrl.engine.workers.remote import Remote
from flowrl.operators import Replay

ROWS = 256


class Collector:
    """Makes batches elsewhere."""

    def __init__(self, contest: Contest) -> None:
        self.batch = Batch.of(contest.rows(ROWS, np.random.default_rng(0)))

    def collect(self) -> tuple[None, Batch]:
        return None, self.batch


def settled(store: Store) -> None:
    """Wait until everything that was added is there."""
    if isinstance(store, ReplayActors):
        wait_for([request.future for request in store._adds], "rows to arrive")
    store.can_insert(1)


def put(store: Store, items: list[Any]) -> None:
    """Add, no more at a time than the store lets in."""
    for item in items:
        while store.is_full(item):
            wait_for([store._adds[0].future], "room")  # type: ignore[attr-defined]
        store.add(item)
    settled(store)


def learn(milliseconds: float) -> None:
    """Busy for so long, as a learner is."""
    end = perf_counter() + milliseconds / 1000
    while perf_counter() < end:
        pass


def draw(store: Store, times: int, in_flight: int, milliseconds: float = 0) -> None:
    with Replay(store, ROWS, in_flight).run() as run:
        for _ in range(times):
            next(run)
            learn(milliseconds)


def compare(title: str, contest: Contest, rounds: int, times: int, milliseconds: float) -> None:
    make = partial(ReplayBuffer, contest.capacity // 2, seed=0)
    batch = Batch.of(contest.rows(ROWS, np.random.default_rng(0)))
    with (
        ReplayActors(make, 2) as here,
        ReplayActors(make, 2, remote=True, max_items=32) as there,
        Actors([partial(Collector, contest)], kind="collector", remote=True) as actors,
    ):
        stores = {"buffer": ReplayBuffer(contest.capacity, seed=0), "2 shards here": here, "2 shards on Ray": there}
        for store in stores.values():
            put(store, [batch] * (contest.capacity // ROWS + 2))
        made = [actors.members[0].submit_apart("collect") for _ in range(times)]
        wait_for(made, "batches")
        remote: list[Remote] = [future.result()[1] for future in made]
        print(f"\n{title}: capacity {contest.capacity:,}, {remote[0].nbytes / 1e3:,.0f} kB a batch of {ROWS} rows")

        def turns(of: Callable[[Store], Any]) -> dict[str, Callable[[], Any]]:
            return {name: partial(of, store) for name, store in stores.items()}

        cases: dict[str, dict[str, Callable[[], Any]]] = {
            "in, by value": turns(lambda store: put(store, [batch] * times)),
            "in, by reference": {"2 shards on Ray": lambda: put(there, remote)},
            "out, 1 in flight": turns(lambda store: draw(store, times, 1)),
            "out, 4 in flight": turns(lambda store: draw(store, times, 4)),
        }
        for case, contestants in cases.items():
            report(case, interleaved(contestants, rounds), times)
        cases = {f"out, {n} in flight": turns(lambda store, n=n: draw(store, times, n, milliseconds)) for n in (1, 2)}
        print(f"  while learning for {milliseconds:g} ms a batch, ms that are waited for each")
        for case, contestants in cases.items():
            for name, seconds in interleaved(contestants, rounds).items():
                waited = 1000 * float(np.median(seconds)) / times - milliseconds
                print(f"    {case:<20} {name:<16} {waited:>8.2f}", flush=True)


def report(case: str, seconds: dict[str, np.ndarray], times: int) -> None:
    print(f"  {case}")
    for name, taken in seconds.items():
        each = float(np.median(taken)) / times
        line = f"    {name:<16} {1e6 * each:>9.0f} us a batch  {ROWS / each:>12,.0f} rows/s"
        if "buffer" in seconds and name != "buffer":
            median, low, high = ratio_with_interval(seconds["buffer"], taken)
            line += f"   {median:.2f}x the buffer's ({low:.2f} to {high:.2f})"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--learn", type=float, default=5.0, help="ms a batch")
    parser.add_argument("--only", nargs="+", default=["rows", "pixels"])
    parser.add_argument("--times", type=int, default=0, help="batches a round; 200 of rows, 20 of pixels unless given")
    options = parser.parse_args()
    print_machine("numpy", "ray")
    cases = {
        "rows": ("float32[4]", Contest(100_000, (4,), np.float32, once=False), 200),
        "pixels": ("uint8[4, 84, 84]", Contest(2_000, (4, 84, 84), np.uint8, once=False), 20),
    }
    for name in options.only:
        title, contest, times = cases[name]
        compare(title, contest, options.rounds, options.times or times, options.learn)


if __name__ == "__main__":
    main()
