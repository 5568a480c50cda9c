"""Merges and forks: the order of Concurrently, union, zip and duplicate."""

from __future__ import annotations

from itertools import islice

import pytest

from flowrl import from_items, from_workers, operator
from flowrl.engine.operator import declare
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, WORKED
from flowrl.errors import Deadlock
from flowrl.operators.concurrency import Concurrently
from flowrl.testing import ManualWorkers
from tests.engine.engine_parts import Numbers, hosts

ONES, TWOS = [1] * 8, [2] * 8

ROUND_ROBIN: list[tuple[str, list[list[int]], list[float | str] | None, list[int]]] = [
    ("one each in turn", [[1, 2, 3], [4, 5, 6]], None, [1, 4, 2, 5, 3, 6]),
    ("integer weights", [[1] * 3, [2] * 3, [3] * 3], [3, 1, 2], [1, 1, 1, 2, 3, 3, 2, 3, 2]),
    ("a half: every other turn", [ONES, TWOS], [1, 0.5], [1, 1, 2] * 4 + [2] * 4),
    ("two and a half", [ONES, TWOS], [1, 2.5], [1, 2, 2, 1, 2, 2, 2, 1, 2, 2, 1, 2, 1, 1, 1, 1]),
    ("a star: what is ready", [[1] * 3, TWOS], ["*", 2], [1] * 3 + TWOS),
    ("a star: at most 100", [[1] * 250, [2] * 3], ["*", 1], [1] * 100 + [2] + [1] * 100 + [2] + [1] * 50 + [2]),
    ("a branch that ends early is passed over", [[1], TWOS], None, [1, *TWOS]),
    ("an empty branch", [[], [5, 6]], None, [5, 6]),
]


@pytest.mark.parametrize(("lists", "weights", "expected"), [pytest.param(*r[1:], id=r[0]) for r in ROUND_ROBIN])
def test_round_robin(lists: list[list[int]], weights: list[float | str] | None, expected: list[int]) -> None:
    plan = Concurrently([from_items(items) for items in lists], round_robin_weights=weights)
    assert list(plan) == expected


@pytest.mark.parametrize("weight", [0.1, 0.29, 1 / 3, 0.5, 0.7, 1, 2.5])
def test_round_robin_ratios_hold_within_one_item_at_all_times(weight: float) -> None:
    """F11: rounding errors do not add up either."""
    plan = Concurrently([from_items(["a"] * 400), from_items(["b"] * 2000)], round_robin_weights=[1, weight])
    a = b = 0
    for item in plan:
        a, b = a + (item == "a"), b + (item == "b")
        if a == 400:
            break
        assert -1 - weight < b - weight * a < 1e-9, f"{b} for {a} in the middle of a turn"


def test_output_indexes_gives_only_those_branches_while_the_others_run() -> None:
    seen: list[int] = []
    plan = Concurrently([from_items([1, 2, 3, 4]).for_each(seen.append), from_items([7, 8])], output_indexes=[1])
    run = plan.run()
    assert next(run) == 7
    assert seen == [1]
    assert list(run) == [8]
    assert seen == [1, 2, 3], "everything ends when these have ended"
    assert list(Concurrently({"a": from_items([1]), "b": from_items([2])}, output_indexes=["b"])) == [2]


def test_async_gives_one_item_a_turn_of_each_branch_that_is_ready() -> None:
    plan = Concurrently([from_items([1, 2, 3]).filter(lambda i: i != 1), from_items([4, 5])], "async")
    assert list(plan) == [4, 2, 5, 3]


def test_a_slow_asynchronous_source_does_not_hold_up_a_fast_one() -> None:
    slow, fast = ManualWorkers(1, hosts()), from_items([1, 2, 3])
    plan = Concurrently([from_workers(slow, Numbers(2)).gather_async(), fast], "async")
    with plan.run() as run:
        assert list(islice(run, 3)) == [1, 2, 3]
        assert run.step() is WAITING
        slow.answer()
        assert run.step() == 0


def test_a_round_robin_waits_so_that_its_order_is_that_of_the_plan() -> None:
    slow = ManualWorkers(1, hosts())
    with Concurrently([from_items([1, 2]), from_workers(slow, Numbers(2)).gather_async()]).run() as run:
        assert run.step() == 1
        assert [run.step(), run.step()] == [WAITING, WAITING]
        slow.answer()
        assert [run.step(), run.step()] == [0, 2]


def test_a_star_does_not_wait() -> None:
    slow = ManualWorkers(1, hosts())
    branches = [from_workers(slow, Numbers(2)).gather_async(), from_items([1, 2])]
    with Concurrently(branches, round_robin_weights=["*", 1]).run() as run:
        assert run.step() == 1
        slow.answer()
        assert run.step() == 0
        assert run.step() == 2
        assert run.step() is WAITING


def test_zip_waits_for_every_branch_and_keeps_what_it_has() -> None:
    slow = ManualWorkers(1, hosts())
    with from_items(["a", "b"]).zip(from_workers(slow, Numbers(9)).gather_async()).run() as run:
        assert run.step() is WORKED
        assert run.step() is WAITING
        slow.answer()
        assert [run.step(), run.step()] == [WORKED, ("a", 0)]


# -- forks


def test_readers_may_run_at_different_speeds_within_max_lag() -> None:
    """F7: the fastest reader of a fork is at most max_lag items before the slowest."""
    fast, slow = from_items(range(100)).duplicate(2, max_lag=4)
    run = Concurrently([fast, slow.for_each(lambda i: -i)], round_robin_weights=["*", 1]).run()
    first = list(islice(run, 5))
    assert first == [0, 1, 2, 3, 0], "after 4 items the slow one has its turn"
    ahead = furthest = 4 - 1
    for item in run:
        ahead += 1 if item > 0 else -1
        furthest = max(furthest, ahead)
    assert furthest <= 4
    assert ahead == 0


def test_a_reader_that_nobody_pulls_any_more_holds_up_nobody() -> None:
    r1, r2 = from_items(range(50)).duplicate(2, max_lag=2)
    assert list(Concurrently([r1.take(1), r2])) == [0, 0, *range(1, 50)]
    _, used = from_items(range(50)).duplicate(2, max_lag=2)
    assert list(used) == list(range(50)), "a reader that is not part of the plan neither"
    r1, r2 = from_items(range(50)).duplicate(2, max_lag=2)
    ended = r1.zip(from_items([7]))  # ends with the shortest
    assert list(Concurrently([ended, r2], "async"))[-1] == 49


def test_forks_of_forks() -> None:
    r1, r2 = from_items([1, 2, 3]).duplicate(2)
    r3, r4 = r2.for_each(lambda i: 10 * i).duplicate(2)
    assert list(r1.zip(r3, r4)) == [(1, 10, 10), (2, 20, 20), (3, 30, 30)]


# -- nothing can go on


@operator
class Never:
    """A source that only another branch could help."""

    def pull(self) -> object:
        return BLOCKED

    def why(self) -> str:
        return "it never has anything"


def test_a_deadlock_names_every_stuck_branch_and_why() -> None:
    """F8: in nested merges too; a branch that has ended says so."""
    r1, r2 = from_items(range(9)).duplicate(2, max_lag=3)
    plan = Concurrently(
        {
            "lonely": from_items(Never()),
            "short": from_items([]),
            "nested": Concurrently({"zipped": r1.batch(5).zip(r2.batch(9))}),
        }
    )
    with plan.run() as run:
        with pytest.raises(Deadlock) as caught:
            list(run)
        lines = str(caught.value).splitlines()
    assert lines[0] == "no branch can go on:"
    assert "  branch lonely: lonely.Never: it never has anything" in lines
    assert "  branch short: has ended" in lines
    assert any("branch nested: branch zipped: branch " in line and "(max_lag)" in line for line in lines)


@pytest.mark.parametrize("error", [StopIteration, ValueError])
def test_an_operator_that_cannot_say_why_it_waits_ends_nothing_else(error: type[Exception]) -> None:
    """F8: StopIteration would read as the end of the run."""

    class Mute(Never):
        def why(self) -> str:
            raise error("no reason")

    with pytest.raises(Deadlock, match=rf"Mute: its why\(\) raised {error.__name__}: no reason"):
        list(from_items(operator(Mute)()))


def test_a_zip_of_readers_that_drift_apart_is_a_deadlock_and_no_endless_loop() -> None:
    r1, r2 = from_items(range(9)).duplicate(2, max_lag=3)
    with pytest.raises(Deadlock, match="reader 0 has 3 items to read first"):
        list(r1.batch(5).zip(r2.batch(9)))


def test_the_end_of_a_branch_frees_the_one_it_blocked() -> None:
    """F8: an end is progress too: no deadlock, nor a wait for others, where a branch was blocked by one that ends."""
    r1, r2 = from_items(range(6)).duplicate(2, max_lag=1)
    assert list(Concurrently([r1, r2.take(0)], round_robin_weights=[2, 1])) == list(range(6))

    r1, r2 = from_items(range(6)).duplicate(2, max_lag=1)
    unanswered = from_items([1]).call(ManualWorkers(1, hosts()).members[0], "work")
    with Concurrently([r1, r2.take(0), unanswered], round_robin_weights=["*", 1, "*"]).run() as run:
        assert [run.step() for _ in range(6)] == list(range(6))


def test_done_is_repeated() -> None:
    with Concurrently([from_items([1]), from_items([2, 3])], output_indexes=[0]).run() as run:
        assert [run.step() for _ in range(4)] == [1, WORKED, DONE, DONE]


@pytest.mark.parametrize(("corrected", "most"), [(False, 0), (True, 7)])
def test_what_learns_on_policy_falls_one_item_behind_at_most(corrected: bool, most: int) -> None:
    """D15: unless something makes up for the age of its items, however large `max_lag` is."""
    made: list[int] = []
    lags: list[int] = []

    def sample(x: int) -> int:
        made.append(x)
        return x

    @declare(requires=("on_policy or corrected",), provides=())
    def learn(x: int) -> int:
        lags.append(made[-1] - x)
        return x

    fresh, rest = from_items(range(64)).for_each(sample).duplicate(2, max_lag=8)
    correct = declare(provides=("corrected",))(lambda x: x)
    fresh = fresh.for_each(correct) if corrected else fresh
    list(Concurrently({"train": fresh.for_each(learn), "rare": rest.batch(8)}, round_robin_weights=[1, 2]))
    assert len(lags) == 64
    assert max(lags) == most


def test_items_that_would_become_old_are_an_error_where_nobody_can_read_them() -> None:
    """D15, F8."""
    learn = declare(requires=("on_policy",), provides=())(lambda x: x)
    fresh, rest = from_items(range(64)).duplicate(2)
    with pytest.raises(Deadlock, match=r"reader 0 has 1 item to read first \(it learns on-policy"):
        list(fresh.for_each(learn).zip(rest.batch(8)))
