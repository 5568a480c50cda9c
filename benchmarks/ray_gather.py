"""How many small items a second come through `gather_async` from actors on Ray?

2 actors count; the items of each are numbers. With one item for a request, with several requests in flight, and with
requests of many items, which `batch` puts together on the workers and `flatten` takes apart here. The bare loop asks
the same actors through Ray alone. (RLlib's parallel iterators gave 2 300, with batches 2.7 million.)

    python benchmarks/ray_gather.py [--seconds 2] [--rounds 5] [--actors 2]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from common import Pair, Row, compare, local_ray, print_machine

from flowrl import Plan, from_workers, operator, state
from flowrl.policies import RandomPolicy
from flowrl.rollout import WorkerSet

#: What has an aim: many requests for single items.
AIMED = "flowrl, 8 in flight, 1 a request"


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


def measured(take: Callable[[int], object], seconds: float, rounds: int) -> np.ndarray:
    """Seconds for an item, in each round."""
    items = 100
    take(items)  # warm up
    while (took := timed(take, items)) < seconds / 10:
        items *= 4
    items = max(1, int(items * seconds / took))
    return np.array([timed(take, items) / items for _ in range(rounds)])


def some(run: Iterator[Any], items: int) -> None:
    deque(islice(run, items), maxlen=0)


def timed(take: Callable[[int], object], items: int) -> float:
    start = perf_counter()
    take(items)
    return perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--actors", type=int, default=2)
    options = parser.parse_args(arguments)
    print_machine("ray", "torch")
    costs: dict[str, np.ndarray] = {}
    with local_ray(2 * options.actors):
        import ray

        counters = [ray.remote(Counter).remote() for _ in range(options.actors)]
        for in_flight in (1, 8):
            taken = measured(bare(counters, in_flight), options.seconds, options.rounds)
            costs[f"Ray alone, {in_flight} in flight"] = taken
        with WorkerSet("CartPole-v1", RandomPolicy, num_workers=options.actors, envs_per_worker=1) as workers:
            for in_flight, batch in ((1, 1), (8, 1), (1, 100), (8, 100), (8, 10_000)):
                name = f"flowrl, {in_flight} in flight, {batch:,} a request"
                with gathered(workers, in_flight, batch).run() as run:
                    take = partial(some, run)
                    costs[name] = measured(take, options.seconds, options.rounds)
    bounds = {name: f"Ray alone, {name.split()[1]} in flight" for name in costs if name.startswith("flowrl")}
    pairs = [Pair(name, bound, 0.9 if name == AIMED else None, bound=True) for name, bound in bounds.items()]
    return compare("small items", costs, pairs, "items/s")


if __name__ == "__main__":
    main()
