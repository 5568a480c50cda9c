"""Runs: sleeping, state, resources, closing."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan, Queue, from_items, from_workers, pure
from flowrl.engine.context import Bell, Context
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, WORKED, Signal
from flowrl.engine.run import Run
from flowrl.errors import PlanError, Stalled
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import N, Noise, Numbers, Total, hosts


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


@pytest.mark.parametrize(
    "plan",
    [
        from_items([1, DONE, 2]),
        from_items(lambda: iter([1, WAITING])),
        from_items([1, 2]).for_each(lambda i: i if i == 1 else DONE),
        from_items([1, 2]).for_each(lambda i: i if i == 1 else BLOCKED).filter(bool),
        from_items([1, 2]).combine(lambda i: [i] if i == 1 else [WORKED]),
        from_items([1, 2]).combine(lambda i: [1] if i == 1 else [0, WORKED]).filter(bool),
        from_items([1, 2]).call({1: 1, 2: DONE}, "get"),
        from_items([1, 2]).prefetch(2).for_each(lambda i: i if i == 1 else DONE).prefetch(1),
    ],
)
def test_a_signal_of_a_users_function_is_an_error_and_not_obeyed(plan: Plan) -> None:
    """F2, F4, F9: a stream does not end because an item looks like the engine's end; the error names the operator."""
    with plan.run() as run:
        assert next(run) == 1
        with pytest.raises(PlanError, match=r"Signal\.\w+ is a signal of the engine and no item") as caught:
            next(run)
        assert "in operator " in caught.value.__notes__[0]


def test_a_signal_in_a_queue_is_refused() -> None:
    with pytest.raises(PlanError, match="DONE is a signal of the engine"):
        Queue(1, external=True).put(DONE)


MISUSES: dict[str, Callable[[Run], Any]] = {
    "next": next,
    "step": Run.step,
    "state_dict": Run.state_dict,
    "load_state_dict": lambda run: run.load_state_dict({}),
}
PLACES: dict[str, Callable[[Plan, Callable[[int], int]], Plan]] = {
    "in a chain": lambda plan, use: plan.for_each(use),
    "before a fork": lambda plan, use: Concurrently(list(plan.for_each(use).duplicate(2))),
    "before a prefetch": lambda plan, use: plan.for_each(use).prefetch(2),
    "in the thread of a prefetch": lambda plan, use: plan.for_each(use).prefetch(1, thread=True),
    "in the thread of a call": lambda plan, use: plan.call(use, "__call__", thread=True),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("misuse", MISUSES)
def test_a_run_is_not_used_by_its_own_operators(place: str, misuse: str) -> None:
    """F17: an error, and no wait for itself; then the run goes on."""
    runs: list[Run] = []

    def use(item: int) -> int:
        if item == 2 and runs:
            MISUSES[misuse](runs.pop())
        return item

    with PLACES[place](from_items(N), use).run() as run:
        runs.append(run)
        with pytest.raises(PlanError, match="this run is in the middle of a step"):
            list(run)
        assert 5 in run


@pytest.mark.parametrize("misuse", MISUSES)
@pytest.mark.parametrize("place", [place for place in PLACES if "thread" in place])
def test_a_thread_of_a_run_does_not_use_it_between_two_steps(place: str, misuse: str) -> None:
    """F17: although nobody else does then; it would wait for itself."""
    runs: list[Run] = []
    between, tried = threading.Event(), threading.Event()

    def use(item: int) -> int:
        assert between.wait(10)
        try:
            MISUSES[misuse](runs.pop())
        finally:
            tried.set()
        return item

    with PLACES[place](from_items(N), use).run() as run:
        runs.append(run)
        assert run.step() is WAITING
        between.set()
        assert tried.wait(10)
        with pytest.raises(PlanError, match="this run is in the middle of a step"):
            next(run)


def test_threads_take_turns_with_a_run_and_never_share_it() -> None:
    """F2, F17: what threads get of a run that they pull at once is every item once, and errors."""
    entered, go_on = threading.Event(), threading.Event()

    def hold(item: int) -> int:
        entered.set()
        assert go_on.wait(10)
        return item

    with from_items(N).for_each(hold).run() as run:
        first, found = pull_in_thread(run)
        assert entered.wait(10)
        for misuse in MISUSES.values():
            with pytest.raises(PlanError, match="by one thread at a time"):
                misuse(run)
        go_on.set()
        first.join(10)
        second, also_found = pull_in_thread(run)
        second.join(10)
        assert (found, also_found) == ([1], [2])
        assert run.state_dict()["items"]["hold"] == 2
        assert list(run) == [3, 4, 5]


def test_a_stall_is_reported_in_words(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """F8: less and less often, then the run ends; the time is a simulated one."""
    now = [0.0]

    def wait(bell: Bell, timeout: float) -> bool:
        now[0] += timeout
        return False

    workers = ManualWorkers(2, hosts())
    slow = from_workers(workers, Numbers(2)).gather_async()
    plan = Concurrently({"slow": slow, "call": from_items(N).call(workers.members[0], "work")}, "async")
    with plan.run(stall_seconds=60, deadline_seconds=600) as run, caplog.at_level(logging.WARNING, "flowrl"):
        with monkeypatch.context() as patch:
            patch.setattr(Bell, "wait", wait)
            patch.setattr("flowrl.engine.run.clock", lambda: now[0])
            with pytest.raises(Stalled) as caught:
                next(run)
        for passed, text in zip((60, 180, 420, 600), [*caplog.messages, str(caught.value)], strict=True):
            assert text.startswith(f"no progress for {passed} s, waiting for: ")
            assert "branch slow: slow.gather_async: no answer yet from worker 0, 1" in text
            assert "branch call: call.work: 'work' was asked 1 times, no answer yet" in text
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
            assert "test_run.py:" in text
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


@pytest.mark.parametrize("use", [lambda c: c.count(1), lambda c: c.record(None, 2.0)])
def test_a_counter_and_a_record_have_a_text_as_name(use: Callable[[Context], None]) -> None:
    with pytest.raises(PlanError, match="a name of a counter or record is a text, got"):
        use(Context())


def test_counters_and_records_are_the_runs_own() -> None:
    """F12: two runs of one plan count apart."""
    plan = from_items([0.0] * 3).for_each(Noise())
    with plan.run() as a, plan.run() as b:
        list(a)
        next(b)
        assert (a.counters, b.counters) == ({"draws": 3}, {"draws": 1})
        assert a.context.metrics.drain("drawn") == [0.0] * 3
        assert a.context.metrics.drain("drawn") == []


def test_what_blocks_is_measured() -> None:
    queue = Queue(1)
    with from_items(N).for_each(Enqueue(queue)).run() as run:
        assert next(run) == 1
        assert run.step() is BLOCKED
        assert run.step() is BLOCKED
        enqueue = run.meters()[-1]
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
