"""gather_sync and gather_async: a plan's part on workers, on futures that the test completes."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from itertools import islice
from typing import Any

import attrs
import pytest

from flowrl import Plan, from_workers
from flowrl.engine.workers import gather, members
from flowrl.engine.workers.remote import Remote
from flowrl.errors import WorkerDied
from flowrl.operators.concurrency import Concurrently
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import (
    Fails,
    Host,
    InlineWorkers,
    Noise,
    Numbers,
    Total,
    answer_all,
    answer_meanwhile,
    gathered,
    hosts,
    settle,
)


def test_gather_sync_takes_one_item_of_each_worker_in_their_order() -> None:
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(2)).gather_sync().run() as run:
        for expected in ([0, 100], [1, 101]):
            assert settle(run) == []
            workers.answer(1)
            assert settle(run) == [], "the round is not complete"
            workers.answer(0)
            assert settle(run) == expected


def test_gather_sync_goes_on_with_the_workers_that_have_not_ended() -> None:
    def uneven(workers: Any) -> Plan:
        return from_workers(workers, Numbers(3)).filter(lambda i: i < 100 or i == 101)

    assert list(uneven(InlineWorkers(2)).gather_sync()) == [0, 101, 1, 2]
    assert list(uneven(InlineWorkers(2)).gather_sync(list)) == [[0, 101], [1], [2]]


def test_gather_async_gives_what_is_ready() -> None:
    """F7: with as many requests to each worker as were allowed."""
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(9)).gather_async(in_flight=2).run() as run:
        settle(run)
        assert [request.worker for request in workers.requests] == [0, 0, 1, 1]
        workers.answer(1)
        workers.answer(1)
        assert settle(run) == [100, 101]
        assert [request.worker for request in workers.requests] == [0, 0, 1, 1], "F7: never more than 2 each"


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_done_with_an_item_happens_before_its_worker_is_asked_again(sync: bool) -> None:
    """F3: with one request in flight, an operator's effect on item i comes before the request for item i+1."""
    events: list[str] = []

    class Told(Host):
        """A worker that notes when it is asked."""

        def pull_plan(self, key: str) -> Any:
            events.append(f"asked {self.index}")
            return super().pull_plan(key)

    indexes = iter(range(2))
    workers = InlineWorkers(0)
    from flowrl.engine.workers.local import InlineWorker

    workers.members = [InlineWorker(Told(next(indexes))) for _ in range(2)]
    part = from_workers(workers, Numbers(9))
    gathered = part.gather_sync() if sync else part.gather_async()
    list(islice(gathered.for_each(lambda item: events.append(f"learnt from {item // 100}")).run(), 6))
    for worker in (0, 1):
        own = [event for event in events if event.endswith(str(worker))]
        assert own[:5] == [f"asked {worker}", f"learnt from {worker}"] * 2 + [f"asked {worker}"]


@pytest.mark.parametrize("sync", [True, False])
def test_a_request_that_failed_is_sent_again_when_the_run_goes_on(sync: bool) -> None:
    workers = ManualWorkers(2, hosts())
    part = from_workers(workers, Numbers(1))
    with (part.gather_sync() if sync else part.gather_async()).run() as run:
        settle(run)
        workers.fail(ConnectionError("gone"), worker=0)
        workers.answer(1)
        items = []
        with pytest.raises(ConnectionError):
            items += settle(run)
        items += settle(run)
        while workers.requests:
            workers.answer()
            items += settle(run)
        assert sorted(items) == [0, 100]


def test_an_error_of_an_operator_on_a_worker_is_the_operators() -> None:
    """F9: its own path and line, not that of the gather; the policy of the run reaches the workers."""

    def part(workers: Any) -> Plan:
        return from_workers(workers, Numbers(3)).for_each(Fails(1), name="fragile").gather_async()

    with pytest.raises(ValueError, match="cannot do 1") as caught:
        list(part(InlineWorkers(1)))
    assert len(caught.value.__notes__) == 1
    assert caught.value.__notes__[0].startswith("in operator fragile (")
    assert caught.value.__notes__[0].endswith("item 2, input int")
    with part(InlineWorkers(1)).run(on_error={"fragile": "skip"}) as run:
        assert list(run) == [0, 2]
        assert run.counters["skipped_items"] == 1
    with pytest.raises(ValueError, match="cannot do 1"):
        list(part(InlineWorkers(1)).run(on_error="retry"))  # it is not declared pure, so it is not retried


def test_answers_in_flight_are_drained_into_the_state() -> None:
    """F2: across a checkpoint every item of every worker comes once."""
    for sync in (True, False):
        workers, others = ManualWorkers(2, hosts()), ManualWorkers(2, hosts())
        runs = []
        for each in (workers, others):
            part = from_workers(each, Numbers(4)).for_each(Total())
            runs.append((part.gather_sync() if sync else part.gather_async(2)).run())
        run, resumed = runs
        before = settle(run)
        workers.answer(1)
        before += settle(run)
        thread = answer_meanwhile(workers)
        state = run.state_dict()
        thread.join()
        resumed.load_state_dict(state)
        for each, asked in zip(runs, (workers, others)):
            items = list(before) + settle(each)
            while asked.requests:
                asked.answer()
                items += settle(each)
            assert sorted(items) == [0, 1, 3, 6, 100, 201, 303, 406]
            each.close()


def test_counters_of_workers_arrive_once() -> None:
    """F12: through unions, forks, resumes and with operators on several workers."""

    def make() -> Plan:
        a = from_workers(InlineWorkers(2), Numbers(3)).for_each(Noise()).gather_async(2)
        b = from_workers(InlineWorkers(1), Numbers(2)).gather_sync()
        r1, r2 = a.union(b).duplicate(2)
        return Concurrently([r1, r2.batch(3)])

    with make().run() as run:
        list(run)
        total = dict(run.counters)
        drawn = sorted(run.context.metrics.drain("drawn"))
    assert total == {"env_steps": 10 * (2 * 3 + 2), "draws": 6}
    assert drawn == [0, 1, 2, 100, 101, 102]
    for steps in range(0, 20, 3):
        with make().run() as run, make().run() as resumed:
            for _ in range(steps):
                run.step()
            resumed.load_state_dict(run.state_dict())
            list(resumed)
            assert resumed.counters == total


def test_operators_on_workers_have_the_paths_and_streams_of_the_whole_plan() -> None:
    """D6: two parts with operators of equal names draw from different streams."""

    def noise(workers: Any) -> Plan:
        return from_workers(workers, Numbers(2)).for_each(lambda _: 0.0).for_each(Noise()).gather_sync()

    r1, r2 = noise(InlineWorkers(2)).duplicate(2)
    r3, r4 = noise(InlineWorkers(2)).duplicate(2)
    plan = r1.zip(r3).union(r2.zip(r4))
    draws = {value for row in plan for value in row}
    assert len(draws) == 2 * 2 * 2, "four workers' streams, two draws each"


def test_the_state_of_other_workers_is_refused() -> None:
    from flowrl.errors import CheckpointError

    with from_workers(InlineWorkers(2), Numbers(2)).gather_sync().run() as run:
        state = run.state_dict()
    more = from_workers(InlineWorkers(3), Numbers(2)).gather_sync()
    with more.run() as run, pytest.raises(CheckpointError, match="gather_sync has 3 workers, and 2 in it"):
        run.load_state_dict(state)
    with from_workers(InlineWorkers(2), Numbers(2)).for_each(Total()).gather_sync().run() as run:
        with pytest.raises(CheckpointError, match="operators missing in it: Total"):
            run.load_state_dict(state)
        assert len(list(run)) == 4, "nothing was changed"


# -- where items are, and with which weights they were made


class Store:
    """What takes items where they are; it notes what it was given."""

    takes_remote = True

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.given.append(item)
        return item.fetch() if isinstance(item, Remote) else item


def test_items_stay_where_they_were_made_for_who_takes_them_there() -> None:
    """The answer comes with counters all the same; a tap sees the value, and changes nothing (D4)."""
    for tapped in (False, True):
        workers, store, seen = ManualWorkers(2, hosts(), apart=True), Store(), []
        plan = gathered(workers, n=2)
        plan = (plan.tap("gather_async", seen.append) if tapped else plan).for_each(store)
        with plan.run() as run:
            assert sorted(answer_all(run, workers)) == [0, 1, 100, 201]
            assert run.counters == {"env_steps": 40}
        assert all(isinstance(item, Remote) for item in store.given) is not tapped
        assert seen == (store.given if tapped else [])


def test_items_come_here_for_who_needs_their_values() -> None:
    workers = ManualWorkers(2, hosts(), apart=True)
    with gathered(workers, n=2).for_each(Total()).run() as run:
        assert answer_all(run, workers)[-1] == 0 + 1 + 100 + 201


def test_a_state_holds_the_values_of_items_that_are_elsewhere() -> None:
    """F2: and the run that resumes gives them to who takes both."""
    make = lambda each: gathered(each, n=2, in_flight=2).for_each(Store())  # noqa: E731
    workers, others = ManualWorkers(2, hosts(), apart=True), ManualWorkers(2, hosts(), apart=True)
    with make(workers).run() as run, make(others).run() as resumed:
        settle(run)
        thread = answer_meanwhile(workers)
        state = run.state_dict()
        thread.join()
        assert sorted(answer.answer.item for answer in state["operators"]["gather_async"]["pending"]) == [
            0,
            1,
            100,
            201,
        ]
        resumed.load_state_dict(state)
        for each, asked in ((run, workers), (resumed, others)):
            assert sorted(answer_all(each, asked)) == [0, 1, 100, 201]


def test_an_item_that_was_lost_elsewhere_is_counted_when_a_state_is_taken() -> None:
    """F10: its worker is asked again."""

    workers = ManualWorkers(1, hosts(), apart=True)

    def lost(_: Any) -> Any:
        raise WorkerDied("machine 3", "it does not answer")

    with gathered(workers, n=2).for_each(Store()).run() as run:
        settle(run)
        request = workers.requests.pop()
        answer, item = request.do()
        request.future.set_result((answer, attrs.evolve(item, get=lost)))
        state = run.state_dict()
        assert state["operators"]["gather_async"]["pending"] == []
        assert run.counters == {"lost_requests": 1}
        assert answer_all(run, workers) == [1]


# -- seeing


def test_a_slow_worker_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F10: once in the log, and in the explanation of the run; closing the run does not wait for it."""
    now = 0.0
    for module in (gather, members):
        monkeypatch.setattr(module, "clock", lambda: now)
    workers = ManualWorkers(3, hosts())
    with gathered(workers, n=99).run() as run:
        settle(run)
        for _ in range(40):
            now += 0.5
            workers.answer(0)
            workers.answer(1)
            settle(run)
        assert caplog.text.count("worker 2 has not answered for") == 1
        assert "worker 2 has not answered for 10 s; requests usually take 0.5 s" in caplog.text
        report = run.explain()
        assert "workers of gather_async: 0: 40 items, 1 request, 0.5 s each; 1: 40 items" in report
        assert "2: 0 items, 1 request, no answer for 20 s" in report
        member = workers.members[2]
        assert member is not None
        monkeypatch.setattr(member, "submit", lambda *args: Future())
    assert "closes its part later" not in caplog.text


def test_many_slow_workers_are_one_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: with how long the slowest has not answered."""
    now = 0.0
    for module in (gather, members):
        monkeypatch.setattr(module, "clock", lambda: now)
    workers = ManualWorkers(4, hosts())
    with gathered(workers, n=99).run() as run:
        settle(run)
        now = 0.5
        workers.answer(2)
        settle(run)
        for now in map(float, range(1, 13)):
            workers.answer(0)
            if now <= 2:
                workers.answer(3)
            settle(run)
        now += 3
        workers.answer(0)
        settle(run)
        lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
        assert [line.partition(";")[0] for line in lines] == [
            "worker 1, 2 has not answered for 11 s",
            "worker 3 has not answered for 13 s",
        ]
        for place in (1, 2, 3):
            workers.answer(place)


def test_the_cost_of_an_item_does_not_grow_with_the_requests_in_flight() -> None:
    """No part of a step looks at every request: so many calls an item, with 10 workers or with 1000."""

    def calls(count: int) -> float:
        workers = ManualWorkers(count, hosts())
        with from_workers(workers, Numbers(99)).gather_async().run() as run:
            settle(run)
            made, items = 0, 20

            def count_calls(frame: Any, event: str, _: Any) -> None:
                nonlocal made
                made += event in ("call", "c_call")

            for _ in range(items):
                request = workers.requests.pop()
                result = request.do()
                sys.setprofile(count_calls)
                request.future.set_result(result)
                run.step()
                sys.setprofile(None)
            return made / items

    few, many = calls(10), calls(1000)
    assert many <= 1.5 * few
