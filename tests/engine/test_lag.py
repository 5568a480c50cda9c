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


def test_nothing_leaves_while_a_worker_is_about_to_fall_behind() -> None:
    """max_weight_lag: a worker that has not answered is never more versions behind; who is waited for is named."""
    workers = ManualWorkers(3, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        workers.answer(0)
        assert settle(run) == [0]
        workers.answer(2)
        assert settle(run) == [], "worker 1 was asked at version 0, and there is version 1"
        workers.answer(0)
        assert settle(run) == []
        text = "; ".join(run.explain().splitlines())
        assert "nothing leaves before the answer of worker 1, which has weights that are max_weight_lag=1" in text
        workers.answer(1)
        assert settle(run)[0] == 200, "of those made with version 0 what came first"


def test_the_oldest_weights_come_first_and_what_is_too_old_is_dropped() -> None:
    """max_weight_lag: the versions between request and emission are within it; the rest is counted, its steps too."""
    workers = ManualWorkers(4, hosts())
    with versions(workers, 1).run() as run:
        settle(run)
        for index in range(4):
            workers.answer(index)
        assert settle(run) == [0, 100], "lags 0 and 1; the others would have had 2"
        assert run.counters == {"env_steps": 40, "discarded_items": 2}
        assert [request.worker for request in workers.requests] == [0, 1, 2, 3], "all are asked again"


@given(data=st.data(), lag=st.integers(0, 4), count=st.integers(1, 5), in_flight=st.integers(1, 3))
def test_the_lag_of_every_item_is_within_its_bound(data: Any, lag: int, count: int, in_flight: int) -> None:
    """F3, F2, max_weight_lag, whatever comes first: every item emitted or counted as dropped, and none is too old."""
    workers = ManualWorkers(count, hosts())
    made: dict[int, int] = {}  # the version with which each item was asked for
    every = data.draw(st.integers(1, 4))
    lags: list[int] = []

    def train(item: int) -> int:
        lags.append(workers.version - made[item])
        workers.version += len(lags) % every == 0
        return item

    with from_workers(workers, Numbers(6)).gather_async(in_flight, lag).for_each(train).run() as run:
        settle(run)
        while workers.requests:
            worker = data.draw(st.sampled_from(sorted({request.worker for request in workers.requests})))
            number = sum(item // 100 == worker for item in made)
            made[100 * worker + number] = workers.answer(worker).version
            settle(run)
        assert all(each <= lag for each in lags)
        assert len(lags) + run.counters.get("discarded_items", 0) == 6 * count
        assert run.counters["env_steps"] == 60 * count


def test_a_dead_worker_does_not_hold_the_others_back() -> None:
    """F10, max_weight_lag: it is asked again with the newest weights."""
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
    with pytest.raises(PlanError, match="InlineWorkers has no versions of weights for max_weight_lag"):
        from_workers(InlineWorkers(1), Numbers(1)).gather_async(1, 2)
