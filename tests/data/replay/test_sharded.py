"""Several stores as one: where rows go and come from, what is on its way, what a dead shard costs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    ObjectReplayBuffer,
    PrioritizedReplayBuffer,
    RateLimiter,
    ReplayActors,
    ReplayBuffer,
    SequenceReplayBuffer,
    Store,
)
from flowrl.data.replay import sharded
from flowrl.engine.context import Bell, Context
from flowrl.engine.workers.local import InlineWorker
from flowrl.engine.workers.remote import Remote
from flowrl.errors import CheckpointError, SchemaError, Stalled, WorkerDied
from flowrl.testing import ManualWorkers, same


def rows(start: int, count: int = 3) -> Batch:
    obs = np.arange(start, start + count)
    return Batch(obs=obs, reward=np.ones(count), terminated=np.zeros(count, bool))


def uniform() -> ReplayBuffer:
    return ReplayBuffer(12, seed=0)


def by_priority() -> PrioritizedReplayBuffer:
    return PrioritizedReplayBuffer(12, alpha=1.0, compiled=False, seed=0)


def manually(shards: ReplayActors) -> ManualWorkers:
    """Have a test give the answers of the shards."""
    shards._actors.start()
    workers = ManualWorkers(shards.num_shards)
    for member, shard in zip(workers.members, shards._actors.members):
        member.target = shard.target
    shards._actors.members[:] = workers.members
    return workers


def on_their_own(shards: ReplayActors) -> None:
    """Have the shards answer at once again."""
    shards._actors.members[:] = [InlineWorker(member.target) for member in shards._actors.members]


def stores(shards: ReplayActors) -> list[Any]:
    return [member.target.store for member in shards._members]


def walk(workers: list[int], start: int, steps: int = 4) -> Batch:
    """A fragment `[steps, N]` of two environments of each worker, which count their steps."""
    t = np.arange(start, start + steps)[:, None] + np.zeros((1, 2 * len(workers)), np.int64)
    worker = np.repeat(workers, 2)[None] + 0 * t
    no = np.zeros(t.shape, bool)
    return Batch(obs=100 * worker + t, reward=t, terminated=no, truncated=no, worker=worker, env_id=0 * t, t=t)


# -- where rows go and come from


def test_it_is_what_its_stores_are() -> None:
    """B5: rows go to the shards in turn and come from them in turn, as by hand."""
    shards, hand = ReplayActors(uniform, 3), [uniform() for _ in range(3)]
    for turn in range(7):
        shards.add(rows(10 * turn))
        hand[turn % 3].add(rows(10 * turn))
    for turn in range(8):
        drawn, expected = shards.sample(4), hand[turn % 3].sample(4)
        assert same(drawn.pop("shard"), np.full(4, turn % 3))
        assert drawn == expected
    assert shards.rows_of_shards == [9, 6, 6]
    assert (len(shards), shards.inserts, shards.samples, shards.capacity) == (21, 21, 32, 36)
    assert repr(shards) == "3 shards of ReplayBuffer, 21 of 36 rows"


def test_objects_go_in_and_out_too() -> None:
    shards = ReplayActors(lambda: ObjectReplayBuffer(4, seed=0), 2)
    shards.add(["a", "b"])
    shards.add(["c"])
    assert {*shards.sample(9)} == {"a", "b"}
    assert shards.sample(2) == ["c", "c"]


def test_priorities_find_the_way_back() -> None:
    """P3, P4: each to the shard that its row was drawn from; of a batch of several shards, too."""
    shards = ReplayActors(by_priority, 2)
    for start in (0, 10):
        shards.add(rows(start))
    drawn = Batch.cat([shards.sample(2), shards.sample(2)])
    assert drawn.shard.tolist() == [0, 0, 1, 1]
    dropped = shards.update_priorities(drawn.index, drawn.generation, priority=np.arange(1.0, 5.0), shard=drawn.shard)
    assert dropped == 0
    for shard, store in enumerate(stores(shards)):
        mine = drawn.shard == shard
        np.testing.assert_allclose(store._tree[drawn.index[mine]], np.arange(1.0, 5.0)[mine] + store.eps)
    with pytest.raises(SchemaError, match="without the column 'shard'"):
        shards.update_priorities(drawn.index, drawn.generation, np.ones(4))


def sequences() -> SequenceReplayBuffer:
    return SequenceReplayBuffer(400, length=3, seed=0)


@pytest.mark.parametrize("joined", [False, True])
def test_fragments_follow_one_another_in_a_shard(joined: bool) -> None:
    """N7, T7: with a shard for each worker, whether fragments come one by one or side by side, sequences are those
    of each worker's own buffer."""
    shards, hand = ReplayActors(sequences, 3), [sequences() for _ in range(3)]
    for start in (0, 4, 8):
        parts = [walk([worker], start) for worker in range(3)]
        for part in [Batch.cat(parts, axis=1)] if joined else parts:
            shards.add(part)
        for store, part in zip(hand, parts):
            store.add(part)
    for store, mine in zip(hand, stores(shards)):
        assert store[:] == mine[:]
        assert repr(store) == repr(mine)  # with as many sequences


def test_fragments_of_another_worker_between_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once: an elastic run may come to it, where no plan could foresee it."""
    shards = ReplayActors(sequences, 2)
    with caplog.at_level(logging.WARNING, "flowrl"):
        for start in (0, 4):
            for worker in range(3):
                shards.add(walk([worker], start))
    (record,) = caplog.records
    assert "fragments of the workers 0 and 2 go to replay shard 0 in turn" in record.getMessage()
    assert "take as many shards as workers" in record.getMessage()


def test_workers_side_by_side_may_share_a_shard(caplog: pytest.LogCaptureFixture) -> None:
    shards, hand = ReplayActors(sequences, 2), sequences()
    for start in (0, 4, 8):
        shards.add(walk([0, 1, 2], start))
        hand.add(walk([0, 2], start))
    assert stores(shards)[0][:] == hand[:]
    assert not caplog.records


def test_a_remote_fragment_goes_to_the_shard_of_its_worker() -> None:
    shards = ReplayActors(sequences, 2)
    manual = manually(shards)
    for worker in (1, 0, 1):
        shards.add(Remote("somewhere", 8, 100, worker=worker))
    assert [request.worker for request in manual.requests] == [1, 0, 1]
    assert shards.inserts == 24


# -- when


def test_the_limiter_counts_all_shards() -> None:
    """B8: rows stored before the first draw, and the ratio, are those of all of them."""
    limiter = RateLimiter(2.0, 6, sample_batch=4, insert_batch=3)
    shards = ReplayActors(uniform, 2, limiter=limiter)
    shards.add(rows(0))
    assert not shards.can_sample(4)
    assert "3 of 6 stored" in shards.why_sample(4)
    shards.add(rows(3))
    drawn = 0
    while shards.can_sample(4):
        shards.sample(4)
        drawn += 4
    assert drawn == 4
    assert shards.can_insert(3)
    with pytest.raises(ValueError, match=r"has a limiter of its own.*give it to ReplayActors"):
        ReplayActors(lambda: ReplayBuffer(12, limiter=limiter), 2)
    for wrong in ({"num_shards": 0}, {"num_shards": 1, "max_items": 0}, {"num_shards": 1, "max_bytes": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            ReplayActors(uniform, **wrong)


def test_what_is_promised_counts_for_drawing_and_not_for_adding() -> None:
    """B8: whatever arrives, neither side can have gone too far."""
    limiter = RateLimiter(1.0, 3, sample_batch=4, insert_batch=3)
    shards = ReplayActors(uniform, 2, limiter=limiter)
    manual = manually(shards)
    shards.add(rows(0))
    shards.add(rows(3))
    assert shards.can_sample(4)
    future = shards.ask(4)
    assert (shards.promised, shards.samples) == (4, 0)
    assert not shards.can_sample(4)
    assert not shards.can_insert(3)
    while manual.requests:
        manual.answer()
    assert shards.answered(future).rows == 4
    assert (shards.promised, shards.samples) == (0, 4)
    assert shards.can_insert(3)


def test_only_so_many_items_and_bytes_are_on_their_way() -> None:
    """F7: a shard that does not answer stops who adds; one that does lets the next item in."""
    size = sum(column.nbytes for column in rows(0).values())
    shards = ReplayActors(uniform, 2, max_items=3, max_bytes=10 * size)
    manual = manually(shards)
    for start in range(3):
        assert not shards.is_full(rows(start))
        shards.add(rows(start))
    assert shards.is_full(rows(3))
    assert "waits for shard 0, 1: 3 items (0.0 MB) are on their way; max_items is 3" in shards.why_insert(3)
    manual.answer()
    assert not shards.is_full(rows(3))
    assert shards.is_full(rows(3, 30))
    while manual.requests:
        manual.answer()
    assert not shards.is_full(rows(3, 300))  # alone, however large it is


def test_a_shard_without_rows_is_not_asked_before_something_was_added() -> None:
    """F6: it costs no request, and it is found out once for every add."""
    shards = ReplayActors(lambda: EpisodeReplayBuffer(40, seed=0), 2)
    manual = manually(shards)
    assert not shards.can_sample(1)
    assert not manual.requests
    shards.add(walk([1], 0))  # of an episode that goes on
    manual.answer()
    assert shards.can_sample(1)
    future = shards.ask(1)
    assert manual.answer().worker == 1
    assert shards.answered(future) is None
    assert not shards.can_sample(1)
    assert "no shard has enough" in shards.why_sample(1)
    end = walk([1], 4)
    end["terminated"] = end.t == 7
    future = None
    shards.add(end)
    assert shards.can_sample(1)
    future = shards.ask(1)
    manual.answer()
    manual.answer()
    assert shards.answered(future).shape == (8, 1)


def test_a_refusal_from_before_an_add_says_nothing() -> None:
    """F8: or the shard would not be asked any more, and everybody would wait."""
    shards = ReplayActors(lambda: EpisodeReplayBuffer(40, seed=0), 1)
    manual = manually(shards)
    shards.add(walk([0], 0))
    future = shards.ask(1)
    end = walk([0], 4)
    end["terminated"] = end.t == 7
    shards.add(end)
    while manual.requests:
        manual.answer()
    assert shards.answered(future) is None
    assert shards.can_sample(1)


def test_every_answer_rings_the_bell_of_the_run() -> None:
    """F6."""
    shards = ReplayActors(uniform, 1)
    context = Context(bell=Bell())
    shards.start(context)
    manual = manually(shards)
    shards.add(rows(0))
    assert not context.bell.wait(0)
    manual.answer()
    assert context.bell.wait(0)


def test_what_a_shard_refuses_is_raised_and_not_counted() -> None:
    here = ReplayActors(uniform, 1)
    here.add(rows(0))
    with pytest.raises(SchemaError, match="has extra 'more'"):
        here.add(rows(3).replace(more=np.ones(3)))
    assert (here.inserts, len(here)) == (3, 3)
    here.add(rows(3))
    assert len(here) == 6


def test_an_empty_one_says_so() -> None:
    """B7."""
    with pytest.raises(ValueError, match="nothing is stored yet; ask can_sample"):
        ReplayActors(uniform, 2).sample(1)


# -- deaths


def died(shard: int) -> WorkerDied:
    return WorkerDied(f"replay {shard}", "killed by a test")


def test_a_state_neither_waits_for_a_shard_that_hangs_nor_is_without_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """F10, F2: an error names it."""
    with ReplayActors(uniform, 2) as shards:
        manually(shards).hang(1)
        monkeypatch.setattr(sharded, "wait", lambda *_: pytest.fail("waited for a shard that is known to hang"))
        with pytest.raises(Stalled, match=r"replay 1 has not answered for .* no state is complete without its rows"):
            shards.state_dict()


def test_a_dead_shard_costs_its_rows_and_what_it_was_asked() -> None:
    """F10: exactly counted; the other shard keeps every row, and drawing goes on from it."""
    shards = ReplayActors(uniform, 2)
    shards.start(Context())
    context = shards._context
    manual = manually(shards)
    for start in (0, 10, 20, 30):
        shards.add(rows(start))
    while manual.requests:
        manual.answer()
    future = shards.ask(2)  # of shard 0
    shards.add(rows(40, 2))  # to shard 0
    shards.add(rows(50, 2))  # to shard 1
    before = stores(shards)[1].state_dict()
    manual.fail(died(0), worker=0)
    assert shards.answered(future) is None
    assert context.counters == {"lost_requests": 1, "lost_rows": 6, "replay_restarts": 1}
    manual.fail(died(0), worker=0)
    assert shards.can_sample(3)
    assert context.counters == {"lost_requests": 2, "lost_rows": 8, "replay_restarts": 1}
    assert same(stores(shards)[1].state_dict(), before)
    assert shards.rows_of_shards == [0, 6]
    assert shards.inserts == 16
    manual.answer(1)
    future = shards.ask(9)
    manual.answer(1)
    on_their_own(shards)
    assert set(shards.answered(future).obs) <= {10, 11, 12, 30, 31, 32, 50, 51}
    shards.add(rows(60))  # shard 0 has its turn again
    assert sorted(shards.rows_of_shards) == [3, 8]
    assert {*shards.sample(99).obs} | {*shards.sample(99).obs} >= {60, 61, 62}


def test_rows_that_were_answered_for_are_counted_whoever_notices() -> None:
    """F10: the answer to the add and the death come together, and the draw is looked at first."""
    shards = ReplayActors(uniform, 1)
    shards.start(Context())
    manual = manually(shards)
    shards.add(rows(0))
    future = shards.ask(2)
    manual.answer()
    manual.fail(died(0))
    assert shards.answered(future) is None
    assert not shards.can_sample(1)
    assert shards._context.counters["lost_rows"] == 3
    assert len(shards) == 0


@pytest.mark.parametrize("alive", [True, False])
def test_an_item_may_be_lost_where_its_shard_is_not(alive: bool) -> None:
    """F10: a reference leads nowhere when the machine that had the rows is gone. The shard is asked how it is."""
    shards = ReplayActors(uniform, 1)
    shards.start(Context())
    manual = manually(shards)
    shards.add(rows(0))
    manual.answer()
    shards.add(Remote("elsewhere", 5, 100, worker=0))
    manual.fail(WorkerDied("replay 0", "its object is lost"))
    assert not shards.is_full(rows(0))
    counters = shards._context.counters
    assert counters == {"lost_requests": 1, "lost_rows": 5}
    manual.answer() if alive else manual.fail(died(0))
    assert not shards.is_full(rows(0))
    assert len(shards) == (3 if alive else 0)
    lost = {"lost_requests": 1, "lost_rows": 5}
    assert counters == (lost if alive else {"lost_requests": 2, "lost_rows": 8, "replay_restarts": 1})


def test_a_shard_that_died_between_two_runs_is_replaced_by_the_next_one() -> None:
    """F10: nobody asked it anything meanwhile."""
    shards = ReplayActors(uniform, 2)
    shards.start(Context())
    for start in (0, 10):
        shards.add(rows(start))
    shards.stop()
    dead = ManualWorkers(2)
    dead.kill(0)
    shards._actors.members[0] = dead.members[0]
    again = Context()
    shards.start(again)
    assert again.counters == {"lost_requests": 1, "lost_rows": 3, "replay_restarts": 1}
    shards.add(rows(20))
    assert shards.rows_of_shards == [3, 3]


def test_priorities_for_a_dead_shard_are_dropped() -> None:
    """P4: the rows in their slots are others, though their generation may be the same."""
    shards = ReplayActors(by_priority, 2)
    shards.start(Context())
    manual = manually(shards)
    for start in (0, 10):
        shards.add(rows(start))
        manual.answer()
    future = shards.ask(3)
    manual.answer()
    drawn = shards.answered(future)
    future = shards.ask(3)
    manual.answer()
    shards.answered(future)
    future = shards.ask(3)
    manual.fail(died(0))
    assert shards.answered(future) is None
    on_their_own(shards)
    shards.add(rows(20))
    assert len(stores(shards)[0]) == 3
    assert shards.update_priorities(drawn.index, drawn.generation, np.full(3, 9.0), drawn.shard) == 3
    assert stores(shards)[0]._tree.largest == 1.0
    again = shards.sample(2)
    while again.shard[0] == 1:
        again = shards.sample(2)
    assert again.shard.tolist() == [2, 2]  # it is another one
    assert shards.update_priorities(again.index, again.generation, np.full(2, 9.0), again.shard) == 0
    assert stores(shards)[0]._tree.largest > 8


def test_a_shard_that_dies_again_and_again_is_an_error() -> None:
    shards = ReplayActors(uniform, 1, max_restarts=1)
    shards.start(Context())
    for _ in range(2):
        manual = manually(shards)
        shards.add(rows(0))
        manual.fail(died(0))
        if shards._actors.restarts == [0]:
            assert not shards.can_sample(1)
    with pytest.raises(WorkerDied, match="max_restarts=1"):
        shards.can_sample(1)


def test_a_shard_that_dies_while_its_state_is_taken_is_an_empty_one() -> None:
    """F10, D5."""
    shards = ReplayActors(uniform, 2)
    shards.start(Context())
    for start in (0, 10):
        shards.add(rows(start))
    dead = shards._actors.members[0]
    dead.submit = lambda *args: (_ for _ in ()).throw(died(0))
    state = shards.state_dict()
    assert shards.rows_of_shards == [0, 3]
    again = ReplayActors(uniform, 2)
    again.load_state_dict(state)
    assert same(again.state_dict(), shards.state_dict())
    assert shards._context.counters == {"lost_requests": 1, "lost_rows": 3, "replay_restarts": 1}


# -- state

MAKES: dict[str, Callable[[], Store]] = {"uniform": uniform, "by priority": by_priority, "sequences": sequences}


@pytest.mark.parametrize("kind", MAKES)
def test_a_state_holds_everything(kind: str) -> None:
    """B5, D5: also what was on its way; the next draws are identical."""
    shards = ReplayActors(MAKES[kind], 2)
    manual = manually(shards)
    for start in (0, 4, 8):
        for worker in (0, 1):
            shards.add(walk([worker], start) if kind == "sequences" else rows(10 * start + worker))
    answering = Counter[int]()
    while len(manual.requests) > 2:
        answering[manual.answer().worker] += 1
    while manual.requests:
        manual.answer()
    state = shards.state_dict()
    assert same(state, shards.state_dict())
    again = ReplayActors(MAKES[kind], 2)
    again.load_state_dict(state)
    assert same(again.state_dict(), state)
    assert (again.inserts, len(again), repr(again)) == (shards.inserts, len(shards), repr(shards))
    expected = ReplayActors(MAKES[kind], 2)
    expected.load_state_dict(state)
    for _ in range(5):
        assert again.sample(3) == expected.sample(3)
    with pytest.raises(CheckpointError, match="has 2 shards, this one 3; it must be equal"):
        ReplayActors(MAKES[kind], 3).load_state_dict(state)


def test_closing_ends_it_and_a_later_start_is_afresh() -> None:
    """F15."""
    with ReplayActors(uniform, 2) as shards:
        shards.add(rows(0))
        assert len(shards) == 3
    assert shards._actors.members == []
    assert (len(shards), shards.inserts, shards.samples) == (0, 0, 0)
    shards.add(rows(5))
    assert {*shards.sample(9).obs} == {5, 6, 7}
