"""Plans drawn at random, each with the items that it must emit, computed on lists by the plainest Python."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import accumulate
from math import floor
from typing import Any

from flowrl import Plan, Queue, from_items
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue, Sequentially
from tests.engine.engine_parts import Noise, Total

Made = tuple[Plan, list[Any]]


def mixed(item: Any) -> int:
    """A number that depends on all of an item."""
    return zlib.crc32(repr(item).encode()) % 97


def kept(item: Any) -> bool:
    return mixed(item) % 3 != 0


def several(item: Any) -> list[Any]:
    return [item] * (mixed(item) % 3)


def elements(item: Any) -> Any:
    return item if isinstance(item, (list, tuple)) else [item]


class Worker:
    """It answers at once."""

    def mix(self, item: Any) -> int:
        return mixed(item)


def batches(items: list[Any], n: int) -> list[Any]:
    return [items[i : i + n] for i in range(0, len(items), n)]


def turns(branches: list[list[Any]], weights: list[Any], outputs: list[int]) -> list[Any]:
    """What a round robin emits: in turn n of weight w a branch has floor(n w) - floor((n - 1) w) items."""
    found, at, begun = [], [0] * len(branches), [0] * len(branches)
    ended = [False] * len(branches)
    while not all(ended[i] for i in outputs):
        for i, items in enumerate(branches):
            if ended[i]:
                continue
            begun[i] += 1
            share = 100 if weights[i] == "*" else floor(begun[i] * weights[i]) - floor((begun[i] - 1) * weights[i])
            for _ in range(share):
                if at[i] == len(items):
                    ended[i] = True
                    break
                found += [items[at[i]]] if i in outputs else []
                at[i] += 1
            if all(ended[k] for k in outputs):
                break
    return found


class Maker:
    """Makes plans of a seed. With `exact` their items are known; else branches may block, and items be random."""

    def __init__(self, seed: int, exact: bool) -> None:
        self.draw, self.exact = random.Random(seed), exact

    def plan(self) -> Made:
        return self._stream(self.draw.randint(1, 12))

    def _stream(self, size: int) -> Made:
        if size <= 1:
            items = [self.draw.randrange(50) for _ in range(self.draw.randrange(9))]
            return from_items(items if self.draw.random() < 0.7 else lambda: iter(items)), items
        if size < 4 or self.draw.random() < 0.5:
            return self._transformed(self._stream(size - 1))
        if self.draw.random() < 0.5:
            count = self.draw.randint(1, 3)
            return self._joined([self._stream(size // count - 1) for _ in range(count)])
        return self._forked(self._stream(size // 2), size // 4)

    def _forked(self, made: Made, size: int) -> Made:
        plan, items = made
        readers = plan.duplicate(self.draw.randint(1, 3), max_lag=1_000 if self.exact else self.draw.randint(1, 4))
        used = [(reader, items) for reader in readers if reader is readers[0] or self.draw.random() < 0.8]
        for _ in range(size):
            i = self.draw.randrange(len(used))
            used[i] = self._transformed(used[i])
        return self._joined(used)

    def _transformed(self, made: Made) -> Made:
        plan, items = made
        n = self.draw.randint(1, 4)
        ways: list[Callable[[], Made]] = [
            lambda: (plan.for_each(mixed), [mixed(item) for item in items]),
            lambda: (plan.for_each(mixed).for_each(Total()), list(accumulate(map(mixed, items)))),
            lambda: (plan.filter(kept), [item for item in items if kept(item)]),
            lambda: (plan.combine(several), [each for item in items for each in several(item)]),
            lambda: (plan.for_each(elements).flatten(), [each for item in items for each in elements(item)]),
            lambda: (plan.batch(n), batches(items, n)),
            lambda: (plan.take(3 * n), items[: 3 * n]),
            lambda: (plan.prefetch(n), items),
            lambda: (plan.call(Worker(), "mix", n), [mixed(item) for item in items]),
        ]
        if not self.exact:
            ways.append(lambda: (plan.for_each(mixed).for_each(Noise()), []))
            ways.append(lambda: (self._through_queue(plan, n), []))
        return self.draw.choice(ways)()

    def _through_queue(self, plan: Plan, n: int) -> Plan:
        queue = Queue(n)
        branches = [plan.for_each(Enqueue(queue)), Dequeue(queue)]
        outputs = self.draw.choice([[0], [1], [0, 1]])
        mode: Any = self.draw.choice(["round_robin", "async"])
        return Concurrently(branches, mode, outputs).filter(kept)

    def _joined(self, made: list[Made]) -> Made:
        plans, lists = [plan for plan, _ in made], [items for _, items in made]
        kind = self.draw.randrange(4)
        if kind == 0:
            return plans[0].zip(*plans[1:]), list(zip(*lists))
        outputs = [i for i in range(len(plans)) if self.draw.random() < 0.8] or [0]
        if kind == 1:
            named = {f"b{i}": plan for i, plan in enumerate(plans)}
            if self.exact or all(len(plan.inputs) == 0 for plan in plans):  # readers of a fork may lag too far
                return Sequentially(named, outputs), [item for i in outputs for item in lists[i]]
        if kind == 2 and not self.exact:
            return plans[0].union(*plans[1:]), []
        weights = [self.draw.choice([1, 1, 2, 3, 0.5, 1.5, 1 / 3, "*"]) for _ in plans]
        return Concurrently(plans, "round_robin", outputs, weights), turns(lists, weights, outputs)
