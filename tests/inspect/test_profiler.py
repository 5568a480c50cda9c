"""Profiles of a run while it goes: what they leave out, the last seconds, and what does not move."""

from __future__ import annotations

import pytest

from flowrl import Queue, from_items, from_workers
from flowrl.engine.protocols import WAITING
from flowrl.engine.recording.ledger import ledger
from flowrl.inspect import profiler
from flowrl.inspect.profiler import RECENT, STALLED, Profiler
from flowrl.operators import Concurrently, Dequeue, Enqueue
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import Numbers, hosts


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the profiler is told, in a list to be changed."""
    now = [100.0]
    monkeypatch.setattr(profiler, "clock", lambda: now[0])
    return now


def test_what_comes_before_the_second_result_is_left_out_from_the_first_on() -> None:
    with from_items(range(9)).run() as run:
        taken = Profiler(run)
        counted = []
        for _ in range(4):
            next(run)
            taken.count_result()
            counted.append(taken.profile().ledger.driver.items)
    assert [each["Items"] for each in counted] == [1, 1, 2, 3]


def test_what_it_did_lately_forgets_what_was_before() -> None:
    with from_items(range(99)).run() as run:
        taken = Profiler(run)
        for _ in range(RECENT + 20):
            next(run)
            profile = taken.profile()
    assert profile.recent is not None
    assert profile.recent.driver.items == {"Items": RECENT}
    assert profile.activity().keys() == {"Items"}


def test_a_stall_is_told_once_it_lasts(time: list[float]) -> None:
    """E6: in the operator's own words, with its seconds; an item that passes ends it."""
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(2)).gather_sync().for_each(str, name="learn").run() as run:
        taken = Profiler(run)
        while run.step() is not WAITING:
            pass
        taken.profile()
        time[0] += STALLED - 0.1
        assert taken.profile().stalls == ()
        time[0] += 1.1
        assert taken.profile().stalls == ("gather_sync: no answer yet from worker 0, 1 (6 s)",)
        workers.answer()
        workers.answer()
        while run.step().__class__ is not str:
            pass
        assert taken.profile().stalls == ()


def test_a_branch_that_waits_while_another_goes_on_has_stalled(time: list[float]) -> None:
    """E6: the run never sleeps."""
    queue = Queue(2)
    full = from_items(range(9)).for_each(Enqueue(queue), name="put")
    with Concurrently({"full": full, "free": from_items(range(99))}, output_indexes=["free"]).run() as run:
        taken = Profiler(run)
        for _ in range(6):
            next(run)
        taken.profile()
        time[0] += STALLED
        next(run)
        profile = taken.profile()
    assert profile.stalls == ("full.put: the queue is full (2 items) (5 s)",)
    assert profile.activity()["full.put"].fill == (2, 2)
    assert profile.activity()["full.put"].blocked > 0


def test_a_queue_tells_both_ends_how_full_it_is() -> None:
    queue = Queue(4)
    put = from_items(range(2)).for_each(Enqueue(queue), name="put")
    with Concurrently({"put": put, "get": Dequeue(queue)}, output_indexes=["put"]).run() as run:
        next(run)
        fill = ledger(run).fill
    assert fill["put.put"] == fill["get.Dequeue"]
    assert fill["put.put"][1] == 4
