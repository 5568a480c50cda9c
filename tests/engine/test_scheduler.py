"""Runs: sleeping, state, resources, closing."""

from __future__ import annotations

import copy
import gc
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from engine_parts import Noise, Numbers, Total, fail, hosts

from flowrl import Plan, Queue, from_items, from_workers, operator, pure, state
from flowrl.context import Bell
from flowrl.errors import CheckpointError, PlanError, Stalled
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from flowrl.stages import BLOCKED, WAITING, Signal
from flowrl.testing import ManualWorkers, same

N = [1, 2, 3, 4, 5]


def pull_in_thread(run: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that takes one item of a run, and where the item or the error will be."""
    found: list[Any] = []

    def pull() -> None:
        try:
            found.append(next(run))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=pull, name="puller", daemon=True)
    thread.start()
    return thread, found


def sleeps(run: Any) -> threading.Event:
    """Set when the run begins to sleep."""
    slept, wait = threading.Event(), run.context.bell.wait

    def told(seconds: float) -> bool:
        slept.set()
        heard: bool = wait(seconds)
        return heard

    run.context.bell.wait = told
    return slept


# -- sleeping


def test_an_idle_run_makes_no_wakeups() -> None:
    """F6: the run sleeps until a future rings, once, and nothing else wakes it."""
    workers = ManualWorkers(2, hosts())
    with from_workers(workers, Numbers(2)).gather_async().for_each(Total()).run() as run:
        slept = sleeps(run)
        thread, found = pull_in_thread(run)
        assert slept.wait(10)
        thread.join(0.2)
        assert thread.is_alive()
        assert run.wakeups == 0
        workers.answer(1)
        thread.join(10)
        assert found == [100]
        assert run.wakeups == 1


def test_no_signal_reaches_a_users_function() -> None:
    """F4: functions see items only, also when nothing is ready."""
    seen: list[Any] = []
    workers = ManualWorkers(1, hosts())
    slow = from_workers(workers, Numbers(3)).gather_async().for_each(lambda i: seen.append(i) or i)
    queue = Queue(1)
    branches = [slow.for_each(Enqueue(queue)), Dequeue(queue).filter(lambda i: seen.append(i) or i > 0)]
    with Concurrently(branches, "async").batch(2).tap("batch", seen.append).run() as run:
        signals = set()
        for _ in range(40):
            item = run.step()
            signals.add(item if item.__class__ is Signal else None)
            if item is WAITING:
                workers.answer()
    assert {WAITING, None} <= signals
    assert not any(isinstance(item, Signal) or item is None for item in seen)


def test_a_stall_is_reported_in_words(caplog: pytest.LogCaptureFixture) -> None:
    workers = ManualWorkers(2, hosts())
    slow = from_workers(workers, Numbers(2)).gather_async()
    plan = Concurrently({"slow": slow, "call": from_items(N).call(workers.members[0], "work")}, "async")
    with plan.run(stall_seconds=0.01, deadline_seconds=0.05) as run, caplog.at_level(logging.WARNING, "flowrl"):
        with pytest.raises(Stalled) as caught:
            next(run)
        for text in (str(caught.value), caplog.messages[0]):
            assert text.startswith("no progress for 0 s, waiting for: ")
            assert "branch slow: slow.gather_async: no answer yet from worker 0, 1" in text
            assert "branch call: call.work: 'work' was asked 1 times, no answer yet" in text
        assert 2 <= len(caplog.messages) <= 4, "said less and less often"
        workers.answer(0)
        assert next(run) == 0, "the run may go on"


def test_a_plan_that_works_and_emits_nothing_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Less and less often, with the operator that lets nothing through; an item in time is no news."""
    seen = 0

    def never(item: int) -> bool:
        nonlocal seen
        seen += 1
        return len(caplog.messages) == 3 or seen > 10_000_000

    plan = from_items(lambda: itertools.count()).filter(never)
    with plan.run(stall_seconds=1e-3) as run, caplog.at_level(logging.WARNING, "flowrl"):
        next(run)
        assert len(caplog.messages) == 3
        for text in caplog.messages:
            assert text.startswith("the plan works, but for 0 s nothing has left its last operator, never (")
            assert "test_scheduler.py:" in text
    caplog.clear()
    with plan.run() as run, caplog.at_level(logging.WARNING, "flowrl"):
        seen = 10_000_000
        assert next(run) == 0
    assert caplog.messages == []


def test_a_bell_is_heard_once_and_also_when_it_rang_before() -> None:
    """F6: a ring is never lost, and several of them wake once."""
    bell = Bell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)
    bell.ring()
    assert bell.wait(0)


def test_interrupt_ends_the_iteration_and_keeps_every_item() -> None:
    """F2: after an interrupt the run goes on where it was, also while it sleeps."""
    with from_items(N).for_each(Total()).run() as run:
        first = []
        for item in run:
            first.append(item)
            if item == 3:
                run.interrupt()
        assert first + list(run) == [1, 3, 6, 10, 15]
    workers = ManualWorkers(1, hosts())
    with from_workers(workers, Numbers(1)).gather_async().run() as run:
        slept = sleeps(run)
        thread, found = pull_in_thread(run)
        assert slept.wait(10)
        run.interrupt()
        thread.join(10)
        assert isinstance(found[0], StopIteration)
        workers.answer()
        assert next(run) == 0


# -- state


def branchy() -> Plan:
    store = from_items(N).for_each(Noise()).for_each(Total())
    return Concurrently({"store": store, "train": from_items(N).batch(2)})


def test_state_is_keyed_by_path() -> None:
    with branchy().run(seed=3) as run:
        assert len(list(islice(run, 3))) == 3
        saved = run.state_dict()
    assert list(saved["operators"]) == ["store.Items", "store.Total", "train.Items", "train.batch", "Concurrently"]
    assert saved["operators"]["store.Items"] == {"position": 2}
    assert saved["items"]["store.Noise"] == 2
    assert saved["ledger"]["counters"] == {"draws": 2}
    assert saved["seeds"]["seed"] == 3
    assert list(saved["seeds"]["streams"]) == ["store.Noise/"]


def test_a_state_is_a_copy() -> None:
    """D5: twice in a row it is equal, and what the run does later does not change it."""
    with branchy().run() as run:
        next(run)
        first, second = run.state_dict(), run.state_dict()
        assert same(first, second)
        kept = copy.deepcopy(first)
        rest = list(run)
        assert same(first, kept)
        assert not same(first, run.state_dict())
        run.load_state_dict(first)
        assert same(run.state_dict(), kept), "a run may go back"
        assert list(run) == rest != []
        assert same(first, kept)


@operator
class Locked:
    """Keeps what nobody can copy."""

    lock: Any = state(factory=threading.Lock)

    def __call__(self, item: Any) -> Any:
        return item


def test_what_cannot_be_copied_is_named_by_operator_and_field() -> None:
    with from_items(N).for_each(Locked()).for_each(Locked(), name="safe").run() as run:
        next(run)
        with pytest.raises(CheckpointError, match=r"^Locked: its state 'lock', a lock, cannot be copied, .*pickle"):
            run.state_dict()
        assert next(run) == 2, "the run goes on"


def test_the_state_of_another_plan_is_refused_and_nothing_is_changed() -> None:
    with branchy().run() as run:
        next(run)
        saved = run.state_dict()
    queue = Queue(2)
    other = Concurrently(
        {
            "store": from_items(N).for_each(Noise()).for_each(Total(), name="sum"),
            "train": from_items(N).batch(2).for_each(Enqueue(queue)),
        }
    )
    with other.run() as run:
        before = run.state_dict()
        with pytest.raises(CheckpointError) as caught:
            run.load_state_dict(saved)
        assert str(caught.value) == (
            "the state belongs to another plan: operators missing in it: store.sum, train.Enqueue; "
            "operators that this plan does not have: store.Total; resources missing in it: Queue. "
            "What maps: Concurrently, store.Items, train.Items, train.batch; "
            "load_state_dict(state, partial=True) takes that alone"
        )
        assert same(run.state_dict(), before)


class Shelf:
    """A resource that takes no more than its size, and notices when it is full."""

    def __init__(self, size: int, *books: int) -> None:
        self.size, self.books = size, list(books)

    def put(self, book: int) -> int:
        self.books.append(book)
        return book

    def state_dict(self) -> dict[str, Any]:
        return {"books": list(self.books)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.books.clear()
        for book in state["books"]:
            if len(self.books) == self.size:
                raise RuntimeError(f"no room for {book}")
            self.books.append(book)


def test_when_a_resource_refuses_its_state_nothing_is_changed() -> None:
    def plan(size: int, *books: int) -> Plan:
        return from_items([7, 8]).for_each(Shelf(9, *books).put).for_each(Shelf(size, *books).put)

    with plan(9, 1, 2).run() as run:
        saved = [next(run), run.state_dict()][1]
    with plan(2, 5).run() as run:
        next(run)
        before = run.state_dict()
        with pytest.raises(CheckpointError, match=r"Shelf-2 does not take .* changed: RuntimeError: no") as caught:
            run.load_state_dict(saved)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert same(run.state_dict(), before)
        assert list(run) == [8]


def test_a_generator_function_is_resumed_by_discarding_what_was_consumed() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(5):
            made.append(i)
            yield i

    plan = from_items(numbers).for_each(Total())
    with plan.run() as run, plan.run() as resumed:
        assert [next(run), next(run)] == [0, 1]
        resumed.load_state_dict(run.state_dict())
        assert list(resumed) == [3, 6, 10]
        assert made == [0, 1, 0, 1, 2, 3, 4]


# -- random streams


def test_same_seed_same_items_other_seed_others() -> None:
    """D1: every draw follows from the seed of the run."""
    plan = from_items([0.0] * 4).for_each(Noise())
    assert list(plan.run(seed=1)) == list(plan.run(seed=1))
    assert list(plan.run(seed=1)) != list(plan.run(seed=2))
    assert len(set(plan.run(seed=1))) == 4


def test_adding_an_operator_does_not_change_the_streams_of_others() -> None:
    """D6: a stream follows from the seed and the operator's path, and is restored with the state."""
    plain = Concurrently({"a": from_items([0.0] * 4).for_each(Noise()), "b": from_items([0.0] * 4)})
    more = plain.insert_before("a.Noise", Noise(), name="before").insert_after("b.Items", Noise())
    drawn: dict[str, list[float]] = {"plain": [], "more": []}
    list(plain.tap("a.Noise", drawn["plain"].append).run(seed=7))
    difference = more.remove("before").insert_before("a.Noise", lambda item: 0.0)
    list(difference.tap("a.Noise", drawn["more"].append).run(seed=7))
    assert drawn["plain"] == drawn["more"]
    with plain.run(seed=7) as run, plain.run(seed=8) as resumed:
        first = list(islice(run, 3))
        resumed.load_state_dict(run.state_dict())
        assert first + list(resumed) == first + list(run)


# -- resources


def test_a_resource_belongs_to_one_open_run() -> None:
    queue = Queue(2)
    plan = from_items([1, 2]).for_each(Enqueue(queue))
    run = plan.run()
    with pytest.raises(PlanError, match="Queue belongs to another open run; close that run first"):
        Dequeue(queue).run()
    run.close()
    assert list(Dequeue(Queue(1)).take(0)) == []
    with plan.run():
        pass


def test_after_close_the_next_run_goes_on_with_the_resource_as_it_is() -> None:
    queue = Queue(9)
    fill = from_items([1, 2]).for_each(Enqueue(queue))
    assert list(fill) == list(fill) == [1, 2], "a run that is no longer used is closed"
    assert len(queue) == 4
    assert list(islice(Dequeue(queue).run(), 3)) == [1, 2, 1]


def test_a_tapped_function_is_no_resource_of_the_plan() -> None:
    """D4: a tap with a state of its own changes neither the state nor who owns what."""

    class Meter:
        """Looks, and can be saved."""

        def __call__(self, item: Any) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    plan, meter = from_items(N).for_each(Total()), Meter()
    with plan.run() as run, plan.tap("Total", meter).run() as tapped, plan.tap("Total", meter).run():
        next(run)
        next(tapped)
        assert same(run.state_dict(), tapped.state_dict())


# -- closing


def busy_plan(log: list[str]) -> Plan:
    def numbers() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            log.append("closed")

    prefetched = from_items(numbers).prefetch(3, thread=True).prefetch(2, thread=True)
    return prefetched.call(N, "count", 2, thread=True)


def flowrl_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("prefetch", "count"))]


def test_closing_leaves_no_thread() -> None:
    """F15: threads end and generators are closed, also after an error and twice."""
    log: list[str] = []
    with busy_plan(log).run() as run:
        assert next(run) == 0
        assert flowrl_threads()
        assert not run.closed
    assert run.closed
    assert flowrl_threads() == []
    assert log == ["closed"]
    run.close()
    with pytest.raises(PlanError, match="this run is closed"):
        next(run)
    with pytest.raises(ZeroDivisionError), busy_plan(log).for_each(fail).run() as run:
        list(run)
    assert flowrl_threads() == []


@pytest.mark.parametrize("abandon", [lambda run: next(run), lambda run: [run.state_dict(), run.explain()]])
def test_an_abandoned_run_is_closed_by_its_finaliser(abandon: Callable[[Any], Any]) -> None:
    """F15: without the help of the garbage collector, as nothing refers back to a run."""
    log: list[str] = []
    gc.disable()
    try:
        run = busy_plan(log).run()
        next(run)
        abandon(run)
        assert flowrl_threads()
        del run
        assert flowrl_threads() == []
        assert log == ["closed"]
    finally:
        gc.enable()


def test_a_run_that_cannot_open_leaves_nothing_open() -> None:
    """F15: what was started is stopped, and its resources are free."""

    class Resource:
        """Counts what it is asked."""

        def __init__(self) -> None:
            self.events: list[str] = []

        def start(self, context: Any) -> None:
            self.events.append(f"start {context.path}")

        def stop(self) -> None:
            self.events.append("stop")

        def learn(self, item: Any) -> Any:
            return item

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    class Broken:
        """Workers that cannot be asked."""

        @property
        def members(self) -> Any:
            raise OSError("no workers")

    resource = Resource()
    bad = from_workers(Broken(), Numbers(1)).gather_async().for_each(resource.learn)
    with pytest.raises(OSError, match="no workers"):
        bad.run()
    assert resource.events == ["start Resource", "stop"]
    assert list(from_items([1]).for_each(resource.learn)) == [1]


def test_counters_and_records_are_the_runs_own() -> None:
    """F12: two runs of one plan count apart."""
    plan = from_items([0.0] * 3).for_each(Noise())
    with plan.run() as a, plan.run() as b:
        list(a)
        next(b)
        assert (a.counters, b.counters) == ({"draws": 3}, {"draws": 1})
        assert a.context.ledger.drain("drawn") == [0.0] * 3
        assert a.context.ledger.drain("drawn") == []


def test_what_blocks_is_measured() -> None:
    queue = Queue(1)
    with from_items(N).for_each(Enqueue(queue)).run() as run:
        assert next(run) == 1
        assert run.step() is BLOCKED
        assert run.step() is BLOCKED
        enqueue = run.links()[-1]
        run.explain()
        assert enqueue.blocked > 0
        assert queue.get() == 1
        assert next(run) == 2


@pure
def halve(item: float) -> float:
    return item / 2


def test_pure_is_a_declaration_only() -> None:
    assert halve(3) == 1.5
    assert list(from_items([2, 4]).for_each(halve)) == [1, 2]


def test_a_closed_run_has_no_state_and_takes_none() -> None:
    """F15: it owns nothing any more, so it cannot be revived."""
    with from_items(N).run() as run:
        state = run.state_dict()
    for use in (run.state_dict, lambda: run.load_state_dict(state)):
        with pytest.raises(PlanError, match="this run is closed"):
            use()


@pytest.mark.parametrize("times", [{"stall_seconds": 0}, {"deadline_seconds": -1}, {"stall_seconds": math.nan}])
def test_times_without_sense_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="must be above 0"):
        from_items(N).run(**times)


def test_it_may_wait_without_end() -> None:
    """An infinite deadline is one that is never reached."""
    workers = ManualWorkers(1)
    with from_workers(workers, N).gather_async().run(stall_seconds=math.inf, deadline_seconds=math.inf) as run:
        slept = sleeps(run)
        thread, found = pull_in_thread(run)
        assert slept.wait(10)
        workers.answer()
        thread.join(10)
        assert found == [1]


@operator
class Gate:
    """Lets items through once something is in the list."""

    opened: list[int]

    def ready(self, item: int) -> bool:
        return bool(self.opened)

    def __call__(self, item: int) -> int:
        return item


def test_an_item_that_is_held_survives_an_edit_of_the_plan() -> None:
    """F2: it goes on in front of the operator that held it."""
    opened: list[int] = []
    plan = from_items(N).for_each(Gate(opened))
    with plan.run() as run:
        assert run.step() is BLOCKED
        state = run.state_dict()
    opened.append(1)
    with plan.insert_before("Gate", lambda item: item).run() as edited:
        edited.load_state_dict(state)
        assert list(edited) == N


@pytest.mark.parametrize("end", [lambda plan: plan.take(2), lambda plan: plan.zip(from_items([1]))])
def test_a_queue_ends_with_whoever_feeds_it(end: Callable[[Plan], Plan]) -> None:
    """F8: a producer that nobody pulls any more is no reason to wait."""
    queue = Queue(10)
    put, get = end(from_items(N).for_each(Enqueue(queue))), Dequeue(queue)
    assert list(Concurrently([put, get], output_indexes=[1])) == [1, 2]


def test_deep_plans_are_edited_and_run() -> None:
    """No part of the engine calls itself once an operator."""
    plan = from_items(N)
    for _ in range(2_000):
        plan = plan.for_each(abs)
    seen: list[int] = []
    assert list(plan.tap("Items", seen.append)) == seen == N


def look(item: Any) -> None:
    """A tap."""


def test_taps_of_one_function_have_names_of_their_own() -> None:
    """D4: numbered apart from other operators, so that each is measured and can be removed."""
    tapped = from_items(N).for_each(abs).tap("Items", look).tap("abs", look)
    with tapped.run() as run:
        assert sorted(run.paths.values()) == ["Items", "abs", "tap(look)", "tap(look)-2"]
    assert "tap(look)-2" not in tapped.remove("tap(look)-2").explain()
