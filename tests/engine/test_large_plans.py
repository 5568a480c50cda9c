"""Plans of many operators in a row, branches and readers: nothing calls itself once an operator."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from flowrl import Plan, from_items
from flowrl.engine import graph
from flowrl.engine.workers.subplan import packed, unpacked
from flowrl.errors import PlanError
from flowrl.operators.concurrency import Concurrently
from tests.engine.engine_parts import Total


def row(n: int, add: Callable[[Plan], Plan]) -> Plan:
    return reduce(lambda plan, _: add(plan), range(n), from_items([1, 2, 3]))


def split_and_zip(plan: Plan) -> Plan:
    left, right = plan.duplicate(2)
    return left.zip(right).for_each(min)


#: By shape: how it is made, and its size in the quick tests and in the exhaustive ones.
LARGE: dict[str, tuple[Callable[[int], Plan], int, int]] = {
    "functions": (lambda n: row(n, lambda plan: plan.for_each(abs)), 1_010, 10_000),
    "named functions": (
        lambda n: reduce(lambda p, i: p.for_each(abs, name=f"n{i}"), range(n), row(0, abs)),
        60,
        5_000,
    ),
    "prefetches": (lambda n: row(n, lambda plan: plan.prefetch(1)), 505, 10_000),
    "functions and prefetches": (lambda n: row(n, lambda plan: plan.for_each(abs).prefetch(2)), 60, 5_000),
    "calls": (lambda n: row(n, lambda plan: plan.call(abs, "__call__")), 60, 5_000),
    "forks that a zip joins": (lambda n: row(n, split_and_zip), 60, 2_500),
    "unions": (lambda n: row(n, lambda plan: plan.union(from_items([]))), 30, 1_000),
    "readers": (lambda n: Concurrently(list(from_items([1, 2]).duplicate(n))), 50, 2_000),
    "branches": (lambda n: Concurrently([from_items([1, 2]).for_each(Total()) for _ in range(n)]), 50, 2_000),
}


@pytest.fixture(autouse=True)
def _usual_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(before)


def use(plan: Plan, drawing: Path) -> None:
    """Do with a plan what one does with plans."""
    plan.check()
    assert plan.explain()
    plan.draw(drawing)
    with plan.run() as run, plan.run() as resumed:
        next(run)
        saved = run.state_dict()
        rest = list(run)
        resumed.load_state_dict(saved)
        assert list(resumed) == rest
        assert run.explain()


def test_every_graph_may_be_deep_and_wide(tmp_path: Path) -> None:
    for make, quick, _ in LARGE.values():
        use(make(quick), tmp_path / "plan.svg")


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", LARGE)
def test_ten_thousand_operators_in_a_thread_with_a_small_stack(shape: str, tmp_path: Path) -> None:
    """Frames of stages are none of the C stack's."""
    make, _, many = LARGE[shape]
    found: list[Any] = []

    def work() -> None:
        try:
            use(make(many), tmp_path / "plan.svg")
        except BaseException as error:
            found.append(error)

    before = threading.stack_size(64 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join(600)
    assert found == []
    assert not thread.is_alive()


def test_a_deep_part_of_a_plan_goes_to_workers() -> None:
    plan = row(400, lambda plan: plan.for_each(abs))
    assert list(unpacked(packed(plan, ["path"] * 401))) == [1, 2, 3]


def test_what_is_too_deep_is_refused_when_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_DEPTH", 3)
    plan = from_items([1]).for_each(abs).for_each(abs).prefetch(1)
    with pytest.raises(PlanError, match="a plan has at most 3 joins, forks, calls and prefetches one behind the other"):
        plan.for_each(abs)
