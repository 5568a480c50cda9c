"""check(): words and columns along every edge, before anything runs; what is not known never fails."""

from __future__ import annotations

import re
import sys
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest

from flowrl import Plan, Queue, from_items, operator
from flowrl.data import Batch, RateLimiter, ReplayBuffer
from flowrl.engine.operator import declare
from flowrl.engine.schema import UNKNOWN, ColumnSchema, Schema, common, mismatches
from flowrl.errors import PlanError, SchemaError
from flowrl.inspect.check import examine, explain_checked
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from flowrl.operators.replay import Replay, StoreToReplay


@operator
class Gives:
    """A source of what its schema says."""

    known: Schema = attrs.field(repr=False)
    owes: ClassVar[tuple[str, ...]] = ()

    def schema(self, given: Schema) -> Schema:
        return self.known

    def pull(self) -> Any:
        raise AssertionError("checking a plan runs nothing")


class Prioritised(Gives):
    """A source whose priorities somebody must write back."""

    owes = ("priorities",)


@operator
class WritesBack:
    """Consumes priorities."""

    provides = ()
    consumes = ("priorities",)

    def __call__(self, item: Any) -> Any:
        return item


@operator
class AddsValue:
    """Provides a column of which it does not know the dtype."""

    provides = ("test_value",)

    def __call__(self, item: Any) -> Any:
        return item


@operator
class NeedsValue:
    """Requires it."""

    requires = ("test_value",)

    def __call__(self, item: Any) -> Any:
        return item


@operator
class NeedsFresh:
    """Requires a word, and says the way out."""

    requires: ClassVar[dict[str, str]] = {"fresh": "take it from the source"}

    def __call__(self, item: Any) -> Any:
        return item


@declare(schema=lambda given: given.without("fresh"))
def stale(item: Any) -> Any:
    return item


ROWS = Schema.of_columns("fresh", "experience", obs="float32[B, 4]", reward="float64[B]")


def source(kind: type[Gives] = Gives) -> Plan:
    return from_items(kind(ROWS), name="source")


def problems(plan: Plan) -> list[str]:
    """The messages, with line numbers instead of file:line."""
    return [re.sub(r"\([^()]*test_check\.py:(\d+)\)", r"(\1)", text) for text in examine(plan).problems]


def here() -> int:
    return sys._getframe(1).f_lineno


# -- schemas along edges


def test_taps_filters_batches_forks_and_merges_hand_schemas_on() -> None:
    a, b = source().tap("source", print).filter(bool).duplicate(2)
    plan = Concurrently({"a": a.prefetch(2).take(3), "b": b.batch(2).flatten()})
    schemas = plan.check()
    assert schemas.pop("b.batch") == Schema(of=ROWS)
    assert all(schema == ROWS for schema in schemas.values())


def test_what_is_true_of_every_branch_comes_out_of_a_merge() -> None:
    less = from_items(Gives(ROWS.without("reward", "fresh")))
    assert Concurrently([source(), less]).check()["Concurrently"] == ROWS.without("reward", "fresh")
    assert Concurrently([source(), less], output_indexes=[0]).check()["Concurrently"] == ROWS
    assert Concurrently([source(), from_items([1])]).check()["Concurrently"] == UNKNOWN


def test_what_is_not_known_never_fails() -> None:
    for unknown in (from_items([1]), source().for_each(lambda item: item)):
        assert unknown.for_each(NeedsValue()).for_each(NeedsFresh()).check()["NeedsValue"] == UNKNOWN
    pairs = source().zip(from_items([1])).for_each(NeedsValue()).for_each(NeedsFresh()).check()["NeedsValue"]
    assert pairs.each == (ROWS, UNKNOWN)
    assert str(pairs) == "tuple of (experience, fresh [B]), ()"


def test_checking_runs_nothing() -> None:
    """F1: the source and the function would fail."""
    source().for_each(AddsValue()).for_each(NeedsValue()).check()


# -- what is missing


def test_the_message_names_both_operators_and_who_provides_what_is_missing() -> None:
    line = here() + 1
    plan = source().for_each(NeedsValue())
    assert problems(plan) == [
        f"NeedsValue ({line}) needs 'test_value', which is not in the output of source ({source_line()}) "
        "[experience, fresh, obs, reward]: put AddsValue before NeedsValue"
    ]
    with pytest.raises(PlanError, match="put AddsValue before NeedsValue"):
        plan.check()


def source_line() -> int:
    return source.__code__.co_firstlineno + 1


def test_the_message_says_who_lost_it_and_the_way_out() -> None:
    line = here() + 1
    plan = source().for_each(stale).for_each(AddsValue()).for_each(NeedsFresh())
    assert problems(plan) == [
        f"NeedsFresh ({line}) needs 'fresh', which is lost in stale ({line}): take it from the source"
    ]


def test_an_operator_that_stands_too_late_is_named() -> None:
    line = here() + 1
    plan = source().for_each(NeedsValue()).for_each(AddsValue())
    assert problems(plan)[0].endswith(f": AddsValue ({line}) provides it, put it before NeedsValue")


@declare(schema=lambda given: given.each[0])
def first(pair: Any) -> Any:
    return pair[0]


@declare(schema=lambda given: given.each[1])
def second(pair: Any) -> Any:
    return pair[1]


@declare(schema=lambda given: given.each[0].without("fresh"))
def stale_first(pair: Any) -> Any:
    return pair[0]


def old() -> Plan:
    return from_items(Gives(ROWS.without("fresh", "reward")), name="old")


@pytest.mark.parametrize(
    ("plan", "who"),
    [
        (lambda: old().zip(source()).for_each(first), "which is not in the output of first"),  # it is in the other part
        (lambda: source().zip(old()).for_each(second), "which is not in the output of second"),
        (lambda: source().for_each(stale).zip(old()).for_each(first), "which is lost in 0.stale"),
        (lambda: old().zip(source().for_each(stale)).for_each(second), "which is lost in 1.stale"),
        (
            lambda: old().zip(source()).tap("zip", print).filter(bool).for_each(first),
            "which is not in the output of first",
        ),
        (lambda: source().zip(old()).for_each(first).for_each(stale), "which is lost in stale"),
        (lambda: source().zip(old()).for_each(stale_first), "which is lost in stale_first"),
    ],
)
def test_of_pairs_the_part_is_followed_that_goes_on(plan: Any, who: str) -> None:
    """F9: not the zip, through which any word may come, nor what is in the other part alone."""
    (found,) = problems(plan().for_each(NeedsFresh()))
    assert found.partition("needs 'fresh', ")[2].startswith(who), found


def test_one_of_several_words_is_enough() -> None:
    @declare(requires=("nothing or reward",))
    def either(item: Any) -> Any:
        return item

    @declare(requires=("nothing or never",))
    def neither(item: Any) -> Any:
        return item

    assert problems(source().for_each(either)) == []
    assert "needs 'nothing or never'" in problems(source().for_each(neither))[0]


def test_an_operator_may_refuse_what_it_gets() -> None:
    @declare(schema=lambda given: ColumnSchema.parse("no column"))
    def refuses(item: Any) -> Any:
        return item

    line = here() + 1
    assert problems(source().for_each(refuses)) == [
        f"refuses ({line}): a column is written like float32[T, N, 4], got 'no column'"
    ]


# -- what must be written back


def test_priorities_that_are_never_written_back_are_found() -> None:
    """Also behind a queue; an operator that says nothing of itself may do it."""
    assert problems(source(Prioritised).for_each(AddsValue())) == [
        f"source ({source_line()}): its priorities are never written back; "
        "put UpdatePriorities or WritesBack after the learning step"
    ]
    assert problems(source(Prioritised).for_each(AddsValue()).for_each(WritesBack())) == []
    assert problems(source(Prioritised).for_each(lambda item: item)) == []
    queue = Queue(2)
    learn = source(Prioritised).for_each(Enqueue(queue))
    assert len(problems(Concurrently([learn, Dequeue(queue).for_each(AddsValue())]))) == 1
    assert problems(Concurrently([learn, Dequeue(queue).for_each(WritesBack())])) == []


# -- stores


def test_schemas_go_through_stores_in_any_order() -> None:
    queue, buffer = Queue(2), ReplayBuffer(10)
    branches = {
        "out": Replay(buffer, 4),
        "across": Dequeue(queue).for_each(StoreToReplay(buffer)),
        "in": source().for_each(Enqueue(queue)),
    }
    schemas = Concurrently(branches).check()
    assert schemas["across.Dequeue"] == ROWS
    assert schemas["out.Replay"].columns.keys() == {"obs", "reward", "index", "generation"}
    assert schemas["out.Replay"].words == {"fresh", "experience", "rows", "replayed"}


def limited() -> ReplayBuffer:
    return ReplayBuffer(100, limiter=RateLimiter(1, 1, sample_batch=4, insert_batch=4))


def test_a_store_that_nobody_fills_is_found() -> None:
    """F8, before the run."""
    assert problems(Replay(ReplayBuffer(10), 4).for_each(WritesBack()))[0].endswith(
        "waits for ever: its ReplayBuffer is empty and no operator fills it"
    )
    assert "its Queue is empty and no operator" in problems(Dequeue(Queue(2)))[0]
    assert problems(Dequeue(Queue(2, external=True))) == []
    filled = ReplayBuffer(10)
    filled.add(Batch(obs=np.zeros(3)))
    assert problems(Replay(filled, 4)) == []


def test_stores_that_wait_for_each_other_are_found() -> None:
    """F8: what fills one comes out of the other."""
    a, b = Queue(2), Queue(2)
    plan = Concurrently({"ab": Dequeue(a).for_each(Enqueue(b)), "ba": Dequeue(b).for_each(Enqueue(a))})
    found = problems(plan)
    assert [text.split(" ")[0] for text in found] == ["ab.Dequeue", "ba.Dequeue"]
    assert "fills it only with its own items" in found[0]
    with plan.run() as run, pytest.raises(Exception, match="no branch can go on"):
        next(run)
    begun = Concurrently({"ab": Dequeue(a).for_each(Enqueue(b)), "ba": Dequeue(b).union(source()).for_each(Enqueue(a))})
    assert problems(begun) == []


def test_a_limiter_that_waits_for_sampling_that_no_branch_does_is_found() -> None:
    """F8, B8: it would be a Deadlock."""
    buffer = limited()
    rows = Batch(obs=np.zeros(4))
    plan = from_items([rows] * 9).for_each(StoreToReplay(buffer))
    assert problems(plan)[0].endswith(
        "will wait for ever: its ReplayBuffer has a limit until items are drawn, and no branch of the "
        "plan draws from it"
    )
    with plan.run() as run, pytest.raises(Exception, match="waits for training"):
        list(run)
    assert problems(from_items([rows]).for_each(StoreToReplay(ReplayBuffer(10)))) == [], "it overwrites the oldest"
    assert "its Queue has a limit" in problems(source().for_each(Enqueue(Queue(2))))[0]


def test_a_batch_that_the_limiter_never_lets_out_is_found() -> None:
    """B8."""
    buffer = limited()
    plan = Concurrently([source().for_each(StoreToReplay(buffer)), Replay(buffer, 5)])
    assert "batch_size is 5, but the buffer's rate limiter has sample_batch=4" in problems(plan)[0]


def test_a_batch_larger_than_the_buffer_is_found() -> None:
    """B7: it could be drawn, with repetitions, and is nothing that a plan wants."""
    buffer = ReplayBuffer(4)
    plan = Concurrently([source().for_each(StoreToReplay(buffer)), Replay(buffer, 5)])
    assert "batch_size is 5, but the buffer keeps 4 rows" in problems(plan)[0]
    buffer = ReplayBuffer(4)
    assert problems(Concurrently([source().for_each(StoreToReplay(buffer)), Replay(buffer, 4)])) == []


# -- the words themselves


def test_columns_are_written_and_read_back() -> None:
    assert str(ColumnSchema.parse("float32[T, N, 4]")) == "float32[T, N, 4]"
    assert ColumnSchema.parse("int64[]").shape == ()
    with pytest.raises(SchemaError, match="is written like"):
        ColumnSchema.parse("float32")


def test_a_column_of_columns_has_the_name_of_the_whole() -> None:
    nested = Schema({"obs.x": ColumnSchema("int64", ("B",))})
    assert nested.has("obs")
    assert not nested.has("ob")


def test_common_of_different_lists_is_no_list() -> None:
    assert common([Schema(of=ROWS), Schema(of=UNKNOWN)]).of is None


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Batch(obs=np.zeros((2, 4), np.float32), reward=np.zeros(2)), []),
        (Batch(obs=np.zeros((2, 4)), reward=np.zeros(2)), ["column 'obs' is float64[2, 4], expected float32[B, 4]"]),
        (Batch(obs=np.zeros((2, 3), np.float32), reward=np.zeros(2)), ["column 'obs' is float32[2, 3]"]),
        (Batch(obs=np.zeros((2, 4), np.float32)), ["column 'reward' is missing, expected float64[B]"]),
        (
            Batch(obs=np.zeros((2, 4), np.float32), reward=np.zeros(3)),
            ["column 'reward' is float64[3], so B = 3, but 'obs' has B = 2"],
        ),
        ([1, 2], ["column 'obs' is missing", "column 'reward' is missing"]),
    ],
    ids=["right", "dtype", "shape", "missing", "sizes", "no columns"],
)
def test_items_are_compared_with_what_was_predicted(item: Any, expected: list[str]) -> None:
    found = mismatches(item, ROWS)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected))


def test_the_tree_shows_what_each_operator_changes() -> None:
    plan = source().for_each(stale).batch(3).for_each(lambda item: item)
    assert explain_checked(plan, examine(plan)).splitlines() == [
        "source",
        "    -> experience, fresh [B]: obs float32[4], reward float64",
        "stale",
        "    -> experience [B]: the same",
        "batch(size=3)",
        "    -> lists of these",
        "lambda",
        "    -> ?",
    ]
