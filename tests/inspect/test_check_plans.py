"""Every primitive and verb keeps the contract: deterministic, resumable at every step, blind to taps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import Plan, Queue, from_items, from_workers
from flowrl.engine.protocols import DONE
from flowrl.engine.transforms import Batches, Take, Tap, flatten
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from flowrl.testing import check_operator, check_plan
from tests.engine.engine_parts import InlineWorkers, Noise, Numbers, Pairs, Total

N = list(range(1, 8))


def numbers() -> Iterator[int]:
    yield from N


def double(item: Any) -> Any:
    return item * 2


def odd(item: int) -> bool:
    return item % 2 == 1


def on_workers(count: int = 2, n: int = 4) -> Plan:
    return from_workers(InlineWorkers(count), Numbers(n)).for_each(Total())


def queued(mode: Any = "round_robin", size: int = 2, **options: Any) -> Plan:
    queue = Queue(size)
    put = from_items(N).combine(lambda i: [i] * (i % 3)).for_each(Enqueue(queue)).for_each(Total())
    return Concurrently({"put": put, "take": Dequeue(queue).batch(2)}, mode, **options)


def forked(lag: int = 3) -> Plan:
    r1, r2, r3 = from_items(numbers).for_each(Total()).duplicate(3, max_lag=lag)
    return Concurrently([r1.filter(odd), r2.batch(2).for_each(tuple), r3.take(2)], round_robin_weights=[1, 0.5, "*"])


def nested() -> Plan:
    r1, r2 = from_items(N).duplicate(2, max_lag=2)
    inner = Concurrently({"a": r1.for_each(Noise()), "b": on_workers().gather_sync()}, round_robin_weights=[2, 1])
    return Concurrently({"x": inner.batch(3), "y": r2.zip(from_items(numbers).prefetch(2))}, "async")


class Slow:
    """A worker of `call` in this process."""

    def work(self, item: int) -> int:
        return -item


PLANS: dict[str, Callable[[], Plan]] = {
    "list": lambda: from_items(N),
    "generator function": lambda: from_items(numbers),
    "callable": lambda: from_items(lambda: iter(N)),
    "empty": lambda: from_items([]).for_each(Total()).batch(2),
    "for_each": lambda: from_items(N).for_each(double).for_each(Total()),
    "filter": lambda: from_items(N).filter(odd).for_each(Total()),
    "combine": lambda: from_items(N).combine(range).for_each(Total()),
    "combines that multiply": lambda: from_items([2, 0, 3]).combine(range).combine(range).combine(Pairs()),
    "pairs of what a flush gives": lambda: from_items(N).combine(Pairs()).combine(Pairs()).for_each(list),
    "batch": lambda: from_items(N).batch(3).flatten().batch(2),
    "take": lambda: from_items(N).combine(range).take(5).batch(2).take(2),
    "noise": lambda: from_items(N).for_each(Noise()).for_each(double).for_each(Noise()),
    "union": lambda: from_items(N).filter(odd).union(from_items(numbers), from_items([])),
    "zip": lambda: from_items(N).filter(odd).zip(from_items(numbers).for_each(Total()), from_items("abc")),
    "fork": forked,
    "fork in lockstep": lambda: forked(1),
    "prefetch": lambda: from_items(numbers).filter(odd).prefetch(2).for_each(Total()).prefetch(3),
    "call": lambda: from_items(N).call(Slow(), "work", 3).for_each(Total()),
    "call of calls": lambda: from_items(N).call(Slow(), "work", 2).filter(odd).call(Slow(), "work"),
    "gather_sync": lambda: on_workers().gather_sync().for_each(Total()),
    "gather_sync in rounds": lambda: on_workers().filter(odd).gather_sync(sum).for_each(Total()),
    "gather_async": lambda: on_workers().combine(Pairs()).gather_async(2),
    "noise on workers": lambda: on_workers().for_each(Noise()).gather_async().for_each(Noise()),
    "prefetch and call on workers": lambda: on_workers().prefetch(2).call(Slow(), "work", 2).gather_sync(),
    "fractions": lambda: Concurrently([from_items(N), from_items(N)], round_robin_weights=[1, 0.3]),
    "stars": lambda: Concurrently([from_items(N), on_workers().gather_async()], round_robin_weights=["*", 2]),
    "one output": lambda: Concurrently([from_items(N).for_each(Total()), from_items(N[:4])], output_indexes=[1]),
    "one output that ends first": lambda: Concurrently([forked(), from_items([])], output_indexes=[1]),
    "queue": queued,
    "queue, async": lambda: queued("async", 1),
    "queue, one output": lambda: queued(output_indexes=["take"], round_robin_weights=["*", 1]),
    "nested": nested,
}


@pytest.mark.parametrize("name", PLANS)
def test_every_primitive_keeps_the_contract(name: str) -> None:
    """D1, D3, D4, D5, F2: two runs are equal, a resume at every step loses and doubles nothing, taps change
    nothing on the way, a checkpoint taken twice is equal."""
    check_plan(PLANS[name])


OPERATORS: dict[str, tuple[Callable[[], Any], str, list[Any], list[Any]]] = {
    "Batches": (lambda: Batches(2), "combine", [1, 2, 3], [[1, 2], [3]]),
    "Take": (lambda: Take(2), "for_each", [1, 2, 3], [1, 2]),
    "flatten": (lambda: flatten, "combine", [[1], [], [2, 3]], [1, 2, 3]),
    "Tap": (lambda: Tap(print), "tap", [1, 2], [1, 2]),
    "Enqueue": (lambda: Enqueue(Queue(9)), "for_each", [1, 2], [1, 2]),
    "Total": (Total, "for_each", [1, 2], [1, 3]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_of_the_engine_keeps_the_contract(name: str) -> None:
    make, verb, items, expected = OPERATORS[name]
    check_operator(make, items, verb=verb, expected=expected)


def test_what_is_held_beside_a_tap_comes_in_order() -> None:
    """D3, D4: outputs wait before and behind the tap when the operator after it is not ready."""
    queue, other = Queue(1), Queue(1)

    def plan(q: Queue) -> Plan:
        return Concurrently(
            [from_items([3]).combine(range).for_each(Enqueue(q)), Dequeue(q)], round_robin_weights=[3, 1]
        )

    tapped = plan(queue).tap("range", print).tap("0.Items", print)
    with tapped.run() as run, plan(other).run() as resumed:
        assert [run.step(), run.step()] == [0, 0]
        resumed.load_state_dict(run.state_dict())  # 1 waits for room behind the tap, 2 before it
        assert list(resumed) == list(run) == [1, 1, 2, 2]


# -- random plans

VERBS = st.sampled_from(
    [
        lambda plan: plan.for_each(double),
        lambda plan: plan.for_each(Total()),
        lambda plan: plan.for_each(Noise()).for_each(int),
        lambda plan: plan.filter(odd),
        lambda plan: plan.combine(lambda i: [i] * (i % 3)),
        lambda plan: plan.combine(Pairs()).for_each(sum),
        lambda plan: plan.batch(2).for_each(sum),
        lambda plan: plan.batch(2).flatten(),
        lambda plan: plan.take(3),
        lambda plan: plan.prefetch(2),
        lambda plan: plan.call(Slow(), "work", 2),
        lambda plan: _fork_and(plan, lambda a, b: a.zip(b.for_each(double)).for_each(sum)),
        lambda plan: _fork_and(plan, lambda a, b: a.filter(odd).union(b)),
        lambda plan: _fork_and(plan, lambda a, b: _through_queue(a).union(b)),
        lambda plan: _through_queue(plan),
    ]
)

SOURCES = st.sampled_from(
    [
        lambda: from_items([]),
        lambda: from_items([3, 1, 2]),
        lambda: from_items(numbers),
        lambda: on_workers(2, 2).gather_sync(),
        lambda: on_workers(2, 2).filter(odd).gather_sync(sum),
        lambda: on_workers(2, 2).gather_async(2),
    ]
)

MERGES = st.sampled_from(
    [
        lambda a, b: a.union(b),
        lambda a, b: a.zip(b).for_each(sum),
        lambda a, b: Concurrently([a, b], round_robin_weights=[1, 0.5]),
        lambda a, b: Concurrently({"a": a, "b": b}, round_robin_weights=["*", 2]),
        lambda a, b: Concurrently([a, b], output_indexes=[1]),
        lambda a, b: Concurrently([a, b], "async", output_indexes=[0]),
    ]
)


def _fork_and(plan: Plan, join: Callable[[Plan, Plan], Plan]) -> Plan:
    return join(*plan.duplicate(2, max_lag=20))


def _through_queue(plan: Plan) -> Plan:
    queue = Queue(2)
    return Concurrently({"put": plan.for_each(Enqueue(queue)), "take": Dequeue(queue)}, output_indexes=["take"])


def _grown(make: Callable[[], Plan], verb: Callable[[Plan], Plan]) -> Callable[[], Plan]:
    return lambda: verb(make())


def _merged(a: Callable[[], Plan], b: Callable[[], Plan], merge: Callable[..., Plan]) -> Callable[[], Plan]:
    return lambda: merge(a(), b())


RANDOM = st.recursive(
    SOURCES,
    lambda plans: st.one_of(st.builds(_grown, plans, VERBS), st.builds(_merged, plans, plans, MERGES)),
    max_leaves=5,
)


@given(RANDOM)
def test_random_plans_keep_the_contract(make: Callable[[], Plan]) -> None:
    """D1, D3, D4, D5, F2 for what nobody thought of."""
    with make().run() as run:
        steps = 0
        while run.step() is not DONE:
            steps += 1
            assert steps < 5000
    check_plan(make, steps=range(0, steps, max(1, steps // 6)))
