"""The state of a run: what is in it, and what refuses one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan, Queue, from_items, operator, state
from flowrl.engine.protocols import BLOCKED
from flowrl.errors import CheckpointError, PlanError
from flowrl.operators.concurrency import Concurrently, Enqueue
from flowrl.testing import same
from tests.engine.engine_parts import N, Noise, Total


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


def test_a_closed_run_has_no_state_and_takes_none() -> None:
    """F15: it owns nothing any more, so it cannot be revived."""
    with from_items(N).run() as run:
        state = run.state_dict()
    for use in (run.state_dict, lambda: run.load_state_dict(state)):
        with pytest.raises(PlanError, match="this run is closed"):
            use()


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


def _edit(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of a state; without `to` the entry is removed."""

    def edit(state: dict[str, Any]) -> None:
        *above, name = path
        for each in above:
            state = state[each]
        if to is None:
            del state[name]
        else:
            state[name] = to

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda state: state.clear(), "the saved run has no resources"),
        *((_edit(part, to=None), f"the saved run has no {part}") for part in ("operators", "items", "ledger", "seeds")),
        (_edit("items", to=[1]), r"items is \[1\], expected dict\[str, int\]"),
        (_edit("ledger", "counters", to={"draws": "2"}), "counters is .*, expected dict"),
        (_edit("seeds", "streams", "store.Noise/", "state", "inc", to=2), "expected the state of a PCG64 generator"),
        (_edit("seeds", "seed", to=-1), "seed is -1, expected int of at least 0"),
        (_edit("operators", "store.Total", to=5), "operators is .*, expected dict"),
        (_edit("operators", "store.Total", "total", to="\x1b[2J"), r"Total: total is '\\x1b\[2J', expected int"),
        (_edit("operators", "store.Items", "position", to=-1), "position is -1, expected a whole number of at least 0"),
        (_edit("operators", "store.Items", "position", to=True), "position is True, expected a whole number"),
        (_edit("operators", "Concurrently", "turn", to=2), "turn is 2, expected numbers of branches, 0 .. 1"),
        (_edit("operators", "Concurrently", "ended", to=[False]), r"ended is \[False\], expected 2 values"),
        (_edit("operators", "train.batch", "open", to={}), "open is {}, expected list"),
        (_edit("operators", "train.batch", "@outputs", to=3), "@outputs is 3, expected list"),
        (_edit("resources", "Queue", "ended", to=-1), "Queue does not take the state, and nothing is changed: .* -1"),
    ],
)
def test_a_malformed_state_is_refused_and_nothing_is_changed(
    edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    """D7: also resources, which come first."""
    queue = Queue(9)
    plan = branchy().for_each(Enqueue(queue))
    with plan.run() as run:
        next(run)
        saved = run.state_dict()
        next(run)
        before = run.state_dict()
        edit(saved)
        with pytest.raises(CheckpointError, match=message) as caught:
            run.load_state_dict(saved)
        assert str(caught.value).isprintable()
        assert same(run.state_dict(), before)
        assert len(list(run)) > 0
