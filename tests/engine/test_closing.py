"""Whose a resource is, and what is left of a run that is closed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan, Queue, from_items, from_workers
from flowrl.errors import PlanError
from flowrl.operators.concurrency import Dequeue, Enqueue
from flowrl.testing import same
from tests.engine.engine_parts import N, Numbers, Total, fail

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


def test_a_forked_child_is_told_that_the_threads_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: it would wait for ever; a run without threads goes on in a fork."""
    with from_items(N).prefetch(2, thread=True).run() as run, from_items(N).run() as plain:
        next(run), next(plain)
        with monkeypatch.context() as forked:
            forked.setattr("flowrl.engine.run.os.getpid", lambda: -1)
            assert next(plain) == N[1]
            for use in (lambda: next(run), run.state_dict):
                with pytest.raises(PlanError, match="opened in another process, of which a fork copies no threads"):
                    use()
        assert next(run) == N[1]
