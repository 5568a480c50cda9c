"""Calls to a worker, and prefetch, on futures that the test completes."""

from __future__ import annotations

import threading
from itertools import islice

import pytest

from flowrl import Plan, from_items
from flowrl.engine.protocols import DONE, WAITING, Signal
from flowrl.engine.workers import calls
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.local import wait_for
from flowrl.errors import Stalled, ValueLost
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import Fails, Total, answer_meanwhile, settle


class Doubler:
    """What the workers of `call` work on."""

    def work(self, item: int) -> int:
        return 2 * item


def doublers(count: int = 1) -> ManualWorkers:
    return ManualWorkers(count, Doubler)


# -- call


def test_call_has_a_bounded_number_in_flight_and_keeps_the_order() -> None:
    """F7: at most `in_flight` requests; results come in the order of the items, whatever is ready first."""
    workers = doublers()
    with from_items(range(9)).call(workers.members[0], "work", 3).run() as run:
        assert settle(run) == []
        assert [request.args for request in workers.requests] == [(0,), (1,), (2,)]
        last = workers.requests.pop()
        last.future.set_result(4)
        assert settle(run) == [], "the first is not there yet"
        workers.answer()
        assert settle(run) == [0]
        workers.answer()
        assert settle(run) == [2, 4]
        assert len(workers.requests) == 3


def test_an_item_that_is_lost_with_its_machine_costs_itself_alone() -> None:
    """F10: asking again would be in vain, and whoever was asked is well."""
    workers = doublers()
    with from_items(range(3)).call(workers.members[0], "work").run() as run:
        settle(run)
        workers.fail(ValueLost("worker 0", "it is lost with the machine that held it"))
        assert settle(run) == []
        workers.answer()
        assert settle(run) == [2]
        assert run.counters == {"lost_requests": 1}


def test_a_failed_call_is_asked_again_and_costs_nothing_else() -> None:
    """F10: the other requests in flight are neither waited for nor repeated."""
    workers = doublers()
    with from_items(range(4)).call(workers.members[0], "work", 2).run(on_error="retry") as run:
        settle(run)
        workers.fail(ConnectionError("the worker died"))
        assert settle(run) == []
        assert [request.args for request in workers.requests] == [(1,), (0,)]
        workers.answer()
        workers.answer()
        assert settle(run) == [0, 2]
        workers.answer()
        workers.answer()
        assert settle(run) == [4, 6]
        assert run.counters == {"retried_items": 1}


def test_a_call_that_keeps_failing_gives_up() -> None:
    fails = Fails(2)
    run = from_items([1, 2, 3]).call(fails, "__call__").run(on_error="retry")
    assert next(run) == 1
    with pytest.raises(ValueError, match="cannot do 2"):
        next(run)
    assert fails.seen == [1, 2, 2, 2]
    fails.items = ()
    assert list(run) == [2, 3], "the item is tried again, also after the error was raised"


def test_a_call_skips_the_item_that_fails() -> None:
    run = from_items([1, 2, 3]).call(Fails(2), "__call__", 2).run(on_error="skip")
    assert list(run) == [1, 3]
    assert run.counters == {"skipped_items": 1}


def test_what_a_call_has_in_flight_is_drained_into_the_state() -> None:
    """F2: neither lost nor doubled, in the run that goes on and in the one that resumes."""
    workers, others = doublers(), doublers()
    make = lambda w: from_items(range(5)).call(w.members[0], "work", 3).for_each(Total())  # noqa: E731
    with make(workers).run() as run, make(others).run() as resumed:
        settle(run)
        workers.answer()
        thread = answer_meanwhile(workers)
        state = run.state_dict()
        thread.join()
        resumed.load_state_dict(state)
        for each, asked in ((run, workers), (resumed, others)):
            items = settle(each)
            while asked.requests:
                asked.answer()
                items += settle(each)
            assert items == [0, 2, 6, 12, 20]
        assert sum(1 for _ in others.requests) == 0


class Repeats:
    """A callee whose state counts the requests that it has answered; `saving` is called while it is saved."""

    repeats = True

    def __init__(self, workers: ManualWorkers) -> None:
        self.workers, self.answered, self.saving = workers, 0, lambda: None

    @property
    def silent(self) -> float:
        return self.workers.members[0].silent

    def submit(self, method: str, item: int) -> Future[int]:
        future = self.workers.members[0].submit(method, item)
        future.add_done_callback(self._count)
        return future

    def _count(self, _: object) -> None:
        self.answered += 1

    def state_dict(self) -> int:
        self.saving()
        return self.answered

    def load_state_dict(self, answered: int) -> None:
        self.answered = answered


def test_a_state_is_without_the_answers_of_who_hangs() -> None:
    """F10, F2: it does not wait; where it is loaded the requests are made again. One that answers after all while the
    state is taken is in it, and so is its effect: nothing is done twice or never."""
    callee = Repeats(doublers())
    with from_items(range(4)).call(callee, "work", 2).run() as run:
        settle(run)
        callee.workers.hang(0)
        state = run.state_dict()
        callee.saving = lambda: callee.workers.answer() if callee.workers.requests[1:] else None
        later = run.state_dict()
    for saved, answered, asked in ((state, 0, [0, 1]), (later, 1, [1, 2])):
        callee = Repeats(doublers())
        with from_items(range(4)).call(callee, "work", 2).run() as run:
            run.load_state_dict(saved)
            assert callee.answered == answered
            emitted = settle(run)
            assert [request.args[0] for request in callee.workers.requests] == asked
            while callee.workers.requests:
                callee.workers.answer()
                emitted += settle(run)
            assert emitted == [0, 2, 4, 6]
            assert callee.answered == 4


def test_a_failure_that_a_checkpoint_finds_is_still_raised_by_the_run() -> None:
    workers = doublers()
    with from_items([1, 2]).call(workers.members[0], "work", 2).run() as run:
        settle(run)
        workers.fail(ConnectionError("gone"))
        workers.answer()
        state = run.state_dict()
        assert state["operators"]["work"]["pending"] == [("request", 1), ("result", 4)]
        with pytest.raises(ConnectionError):
            run.step()


# -- prefetch


def test_prefetch_keeps_items_ready() -> None:
    """F7: inline, at most n are held, and all of them are in the state."""
    pulled: list[int] = []
    with from_items(range(9)).tap("Items", pulled.append).prefetch(3).run() as run:
        assert next(run) == 0
        assert pulled == [0, 1, 2]
        assert list(run.state_dict()["operators"]["prefetch"]["ready_items"]) == [1, 2]


def test_prefetch_in_a_thread_works_ahead_and_no_further() -> None:
    """F7: its thread makes at most n items more than were taken."""
    pulled: list[int] = []
    ready = threading.Event()

    def see(item: int) -> None:
        pulled.append(item)
        if len(pulled) == 4:
            ready.set()

    with from_items(range(99)).tap("Items", see).prefetch(3, thread=True).run() as run:
        assert next(run) == 0
        run.step()  # the thread is asked for more; it may not hold more than 3
        assert ready.wait(10)
        run.state_dict()  # pauses the thread
        assert len(pulled) <= 2 + 3


def test_prefetch_threads_nest_and_resume() -> None:
    """F2, F15: a checkpoint pauses the threads, loses nothing, and closing ends them."""

    def make() -> Plan:
        inner = from_items(range(40)).for_each(Total()).prefetch(2, thread=True)
        return inner.filter(lambda i: i % 2 == 0).prefetch(3, thread=True)

    expected = [t for t in (i * (i + 1) // 2 for i in range(40)) if t % 2 == 0]
    with make().run() as run, make().run() as resumed:
        first = list(islice(run, 7))
        resumed.load_state_dict(run.state_dict())
        assert first + list(resumed) == expected
        assert first + list(run) == expected
    assert [t for t in threading.enumerate() if "prefetch" in t.name] == []


def test_a_thread_that_a_checkpoint_waited_for_in_vain_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: the state was not to be had, and the run loses nothing by it."""
    working, gate = threading.Event(), threading.Event()

    def slow(item: int) -> int:
        if item == 1:
            working.set()
            gate.wait(10)
        return item

    with from_items(range(5)).for_each(slow).prefetch(1, thread=True).run(deadline_seconds=10) as run:
        assert next(run) == 0
        run.step()  # asks for the next one
        assert working.wait(10)
        with monkeypatch.context() as patched:
            patched.setattr(calls, "wait_for", lambda futures, what: wait_for(futures, what, 0.0))
            with pytest.raises(Stalled, match="prefetch: its thread"):
                run.state_dict()
        gate.set()
        steps = 0
        items = []
        while (item := run.step()) is not DONE and steps < 1000:
            steps += 1
            if item is WAITING:
                run.context.bell.wait(10)
            elif item.__class__ is not Signal:
                items.append(item)
        assert items == [1, 2, 3, 4]


def test_readers_of_a_fork_may_be_in_threads() -> None:
    """F2: the stream before a fork is pulled by one reader at a time, so no item is lost or doubled."""
    for _ in range(5):
        readers = from_items(lambda: iter(range(300))).for_each(Total()).duplicate(3, max_lag=8)
        plan = readers[0].prefetch(2, thread=True).union(readers[1], readers[2].prefetch(4, thread=True))
        items = list(plan)
        assert sorted(items) == sorted([i * (i + 1) // 2 for i in range(300)] * 3)


def test_an_error_in_a_prefetch_thread_reaches_the_run_with_its_note() -> None:
    with from_items(range(4)).for_each(Fails(2), name="fragile").prefetch(1, thread=True).run() as run:
        assert [next(run), next(run)] == [0, 1]
        with pytest.raises(ValueError, match="cannot do 2") as caught:
            next(run)
        assert caught.value.__notes__[0].startswith("in operator fragile (")
        assert list(run) == [3]


def test_an_inline_call_in_flight_is_exact() -> None:
    """F14: without a cluster, the same verbs work at once and in order."""
    assert list(from_items([1, 2, 3]).call(Doubler(), "work", 2)) == [2, 4, 6]
