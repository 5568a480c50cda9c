"""What does the engine cost per item and operator, with its timing on?

A chain of operators that do nothing, over a list, beside plain generators (the bound) and torchdata.nodes
(pip install flowrl-engine[bench]), interleaved in one run. Aim: at most 0.5 microseconds per operator.
(The retired ray.util.iter needed 1.8.)

    python benchmarks/engine_overhead.py [--items 100000] [--operators 10] [--rounds 11]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import interleaved, print_machine, ratio_with_interval

from flowrl import from_items
from flowrl.operators import Concurrently


def nothing(item: Any) -> Any:
    return item


def consume(iterable: Any) -> None:
    deque(iterable, maxlen=0)


def chain(items: int, operators: int) -> Callable[[], None]:
    def run() -> None:
        plan = from_items(range(items))
        for _ in range(operators):
            plan = plan.for_each(nothing)
        consume(plan)

    return run


def filters(items: int, operators: int) -> Callable[[], None]:
    def run() -> None:
        plan = from_items(range(items))
        for _ in range(operators):
            plan = plan.filter(lambda item: True)
        consume(plan)

    return run


def round_robin(items: int, operators: int) -> Callable[[], None]:
    def run() -> None:
        consume(Concurrently([from_items(range(items // operators)) for _ in range(operators)]))

    return run


def generators(items: int, operators: int) -> Callable[[], None]:
    def each(iterable: Any) -> Iterator[Any]:
        for item in iterable:
            yield nothing(item)

    def run() -> None:
        stream: Any = iter(range(items))
        for _ in range(operators):
            stream = each(stream)
        consume(stream)

    return run


def torchdata_nodes(items: int, operators: int) -> Callable[[], None] | None:
    try:
        from torchdata.nodes import IterableWrapper, Loader, Mapper
    except ImportError:
        return None

    def run() -> None:
        node: Any = IterableWrapper(range(items))
        for _ in range(operators):
            node = Mapper(node, nothing)
        consume(Loader(node))

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--operators", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    print_machine("torchdata")
    made = {
        "flowrl for_each": chain(options.items, options.operators),
        "flowrl filter": filters(options.items, options.operators),
        "flowrl round robin": round_robin(options.items, options.operators),
        "torchdata.nodes": torchdata_nodes(options.items, options.operators),
        "generators": generators(options.items, options.operators),
    }
    contestants = {name: run for name, run in made.items() if run is not None}
    seconds = interleaved(contestants, options.rounds)
    print(f"{options.items:,} items, {options.operators} operators or branches, {options.rounds} rounds")
    for name in made:
        if name not in seconds:
            print(f"{name:<20} not installed")
            continue
        # A chain's figure includes its share of the source and the pull; a round robin is a source and a merge.
        through = 2 if name == "flowrl round robin" else options.operators
        cost = seconds[name] / options.items / through * 1e6
        print(
            f"{name:<20} {np.median(cost):.3f} µs per item and operator   (min {cost.min():.3f}, max {cost.max():.3f})"
        )
    for peer in ("torchdata.nodes", "generators"):
        if peer in seconds:
            median, low, high = ratio_with_interval(seconds["flowrl for_each"], seconds[peer])
            print(f"flowrl for_each / {peer}: {median:.2f}  (95 % interval {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
