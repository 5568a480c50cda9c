"""How many small items a second come through `gather_async` from actors on Ray?

2 actors count; the items of each are numbers. With one item for a request, with several requests in flight, and with
requests of many items, which `batch` puts together on the workers and `flatten` takes apart here. The bare loop asks
the same actors through Ray alone. (RLlib's parallel iterators gave 2 300, with batches 2.7 million.)

    python benchmarks/ray_gather.py [--seconds 2] [--rounds 5] [--actors 2]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from common import Pair, Row, compare, local_ray, print_machine

from flowrl import Plan, from_workers, operator, state
from flowrl.policies import RandomPolicy
from flowrl.rollout import WorkerSet

#: Takes so many items.
Take = Callable[[int], object]
#: Opens what takes them.
Opened = Callable[[], AbstractContextManager[Take]]
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


@contextmanager
def opened(plan: Plan) -> Iterator[Take]:
    with plan.run() as run:
        yield lambda items: deque(islice(run, items), maxlen=0)


@contextmanager
def bare(actors: Any, in_flight: int) -> Iterator[Take]:
    """Ray alone: whoever has answered is asked again."""
    import ray

    asked = {actor.add.remote(): actor for actor in actors for _ in range(in_flight)}

    def take(items: int) -> None:
        for _ in range(items):
            (done,), _rest = ray.wait(list(asked))
            ray.get(done)
            actor = asked.pop(done)
            asked[actor.add.remote()] = actor

    yield take
    ray.get(list(asked))


class Counter:
    """What the bare loop asks."""

    def __init__(self) -> None:
        self.position = 0

    def add(self) -> int:
        self.position += 1
        return self.position


def measured(contestants: Mapping[str, Opened], seconds: float, rounds: int) -> dict[str, np.ndarray]:
    """Seconds for an item of each contestant, in each round; a round of each takes about `seconds`."""
    costs: dict[str, list[float]] = {name: [] for name in contestants}
    items = dict.fromkeys(contestants, 100)
    for turn in range(-1, rounds):
        for name, contestant in contestants.items():
            with contestant() as take:
                take(100)  # warm up
                took = timed(take, items[name])
                while turn < 0 and took < seconds / 10:
                    items[name] *= 4
                    took = timed(take, items[name])
            costs[name].append(took / items[name])
            if turn < 0:
                items[name] = max(100, int(seconds / costs[name].pop()))
    return {name: np.array(taken) for name, taken in costs.items()}


def timed(take: Take, items: int) -> float:
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
    with local_ray(2 * options.actors), ExitStack() as stack:
        import ray

        counters = [ray.remote(Counter).remote() for _ in range(options.actors)]
        workers = WorkerSet("CartPole-v1", RandomPolicy, num_workers=options.actors, envs_per_worker=1)
        stack.enter_context(workers)
        contestants: dict[str, Opened] = {
            f"Ray alone, {in_flight} in flight": partial(bare, counters, in_flight) for in_flight in (1, 8)
        }
        for in_flight, batch in ((1, 1), (8, 1), (1, 100), (8, 100), (8, 10_000)):
            plan = gathered(workers, in_flight, batch)
            contestants[f"flowrl, {in_flight} in flight, {batch:,} a request"] = partial(opened, plan)
        costs = measured(contestants, options.seconds, options.rounds)
    bounds = {name: f"Ray alone, {name.split()[1]} in flight" for name in costs if name.startswith("flowrl")}
    pairs = [Pair(name, bound, 0.9 if name == AIMED else None, bound=True) for name, bound in bounds.items()]
    return compare("small items", costs, pairs, "items/s")


if __name__ == "__main__":
    main()
