"""The ledger: where the seconds of each thread and process of a run went. A planned clock tells exact seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from flowrl import Plan, Queue, from_items, from_workers, operator, state
from flowrl.engine import merge, run, stages
from flowrl.engine.protocols import DONE, WAITING
from flowrl.engine.recording.ledger import Ledger, ledger
from flowrl.engine.run import Run
from flowrl.engine.workers import accounts, calls, gather, members, subplan
from flowrl.engine.workers.accounts import DRIVER, FULL, NO_INPUT, NO_REQUEST, OPENING, OUTSIDE, SAVING, Account
from flowrl.engine.workers.local import ThreadWorker
from flowrl.operators import Concurrently, Dequeue, Enqueue
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import InlineWorkers, hosts, settle


class Clock:
    """Time passes for each thread by what operators cost, and by `tick` whenever somebody looks."""

    def __init__(self) -> None:
        self.now, self.tick = 100.0, 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    planned = Clock()
    for module in (accounts, calls, gather, members, merge, run, stages, subplan):
        monkeypatch.setattr(module, "clock", planned)
    return planned


def costs(clock: Clock, seconds: float) -> Callable[[Any], Any]:
    """A function that takes so many seconds."""

    def work(item: Any) -> Any:
        clock.now += seconds
        return item

    return work


@operator
class Slow:
    """A source on a worker, whose items take 5 s each."""

    clock: Any
    n: int
    position: int = state(default=0)

    def pull(self) -> Any:
        if self.position == self.n:
            return DONE
        self.position += 1
        self.clock.now += 5
        return self.position


def given(account: Account) -> dict[str, float]:
    """The entries of an account that are not 0."""
    return {name: s for name, s in {**account.busy, **account.waits, "engine": account.engine}.items() if abs(s) > 1e-9}


def branches(clock: Clock) -> Plan:
    queue = Queue(4)
    store = from_items(range(99)).for_each(costs(clock, 2), name="act").for_each(Enqueue(queue))
    train = Dequeue(queue).batch(2).for_each(costs(clock, 3), name="learn").filter(costs(clock, 1), name="keep")
    return Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"], output_indexes=["train"])


def test_seconds_of_an_operator_are_its_own(clock: Clock) -> None:
    """E1: without those of the operators that it pulls, and with those of items that it drops."""
    with branches(clock).run() as running:
        next(running)
        clock.now += 10
        next(running)
        account = ledger(running).driver
    assert given(account) == {"store.act": 8, "train.learn": 6, "train.keep": 2, OUTSIDE: 10}
    assert account.wall == 26


def test_what_an_operator_flushes_or_fails_at_is_its_own(clock: Clock) -> None:
    """E1."""

    class Ends:
        verb = "combine"

        def __call__(self, item: int) -> list[int]:
            clock.now += 1
            raise ValueError

        def finish(self) -> list[int]:
            clock.now += 7
            return []

    with from_items([1, 2]).combine(Ends(), name="ends").run(on_error="skip") as running:
        assert list(running) == []
        assert given(ledger(running).driver) == {"ends": 9}


def test_the_rest_is_the_engines(clock: Clock) -> None:
    """E1: entries sum to the wall time whatever the clock says."""
    clock.tick = 1.0
    with branches(clock).run() as running:
        list(islice(running, 9))
        for account in ledger(running).accounts:
            assert account.engine > 0
            assert sum(given(account).values()) == account.wall


def test_taking_a_state_and_opening_are_no_time_of_an_operator(clock: Clock) -> None:
    """E1."""
    clock.tick = 1.0
    with from_items([1]).run() as running:
        running.state_dict()
        waits = ledger(running).driver.waits
    assert waits[SAVING] > 0
    assert waits[OPENING] > 0


def sleeping(running: Run, clock: Clock, meanwhile: Callable[[], Any]) -> Any:
    """The next item of a run during whose first sleep something happens that wakes it."""
    bell, waits = running.context.bell, running.context.bell.wait

    def wait(seconds: float) -> bool:
        bell.wait = waits  # type: ignore[method-assign]
        meanwhile()
        return waits(seconds)

    bell.wait = wait  # type: ignore[method-assign]
    return next(running)


def test_sleep_counts_for_what_will_wake_the_run(clock: Clock) -> None:
    """E2: the branch that it waits for, not another one that is blocked."""
    workers, queue = ManualWorkers(2, hosts()), Queue(1)
    rollouts = from_workers(workers, Slow(clock, 3)).gather_sync()
    plan = Concurrently({"blocked": Dequeue(queue), "gather": rollouts}, mode="async", output_indexes=["gather"])
    with plan.run() as running:

        def answered() -> None:
            workers.answer()
            workers.answer()
            clock.now += 1  # on the way

        assert sleeping(running, clock, answered) == 1
        book = ledger(running)
    assert given(book.driver) == {"gather.gather_sync": 11}
    assert book.driver.starved["gather.gather_sync"] == 0
    assert book.driver.blocked["blocked.Dequeue"] == 11


def test_a_wait_is_borne_by_the_workers_whose_answers_are_missing(clock: Clock) -> None:
    """E10: evenly, each second; so the one of two that takes five times as long bears nearly all of it."""
    workers, passes = ManualWorkers(2, hosts()), iter([(0, 0), (1, 15)] * 2)
    with from_workers(workers, Slow(clock, 9)).gather_sync().run() as running:
        waits = running.context.bell.wait

        def wait(_: float) -> bool:
            worker, late = next(passes)
            clock.now += late
            workers.answer(worker)
            return waits(0)

        running.context.bell.wait = wait  # type: ignore[method-assign]
        assert list(islice(running, 4)) == [1, 1, 2, 2]
        driver = ledger(running).driver
    assert driver.by_worker == {"gather_sync": {"worker 0": 5, "worker 1": 45}}
    assert sum(driver.by_worker["gather_sync"].values()) == driver.waits["gather_sync"] == 50


def test_what_a_run_waits_for_is_told_apart_within_bounds(clock: Clock) -> None:
    """F7: it may wait for any of many branches, each time for others."""
    workers = ManualWorkers(1, hosts())
    with from_workers(workers, Slow(clock, 9)).gather_async().run() as running:
        running.asleep.update({(f"another {i}",): 0.0 for i in range(run.MOST_WAITS)})
        sleeping(running, clock, workers.answer)
        assert len(running.asleep) == run.MOST_WAITS + 1
        assert running.asleep[run.ANY_OPERATOR] == 5


def test_workers_send_their_accounts_with_answers(clock: Clock) -> None:
    """E3, E11: busy by operator, and idle between requests; several that share a process share its seconds."""
    workers = ManualWorkers(2, hosts())
    part = from_workers(workers, Slow(clock, 9)).for_each(costs(clock, 2), name="encode")
    with part.gather_async().for_each(costs(clock, 1), name="use").run() as running:
        settle(running)
        for worker in (0, 1, 0):
            workers.requests[0].future.pickling = 1.5
            workers.answer(worker)
            settle(running)
        book = ledger(running)
    (account,) = [each for each in book.accounts if each.kind == "worker"]
    assert given(account) == {"Slow": 15, "encode": 6, NO_REQUEST: 2}
    assert account.items == {"Slow": 3, "encode": 3}
    assert (account.calls, account.wall, account.stage, account.by) == (3, 23, "gather_async", DRIVER)
    assert account.pickling == 3 * 1.5
    assert account.trips == 7 + 15 + 15  # the second was asked at 0 and answered at 15, the third at 8 and at 23
    assert given(book.driver) == {"use": 3, OUTSIDE: 21}


def test_bytes_of_what_workers_send_are_counted(clock: Clock) -> None:
    """E3: of columns, also of items that stay with their worker."""
    for apart in (False, True):
        workers = ManualWorkers(1, hosts(), apart=apart)
        part = from_workers(workers, Slow(clock, 9)).for_each(lambda item: {"x": np.zeros(5), "y": [item, b"z"]})
        with part.gather_async().run() as running:
            settle(running)
            workers.answer()
            settle(running)
            assert ledger(running).accounts[1].nbytes == 40


def test_what_may_block_an_operator_is_known(clock: Clock) -> None:
    with branches(clock).run() as running:
        assert ledger(running).stores == {"store.Enqueue": "Queue", "train.Dequeue": "Queue"}


def test_an_account_is_no_part_of_the_state(clock: Clock) -> None:
    """E4: nothing that a clock told is in items, records or a state (D1)."""
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Slow(clock, 9)).gather_sync().run() as running:
        settle(running)
        workers.answer(1)
        settle(running)
        workers.answer(0)
        state = running.state_dict()
    answers = [arrival.answer for arrival in state["operators"]["gather_sync"]["pending"]]
    assert [(answer.records, answer.told) for answer in answers] == [({}, ()), ({}, ())]
    assert running.context.metrics.records == {}


def test_parts_in_this_process_count_once(clock: Clock) -> None:
    """E3: what a worker does in the thread that asks it is of its operators, not of the gather too."""
    part = from_workers(InlineWorkers(2), Slow(clock, 2)).for_each(costs(clock, 2), name="encode")
    with part.gather_sync().for_each(costs(clock, 1), name="use").run() as running:
        list(running)
        book = ledger(running)
    assert given(book.driver) == {"Slow": 20, "encode": 8, "use": 4}
    assert book.driver.items == {"Slow": 4, "encode": 4, "gather_sync": 4, "use": 4}
    assert len(book.accounts) == 1


def test_the_worker_of_a_call_has_an_account(clock: Clock) -> None:
    """E3, E11: it is busy from a question, or its last answer, to the next answer."""
    futures: list[Any] = []

    class Manual:
        def submit(self, method: str, item: int) -> Any:
            from flowrl.engine.workers.futures import Future

            futures.append((Future(), item))
            return futures[-1][0]

    with from_items([{"x": np.zeros(5)}] * 9).call(Manual(), "train", in_flight=2).run() as running:
        assert running.step() is WAITING
        for _ in range(2):
            clock.now += 4
            future, item = futures.pop(0)
            future.pickling = 0.5
            future.set_result(item)
        settle(running)
        clock.now += 1
        book = ledger(running)
    (account,) = [each for each in book.accounts if each.kind == "callee"]
    assert given(account) == {"train": 8, NO_REQUEST: 1}
    assert (account.calls, account.nbytes, account.pickling) == (2, 80, 1.0)


@pytest.fixture
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of threads run where they are submitted, with another identifier, so that time is planned."""
    here, ident = threading.get_ident(), [threading.get_ident()]

    class Elsewhere(ThreadWorker):
        def submit(self, method: str, *args: Any) -> Any:
            from flowrl.engine.workers.futures import Future

            future: Future[Any] = Future()
            self.ident = ident[0] = here + 1
            future.set_result(getattr(self.target, method)(*args))
            ident[0] = here
            return future

    monkeypatch.setattr(calls, "ThreadWorker", Elsewhere)
    monkeypatch.setattr("flowrl.engine.meter.get_ident", lambda: ident[0])
    monkeypatch.setattr(Elsewhere, "runs_here", property(lambda self: ident[0] == self.ident))


@pytest.mark.usefixtures("inline_threads")
def test_a_thread_has_an_account_of_its_own(clock: Clock) -> None:
    """E3: its operators, and what it waits for: here its reader, since all items are ready."""
    plan = from_items(range(99)).for_each(costs(clock, 2), name="make").prefetch(2, thread=True)
    with plan.for_each(costs(clock, 3), name="use").run() as running:
        list(islice(running, 3))
        clock.now += 4
        book = ledger(running)
    driver, thread = book.accounts
    assert (thread.kind, thread.stage, thread.by) == ("thread", "prefetch", DRIVER)
    # The planned time is one for both threads, so what the thread does is time of the driver's wall, too.
    assert given(thread) == {"make": 2 * 2 + 3 * 2, FULL: 3 * 3 + 4}
    assert driver.busy == {"prefetch": 0, "use": 9}


@pytest.mark.usefixtures("inline_threads")
def test_what_the_reader_does_for_a_thread_is_the_readers(clock: Clock) -> None:
    """E3: a thread whose input waits is woken by the reader, which takes one step for it; it counts once."""
    workers = ManualWorkers(1, hosts())
    part = from_workers(workers, Slow(clock, 9)).gather_async().for_each(costs(clock, 2), name="make")
    with part.prefetch(1, thread=True).run() as running:
        for _ in range(4):
            settle(running)
            workers.answer()
        book = ledger(running)
    driver, thread, _ = book.accounts
    assert driver.busy.get("make", 0) + thread.busy["make"] == 2 * thread.items["make"]
    assert driver.busy["make"] > 0
    assert thread.waits[NO_INPUT] > 0


@pytest.mark.usefixtures("inline_threads")
def test_what_threads_do_in_turn_counts_once(clock: Clock) -> None:
    """E3: a fork is pulled by a thread or by the run's own, whichever reads first."""
    left, right = from_items(range(99)).for_each(costs(clock, 2), name="make").duplicate(2)
    ahead = left.for_each(costs(clock, 1), name="left").prefetch(2, thread=True)
    with Concurrently({"y": right.for_each(costs(clock, 3), name="right"), "x": ahead}, mode="async").run() as running:
        list(islice(running, 12))
        driver, thread = ledger(running).accounts
    both = {name: driver.busy.get(name, 0) + thread.busy.get(name, 0) for name in ("make", "x.left", "y.right")}
    items = driver.items | thread.items
    assert both == {"make": 2 * items["make"], "x.left": items["x.left"], "y.right": 3 * items["y.right"]}
    assert driver.busy["make"] > 0
    assert thread.busy["make"] > 0
    assert thread.busy["x.left"] == items["x.left"]


def test_a_ledger_of_a_span_and_in_a_file(clock: Clock) -> None:
    import json

    with branches(clock).run() as running:
        next(running)
        before = ledger(running)
        next(running)
        book = ledger(running).since(before)
    assert given(book.driver) == {"store.act": 4, "train.learn": 3, "train.keep": 1}
    assert book.driver.items["train.keep"] == 1
    assert Ledger.of(json.loads(json.dumps(book.values()))) == book


def test_a_watcher_sees_whole_seconds_also_while_the_run_sleeps(clock: Clock) -> None:
    """E1, E6: a look in the middle of a sleep counts it up to then, and itself as outside of the run."""
    workers = ManualWorkers(1, hosts())
    seen: list[tuple[dict[str, float], float]] = []

    def look(running: Run) -> float:
        driver = ledger(running).driver
        assert sum(given(driver).values()) == pytest.approx(driver.wall)
        seen.append((given(driver), driver.waits[OUTSIDE]))
        clock.now += 3
        return 1.0

    with from_workers(workers, Slow(clock, 9)).gather_async().run() as running:
        waits = running.context.bell.wait

        def wait(seconds: float) -> bool:
            clock.now += seconds
            if len(seen) == 3:
                workers.answer()
            return waits(0)

        running.context.bell.wait = wait  # type: ignore[method-assign]
        running.watch(look)
        assert next(running) == 1
    assert [(each.get("gather_async", 0.0), outside) for each, outside in seen] == [(0, 0), (1, 3), (2, 6)]
