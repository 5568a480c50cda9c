"""gather_async with max_weight_lag: how far behind the weights may be that made an item."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import Plan, from_workers
from flowrl.errors import PlanError
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import InlineWorkers, Numbers, hosts, settle


def versions(workers: ManualWorkers, lag: int | None, in_flight: int = 1) -> Plan:
    """Every item makes a version of the weights; items are the versions since theirs was asked for."""

    def train(item: int) -> int:
        workers.version += 1
        return item

    return from_workers(workers, Numbers(99)).gather_async(in_flight, lag).for_each(train)


def test_nobody_is_asked_for_what_would_be_too_old() -> None:
    """V4: with a version an item, as many requests are open as the bound and one; the next waits for a version."""
    workers = ManualWorkers(4, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        assert [request.worker for request in workers.requests] == [0, 1]
        workers.answer(0)
        assert settle(run) == [0]
        assert [request.worker for request in workers.requests] == [1, 2], "who waits longest is asked first"


def test_what_came_later_waits_for_a_request_that_would_be_too_old_after_it() -> None:
    """V4: who is waited for is named."""
    workers = ManualWorkers(3, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        workers.answer(1)
        assert settle(run) == [100], "worker 0 has one version left"
        workers.answer(2)
        assert settle(run) == []
        text = "; ".join(run.explain().splitlines())
        assert "nothing leaves before the answer of worker 0, which would be older than max_weight_lag=1" in text
        workers.answer(0)
        assert settle(run) == [0, 200]


@given(data=st.data(), lag=st.integers(0, 4), count=st.integers(1, 5), in_flight=st.integers(1, 3))
def test_the_lag_of_every_item_is_within_its_bound(data: Any, lag: int, count: int, in_flight: int) -> None:
    """V4, F3, F2: whatever comes first, every item is emitted, none is too old when it is trained on.

    The pace is that of the versions, or a faster one.
    """
    workers = ManualWorkers(count, hosts())
    made: dict[int, int] = {}  # the version with which each item was asked for
    items, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    pace = data.draw(st.integers(1, items)), steps
    batch: list[int] = []
    lags: list[int] = []

    def train(item: int) -> int:
        batch.append(item)
        if len(batch) == items:
            lags.extend(workers.version - made[each] for each in batch)
            workers.version += steps
            batch.clear()
        return item

    with from_workers(workers, Numbers(6)).gather_async(in_flight, lag, pace=pace).for_each(train).run() as run:
        emitted = settle(run)
        while workers.requests:
            worker = data.draw(st.sampled_from(sorted({request.worker for request in workers.requests})))
            number = sum(item // 100 == worker for item in made)
            made[100 * worker + number] = workers.answer(worker).version
            emitted += settle(run)
        assert max(lags, default=0) <= lag
        assert sorted(emitted) == [100 * worker + number for worker in range(count) for number in range(6)]
        assert run.counters == {"env_steps": 60 * count}


def test_versions_faster_than_the_pace_drop_what_is_too_old() -> None:
    """V4: it is counted, its steps too, and the next ones are foreseen from there."""
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(99)).gather_async(1, 1).run() as run:
        settle(run)
        workers.version = 3
        workers.answer(0)
        workers.answer(1)
        assert settle(run) == []
        assert run.counters == {"env_steps": 20, "discarded_items": 2}
        workers.answer(0)
        assert settle(run) == [1]


def test_a_dead_worker_does_not_hold_the_others_back() -> None:
    """F10, V4: it is asked again with the newest weights."""
    workers = ManualWorkers(2, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        workers.answer(0)
        settle(run)
        workers.answer(0)
        assert settle(run) == []
        workers.kill(1)
        assert settle(run) == [1]


def test_a_bound_on_the_lag_needs_versions() -> None:
    part = from_workers(ManualWorkers(1, hosts()), Numbers(1))
    with pytest.raises(PlanError, match="max_weight_lag >= 0 or None, a whole number, got -1"):
        part.gather_async(1, -1)
    with pytest.raises(PlanError, match="items of pace >= 1, a whole number, got 0"):
        part.gather_async(1, 1, pace=(0, 1))
    with pytest.raises(PlanError, match=r"pace is \(items, versions\), as \(4, 1\), got 4"):
        part.gather_async(1, 1, pace=4)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="InlineWorkers has no versions of weights for max_weight_lag"):
        from_workers(InlineWorkers(1), Numbers(1)).gather_async(1, 2)
