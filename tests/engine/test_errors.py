"""Errors in a running plan: their note, and what becomes of the item."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from flowrl import Plan, from_items, from_workers, operator, state
from flowrl.errors import PlanError
from flowrl.operators.concurrency import Concurrently
from tests.engine.engine_parts import Fails, InlineWorkers, Numbers, Total, fail

N = [1, 2, 3, 4, 5]


def test_an_error_keeps_its_type_and_gains_one_note() -> None:
    """F9: the operator's path, the user's line, the item number and the shapes of its input."""
    import numpy as np

    items = [{"obs": np.zeros((2, 3), "float32"), "names": ["a"]}] * 2
    line = sys._getframe().f_lineno + 1
    train = from_items(items).for_each(lambda item: item).for_each(fail)
    plan = Concurrently({"train": train.batch(2)})
    with pytest.raises(ZeroDivisionError, match="broken") as caught:
        list(plan)
    assert caught.value.__notes__ == [
        f"in operator train.fail ({__file__}:{line}), item 1, input dict(obs: float32[2, 3], names: list of 1)"
    ]


def broken_source() -> Iterator[int]:
    yield 1
    raise OSError("no more")


@operator
class BadEnd:
    """Cannot be flushed."""

    seen: list[int] = state(factory=list)

    def __call__(self, item: int) -> list[int]:
        self.seen.append(item)
        return []

    def finish(self) -> list[int]:
        raise RuntimeError(f"cannot flush {self.seen}")


NOTES = [
    (from_items(broken_source), OSError, "in operator broken_source ("),
    (from_items([1]).filter(fail), ZeroDivisionError, "in operator fail ("),
    (from_items([1]).combine(lambda item: item), PlanError, "in operator lambda ("),
    (from_items([{"a": 1}]).flatten(), PlanError, "in operator flatten ("),  # not the names of its columns
    (from_items([1]).call(Fails(1), "__call__", name="ask"), ValueError, "in operator ask ("),
    (from_items([1, 2]).combine(BadEnd()), RuntimeError, "in operator BadEnd ("),
    (from_workers(InlineWorkers(2), Numbers(1)).gather_sync(fail), ZeroDivisionError, "in operator fail ("),
    (from_items([1]).tap("Items", fail), ZeroDivisionError, "in operator tap(fail) ("),
]


@pytest.mark.parametrize(("plan", "kind", "note"), NOTES)
def test_every_kind_of_operator_names_itself(plan: Plan, kind: type[Exception], note: str) -> None:
    """F9: sources, filters, calls, flushes at the end, what joins a round of workers, taps."""
    with pytest.raises(kind) as caught:
        list(plan)
    assert [n.startswith(note) and f"{__file__}:" in n for n in caught.value.__notes__] == [True]


def forgetful(item: int) -> None:
    """Without a `return`."""


LOST = from_items(N).for_each(forgetful)
FORGOTTEN = {
    "next": LOST,
    "behind others": LOST.filter(lambda item: True).tap("forgetful", str).take(9).prefetch(2),
    "from a fork": LOST.duplicate(1)[0],
    "from workers": from_workers(InlineWorkers(2), Numbers(1)).for_each(forgetful).gather_async(),
}


@pytest.mark.parametrize("where", FORGOTTEN)
def test_a_function_that_returned_none_is_named_where_none_fails(where: str) -> None:
    """F9: None may be an item; the operator that cannot take it names the function that returned it."""
    plan = FORGOTTEN[where]
    assert next(plan.run()) is None
    for failing in (plan.for_each(lambda item: item + 1), plan.combine(lambda item: [item + 1])):
        with pytest.raises(TypeError) as caught:
            list(failing)
        (note,) = caught.value.__notes__
        assert "in operator lambda" in note
        assert f": forgetful ({__file__}:" in note
        assert note.endswith(" returned it, does it lack a `return`?")


def test_who_returned_none_is_not_guessed() -> None:
    """F9."""
    for plan in (from_items([None]), from_items([1]).combine(lambda item: [None]), LOST.union(from_items([None]))):
        with pytest.raises(TypeError) as caught:
            list(plan.for_each(lambda item: item + 1))
        assert caught.value.__notes__[0].endswith("input NoneType")


def test_after_a_stop_the_run_goes_on_without_the_item() -> None:
    """F2: what cannot be tried again without harm is left out, and the numbers of the items stay right."""
    with from_items(N).for_each(Fails(2, 4)).for_each(Total()).run() as run:
        assert next(run) == 1
        with pytest.raises(ValueError, match="cannot do 2") as second:
            next(run)
        assert next(run) == 4
        with pytest.raises(ValueError, match="cannot do 4") as fourth:
            next(run)
        assert "item 2" in second.value.__notes__[0]
        assert "item 4" in fourth.value.__notes__[0]
        assert list(run) == [9]
        assert "skipped 2" in run.explain()


def test_skip_drops_the_item_counts_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with from_items(N).for_each(Fails(2, 4)).run(on_error="skip") as run:
        assert list(run) == [1, 3, 5]
        assert run.counters == {"skipped_items": 2}
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "skipped: ValueError('cannot do 2') in operator Fails" in caplog.messages[0]


def test_retry_is_for_sources_calls_and_pure_operators() -> None:
    """F2: an operator that is not declared pure is never applied to an item twice."""
    flaky = Fails(2, times=2, pure=True)
    with from_items(N).for_each(flaky).run(on_error="retry") as run:
        assert list(run) == N
        assert run.counters == {"retried_items": 2}
    assert flaky.seen == [1, 2, 2, 2, 3, 4, 5]

    impure = Fails(2, times=1)
    with from_items(N).for_each(impure).run(on_error="retry") as run:
        with pytest.raises(ValueError, match="cannot do 2"):
            list(run)
        assert impure.seen == [1, 2]
        assert list(run) == [3, 4, 5]

    tries = iter([True, True, False])

    def unreliable() -> Iterator[int]:
        yield 1
        yield 2
        if next(tries):
            raise OSError("lost")
        yield 3

    assert list(from_items(unreliable).run(on_error="retry")) == [1, 2, 3]
    asked = Fails(3, times=2)
    assert list(from_items(N).call(asked, "__call__", 2).run(on_error="retry")) == N


def test_a_pure_operator_that_keeps_failing_is_tried_three_times() -> None:
    broken = Fails(2, pure=True)
    with from_items(N).for_each(broken).run(on_error="retry") as run:
        with pytest.raises(ValueError, match="cannot do 2"):
            list(run)
        assert broken.seen == [1, 2, 2, 2]
        broken.items = ()
        assert list(run) == [2, 3, 4, 5], "the item was kept"


def test_a_source_that_is_broken_ends_the_run_under_every_policy() -> None:
    """There is no item to skip, so skipping would go on for ever."""
    for policy in ("stop", "skip", "retry"):
        with pytest.raises(OSError, match="no more"):
            list(from_items(broken_source).run(on_error=policy))


def test_policies_by_name_or_glob() -> None:
    def plan() -> Plan:
        return Concurrently({"a": from_items([1, 2]).for_each(Fails(1)), "b": from_items([1, 2]).for_each(Fails(2))})

    assert list(plan().run(on_error={"a.Fails": "skip", "b.*": "skip"})) == [2, 1]
    assert list(plan().run(on_error={"Fails": "skip"})) == [2, 1]
    with pytest.raises(ValueError, match="cannot do 2"):
        list(plan().run(on_error={"a.*": "skip", "*": "stop"}))
    with pytest.raises(PlanError, match="no operator is named 'Fials'; did you mean"):
        plan().run(on_error={"Fials": "skip"})
    with pytest.raises(PlanError, match="'stop', 'skip' or 'retry', got 'ignore'"):
        plan().run(on_error="ignore")


def test_a_keyboard_interrupt_is_never_skipped() -> None:
    def press(item: int) -> int:
        if item == 2:
            raise KeyboardInterrupt
        return item

    with from_items([1, 2, 3]).for_each(press).run(on_error="skip") as run:
        with pytest.raises(KeyboardInterrupt):
            list(run)
        assert list(run) == [3]


def test_stop_iteration_is_an_error_and_not_the_end() -> None:
    """F2, F9: what would pass for the end of the run is raised, with its note."""

    def exhausted(item: int) -> int:
        return next(iter([])) if item == 2 else item

    with from_items(N).for_each(exhausted).run() as run:
        assert next(run) == 1
        with pytest.raises(RuntimeError, match="an operator raised StopIteration") as caught:
            next(run)
        assert "in operator exhausted (" in caught.value.__notes__[0]
        assert list(run) == [3, 4, 5]


class Receives:
    """A worker whose second answer cannot be received at first."""

    def __init__(self, error: type[Exception]) -> None:
        self.error, self.received = error, 0

    def work(self, item: int) -> int:
        return 10 * item

    def receive(self, answer: int) -> int:
        self.received += 1
        if self.received == 2:
            raise self.error("damaged")
        return answer


def test_an_answer_that_cannot_be_received_is_a_failed_request() -> None:
    """F2, F9: the error has a note, StopIteration too; the request is tried again, or its item dropped."""
    for error, raised in ((ValueError, ValueError), (StopIteration, RuntimeError)):
        with from_items(N).call(Receives(error), "work", 2).run() as run:
            with pytest.raises(raised) as caught:
                list(run)
            assert "in operator work (" in caught.value.__notes__[0]
            assert list(run) == [20, 30, 40, 50]
    assert list(from_items(N).call(Receives(ValueError), "work", 2).run(on_error="retry")) == [10, 20, 30, 40, 50]
    assert list(from_items(N).call(Receives(ValueError), "work", 2).run(on_error="skip")) == [10, 30, 40, 50]


@operator
class Ends:
    """It says that it is done by an error that no operator is blamed for."""

    items: int = state(default=0)

    @property
    def done(self) -> bool:
        if self.items == 1:
            raise StopIteration
        return False

    def __call__(self, item: int) -> int:
        self.items += 1
        return item


def test_stop_iteration_outside_of_operators_is_an_error_too() -> None:
    """F2: also one without a note."""
    with from_items(N).for_each(Ends()).run() as run, pytest.raises(RuntimeError, match="raised StopIteration"):
        list(run)


class Refuses:
    """A worker that cannot be asked the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def submit(self, method: str, item: int) -> Future[int]:
        self.asked += 1
        if self.asked == 2:
            raise ConnectionError("the worker is gone")
        future: Future[int] = Future()
        future.set_result(10 * item)
        return future


def test_a_worker_that_cannot_be_asked_has_failed_to_answer() -> None:
    """F2, F10: the request is tried again, or raised with a note; no item is lost."""
    assert list(from_items(N).call(Refuses(), "work", 2).run(on_error="retry")) == [10, 20, 30, 40, 50]
    with from_items(N).call(Refuses(), "work", 2).run() as run:
        assert next(run) == 10
        with pytest.raises(ConnectionError) as caught:
            next(run)
        assert len(caught.value.__notes__) == 1
        assert list(run) == [20, 30, 40, 50]
