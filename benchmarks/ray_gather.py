"""How many small items a second come through `gather_async` from actors on Ray?

2 actors count; the items of each are numbers. With one item for a request, with several requests in flight, and with
requests of many items, which `batch` puts together on the workers and `flatten` takes apart here. The bare loop asks
the same actors through Ray alone. (RLlib's parallel iterators gave 2 300, with batches 2.7 million.)

    python benchmarks/ray_gather.py [--seconds 2] [--rounds 5] [--actors 2]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from common import local_ray, print_machine

from flowrl import Plan, from_workers, operator, state
from flowrl.policies import RandomPolicy
from flowrl.rollout import WorkerSet


@operator
class Count:
    """Source on a worker: 0, 1, 2 ..."""

    position: int = state(default=0)

    def pull(self) -> int:
        self.position += 1
        return self.position - 1


def gathered(workers: WorkerSet, in_flight: int, batch: int) -> Plan:
    plan = from_workers(workers, Count())
    return plan.gather_async(in_flight) if batch == 1 else plan.batch(batch).gather_async(in_flight).flatten()


def bare(actors: Any, in_flight: int) -> Callable[[int], None]:
    """Ray alone: whoever has answered is asked again."""
    import ray

    def take(items: int) -> None:
        asked = {actor.add.remote(): actor for actor in actors for _ in range(in_flight)}
        for _ in range(items):
            (done,), _rest = ray.wait(list(asked))
            ray.get(done)
            actor = asked.pop(done)
            asked[actor.add.remote()] = actor
        ray.get(list(asked))

    return take


class Counter:
    """What the bare loop asks."""

    def __init__(self) -> None:
        self.position = 0

    def add(self) -> int:
        self.position += 1
        return self.position


def report(name: str, take: Callable[[int], object], seconds: float, rounds: int) -> None:
    """Print how many items a second there are."""
    items = 100
    take(items)  # warm up
    while (took := timed(take, items)) < seconds / 10:
        items *= 4
    items = max(1, int(items * seconds / took))
    rates = [items / timed(take, items) for _ in range(rounds)]
    print(f"{name:<36}{np.median(rates):>12,.0f} items/s   (min {min(rates):,.0f}, max {max(rates):,.0f})", flush=True)


def timed(take: Callable[[int], object], items: int) -> float:
    start = perf_counter()
    take(items)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--actors", type=int, default=2)
    options = parser.parse_args()
    print_machine("ray", "torch")
    with local_ray(2 * options.actors):
        import ray

        counters = [ray.remote(Counter).remote() for _ in range(options.actors)]
        for in_flight in (1, 8):
            report(f"Ray alone, {in_flight} in flight", bare(counters, in_flight), options.seconds, options.rounds)
        with WorkerSet("CartPole-v1", RandomPolicy, num_workers=options.actors, envs_per_worker=1) as workers:
            for in_flight, batch in ((1, 1), (8, 1), (1, 100), (8, 100), (8, 10_000)):
                name = f"flowrl, {in_flight} in flight, {batch:,} a request"
                with gathered(workers, in_flight, batch).run() as run:
                    report(name, lambda n, run=run: deque(islice(run, n), maxlen=0), options.seconds, options.rounds)


if __name__ == "__main__":
    main()
