"""The contract's tests tested: check_operator and check_plan find operators that break it."""

from __future__ import annotations

import itertools
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from flowrl import Plan, Run, from_items, from_workers, operator, state
from flowrl.testing import ManualWorkers, _spread, check_operator, check_plan, same
from tests.engine.engine_parts import Numbers, Total, hosts


@operator
class Forgetful:
    """Keeps what it knows outside of `state()`."""

    total: int = attrs.field(default=0, init=False)

    def __call__(self, item: int) -> int:
        self.total += item
        return self.total


@operator
class InPlace:
    """Changes what it is given."""

    def __call__(self, item: list[int]) -> list[int]:
        item.append(0)
        return item


@operator
class Secret:
    """Gives right items from a state that it does not save: only the state tells."""

    seen: list[int] = state(factory=list)
    n: int = attrs.field(default=0, init=False)

    def __call__(self, item: int) -> int:
        self.n += 1
        self.seen = [self.n]
        return item


def unsteady(item: int) -> int:
    return time.perf_counter_ns()


def test_state_kept_outside_is_found() -> None:
    """D3."""
    with pytest.raises(AssertionError, match=r"resumed at step \d+, it gives other items \(D3\)"):
        check_operator(Forgetful, [1, 2, 3])
    with pytest.raises(AssertionError, match=r"resumed at step \d+, it ends in another state \(D3\)"):
        check_operator(Secret, [1, 2, 3])


def test_inputs_changed_in_place_are_found() -> None:
    with pytest.raises(AssertionError, match="changed its input items in place"):
        check_operator(InPlace, [[1], [2]])


def test_nondeterminism_is_found() -> None:
    """D1."""
    with pytest.raises(AssertionError, match="a second run of the plan gives other items"):
        check_operator(lambda: unsteady, [1, 2, 3])


def test_a_wrong_result_is_found() -> None:
    with pytest.raises(AssertionError, match=r"expected \[1, 2\], got \[1, 3\]"):
        check_operator(Total, [1, 2], expected=[1, 2])


def test_a_tap_that_matters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: also where it shows in a state on the way only."""
    from flowrl.engine.stages import Chain

    save = Chain.save

    def told(chain: Chain) -> dict[str, dict[str, Any]]:
        return save(chain) | {meter.path: {"seen": meter.items} for meter in chain.chain if meter.verb == "tap"}

    monkeypatch.setattr(Chain, "save", told)
    with pytest.raises(AssertionError, match=r"taps change the state at step \d+ \(D4\)"):
        check_plan(lambda: from_items([3]).combine(range).for_each(Total()))


def test_a_changing_state_is_found() -> None:
    """D5."""

    class Counts:
        """A resource whose state changes by being looked at."""

        looked = 0

        def __call__(self, item: int) -> int:
            return item

        def state_dict(self) -> dict[str, int]:
            self.looked += 1
            return {"looked": self.looked}

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(AssertionError, match="two states taken in a row differ"):
        check_operator(Counts, [1])


def test_good_operators_pass() -> None:
    check_operator(Total, [1, 2, 3], expected=[1, 3, 6])
    check_operator(lambda: len, ["a", "bb"], expected=[1, 2])
    check_operator(lambda: bool, [0, 1], verb="filter", expected=[1])


def endless() -> Iterator[int]:
    yield from itertools.count()


def test_endless_plans_are_checked_up_to_a_number_of_items() -> None:
    items, final = check_plan(lambda: from_items(endless).for_each(Total()), items=5, steps=[0, 3])
    assert items == [0, 1, 3, 6, 10]
    assert "Total" in final["operators"]


@pytest.mark.parametrize("total", [1, 3, 4, 7, 100])
def test_steps_are_drawn_from_the_whole_run(total: int) -> None:
    """The first one always, and one of each further quarter, of as many as there are."""
    drawn = _spread(4, total, seed=0)
    assert drawn[0] == 0
    assert [step for step in drawn if step >= total] == []
    if total == 100:
        assert [step // 25 for step in drawn] == [0, 1, 2, 3]
        assert _spread(4, total, seed=1) != drawn


def test_drawn_steps_find_what_is_kept_outside_of_the_state() -> None:
    """D3."""
    check_plan(lambda: from_items(range(9)).for_each(Total()), steps=3)
    with pytest.raises(AssertionError, match=r"resumed at step \d+, it gives other items \(D3\)"):
        check_plan(lambda: from_items([1, 2, 3]).for_each(Forgetful()), steps=3)


def test_what_a_state_comes_through_must_not_change_it() -> None:
    """D3."""
    kept: list[Any] = []

    def through(run: Run) -> Any:
        kept.append(pickle.loads(pickle.dumps(run.state_dict())))
        return kept[-1]

    check_plan(lambda: from_items([1, 2, 3]).for_each(Total()), steps=3, through=through)
    assert len(kept) == 3
    with pytest.raises(AssertionError, match=r"the state saved at step 0 comes back different \(D3\)"):
        check_plan(lambda: from_items([1]), through=lambda run: {**run.state_dict(), "more": 1})


class Plain:
    """An object without equality of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value


SAME: list[tuple[Any, Any, bool]] = [
    (1, 1, True),
    (1, 1.0, False),
    (1, True, False),
    (float("nan"), float("nan"), True),
    ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
    ({"a": 1}, {"b": 1}, False),
    ([1, 2], (1, 2), False),
    ([1, 2], [1, 2, 3], False),
    (deque([1]), deque([1]), True),
    (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
    (np.array([1.0]), np.array([1.0], "float32"), False),
    (np.zeros((2, 1)), np.zeros((1, 2)), False),
    (np.float32(2), np.float32(3), False),
    (np.array(["a", None], object), np.array(["a", None], object), True),
    (np.str_("a"), np.str_("a"), True),
    (np.str_("a"), np.str_("b"), False),
    (np.array(["a", "b"]), np.array(["a", "b"]), True),
    (Plain([1]), Plain([1]), True),
    (Plain([1]), Plain([2]), False),
]


@pytest.mark.parametrize(("a", "b", "equal"), SAME)
def test_same(a: Any, b: Any, equal: bool) -> None:
    assert same(a, b) is equal


def test_same_of_tensors() -> None:
    import torch

    nan = float("nan")
    assert same(torch.tensor([1.0, nan]), torch.tensor([1.0, nan]))
    assert not same(torch.tensor([1.0]), torch.tensor([2.0]))
    assert not same(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64))
    assert same(torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2)))


def test_manual_workers_answer_and_fail_in_the_order_the_test_chooses() -> None:
    workers = ManualWorkers(2, hosts())
    make: Callable[[], Plan] = from_workers(workers, Numbers(2)).gather_async
    with make().run() as run:
        run.step()
        assert [request.method for request in workers.requests] == ["pull_plan"] * 2
        assert workers.answer(1).worker == 1
        assert workers.fail(OSError("dead")).worker == 0
        with pytest.raises(AssertionError, match="worker 1 has no open request"):
            workers.answer(1)
