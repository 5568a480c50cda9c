"""What does the engine cost per item and operator, with its timing on?

A chain of operators that do nothing, over a list, beside plain generators (the bound) and torchdata.nodes
(pip install flowrl-engine[bench]), interleaved in one run. Aim: at most 0.5 microseconds per operator.
(The retired ray.util.iter needed 1.8.)

    python benchmarks/engine_overhead.py [--items 100000] [--operators 10] [--rounds 11]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from common import Pair, Row, compare, installed, interleaved, print_machine

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


def torchdata_nodes(items: int, operators: int) -> Callable[[], None]:
    from torchdata.nodes import IterableWrapper, Loader, Mapper

    def run() -> None:
        node: Any = IterableWrapper(range(items))
        for _ in range(operators):
            node = Mapper(node, nothing)
        consume(Loader(node))

    return run


CONTESTANTS = {
    "flowrl for_each": chain,
    "flowrl filter": filters,
    "flowrl round robin": round_robin,
    "torchdata.nodes": torchdata_nodes,
    "generators": generators,
}


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--operators", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    print_machine("torchdata")
    makers = {name: partial(make, options.items, options.operators) for name, make in CONTESTANTS.items()}
    seconds = interleaved(installed(makers), options.rounds)
    # A chain's figure includes its share of the source and the pull; a round robin is a source and a merge.
    through = {name: 2 if name == "flowrl round robin" else options.operators for name in seconds}
    costs = {name: taken / options.items / through[name] * 1e6 for name, taken in seconds.items()}
    pairs = [Pair("flowrl for_each", "torchdata.nodes"), Pair("flowrl for_each", "generators", bound=True)]
    return compare("an item and operator", costs, pairs, "us")


if __name__ == "__main__":
    main()
