"""StoreToReplay, Replay and UpdatePriorities with several stores: the same plans, the same exactness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import Plan, from_items
from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    RateLimiter,
    ReplayActors,
    ReplayBuffer,
    SequenceReplayBuffer,
    Store,
)
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, Signal
from flowrl.errors import Deadlock, PlanError
from flowrl.inspect.check import examine
from flowrl.operators import (
    Concurrently,
    Episodes,
    NStep,
    ParallelRollouts,
    Replay,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
)
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.testing import ManualWorkers, check_plan, same

STORES: dict[str, Any] = {
    "uniform": lambda: ReplayBuffer(60),
    "by priority": lambda: PrioritizedReplayBuffer(60, compiled=False),
    "sequences": lambda: PrioritizedSequenceReplayBuffer(60, length=3, compiled=False),
    "episodes": lambda: EpisodeReplayBuffer(400),
}


def learners() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)


def batches(count: int, rows: int = 2) -> list[Batch]:
    return [
        Batch(obs=np.arange(rows) + rows * i, reward=np.ones(rows), terminated=np.zeros(rows, bool))
        for i in range(count)
    ]


def both(
    ratio: float = 2.0, weights: object = (1, 1), count: int = 20, in_flight: int = 1, shards: int = 2
) -> tuple[Plan, ReplayActors]:
    limiter = RateLimiter(ratio, 8, sample_batch=3, insert_batch=2)
    buffer = ReplayActors(lambda: ReplayBuffer(8), shards, limiter=limiter)
    store = from_items(batches(count)).for_each(StoreToReplay(buffer))
    return Concurrently({"store": store, "replay": Replay(buffer, 3, in_flight)}, round_robin_weights=weights), buffer


def off_policy(kind: str, in_flight: int = 1, of: WorkerSet | None = None) -> Plan:
    of, buffer = of or learners(), ReplayActors(STORES[kind], 2)
    train = Replay(buffer, 4, in_flight).for_each(TrainOneStep(of))
    if buffer.by_priority:
        train = train.for_each(UpdatePriorities(buffer))
    store = ParallelRollouts(of, steps=8).for_each(StoreToReplay(buffer))
    return Concurrently({"store": store, "train": train}, output_indexes=[1])


def manually(buffer: ReplayActors) -> ManualWorkers:
    """The shards as workers whose answers the test gives, for a run that begins."""
    buffer._actors.start()
    workers = ManualWorkers(buffer.num_shards)
    for member, shard in zip(workers.members, buffer._actors.members):
        member.target = shard.target
    buffer._actors.members[:] = workers.members
    return workers


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("weights", [(1, 1), (1, "*"), (5, 1), (1, 0.25)])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 7.0])
def test_the_ratio_holds_at_all_times(weights: tuple[object, object], ratio: float, in_flight: int) -> None:
    """F11, B8: over all shards, at every step; what is emitted lags by what has arrived before it is pulled."""
    plan, buffer = both(ratio, weights, count=60, in_flight=in_flight)
    slack = max(3, ratio * 2)
    with plan.run() as run:
        while buffer.inserts < 120:
            run.step()
            if buffer.inserts >= 8:
                assert abs(buffer.samples - ratio * (buffer.inserts - 8)) <= slack
            else:
                assert buffer.samples == 0
            ahead = buffer.samples - run.counters.get("sampled", 0)
            assert 0 <= ahead <= 3 * (in_flight - 1)
        assert run.counters["inserted"] == buffer.inserts


@pytest.mark.parametrize("seed", range(6))
def test_the_ratio_holds_whatever_the_order_of_answers(seed: int) -> None:
    """F11, B8, F8: nobody waits for ever, and no batch is lost or doubled on the way."""
    draw = np.random.default_rng(seed)
    plan, buffer = both(2.0, (1, "*"), count=60, in_flight=3, shards=3)
    manual = manually(buffer)
    emitted = 0
    with plan.run() as run:
        while buffer.inserts < 120:
            item = run.step()
            assert item is not BLOCKED
            emitted += isinstance(item, Batch) and "shard" in item
            if buffer.inserts >= 8:
                assert abs(buffer.samples - 2 * (buffer.inserts - 8)) <= 4
            if manual.requests and (item is WAITING or draw.random() < 0.2):
                manual.answer(int(draw.choice([request.worker for request in manual.requests])))
        assert run.counters["sampled"] == 3 * emitted


@pytest.mark.parametrize("in_flight", [1, 2])
def test_resumes_at_every_step(in_flight: int) -> None:
    """D1, D3, D5, F2: shards, what has arrived and whose turn it is are in the state."""
    check_plan(lambda: both(in_flight=in_flight)[0], items=30)


@pytest.mark.parametrize("kind", STORES)
def test_learns_and_resumes_from_whatever_is_stored(kind: str) -> None:
    """D1, D3, D5: `--workers 0` is exact, ahead by a batch too."""
    check_plan(lambda: off_policy(kind, in_flight=2), items=6, steps=[0, 5, 9])


def test_it_goes_on_from_disk(tmp_path: Path) -> None:
    """D3, D5: from the middle, in another run, without pickle."""
    with off_policy("by priority", in_flight=2).run() as run:
        for _ in range(3):
            next(run)
        path = save_checkpoint(tmp_path / "checkpoint", {"shards": run.state_dict()["resources"]["ReplayActors"]})
        shards = run.resources["ReplayActors"]
        again = ReplayActors(STORES["by priority"], 2)
        again.load_state_dict(load_checkpoint(path)["shards"])
        assert same(again.state_dict(), shards.state_dict())
        assert again.sample(4) == shards.sample(4)


def test_one_shard_is_a_buffer() -> None:
    """D1: the same rows in the same order, but for the column that tells the shard."""

    def drawn(buffer: Store) -> list[Any]:
        store = from_items(batches(20)).for_each(StoreToReplay(buffer))
        plan = Concurrently([store, Replay(buffer, 5)], output_indexes=[1])
        with plan.run() as run:
            return [next(run) for _ in range(12)]

    alone, sharded = drawn(ReplayBuffer(8, seed=1)), drawn(ReplayActors(lambda: ReplayBuffer(8, seed=1), 1))
    assert all((batch.pop("shard") == 0).all() for batch in sharded)
    assert same(alone, sharded)


def test_a_state_taken_while_shards_work_loses_nothing() -> None:
    """F2: what was on its way when the state was taken is in it, once; the run that it was taken of goes on."""
    plan, buffer = both(count=20, in_flight=2)
    manual = manually(buffer)

    def answered() -> None:
        while manual.requests:
            manual.answer()

    with plan.run() as run:
        items = []
        while len(items) < 12:
            item = run.step()
            if item is WAITING:
                manual.answer()
            elif not isinstance(item, Signal):
                items.append(item)
        until_it_waits(run)
        assert manual.requests
        futures = [request.future for request in manual.requests]
        for member in manual.members:
            member.submit = _at_once(member)
        answered()
        assert all(future.done() for future in futures)
        state = run.state_dict()
        rest = [next(run) for _ in range(10)]
    with both(count=20, in_flight=2)[0].run() as again:
        again.load_state_dict(state)
        assert same([next(again) for _ in range(10)], rest)


def _at_once(member: Any) -> Any:
    from flowrl.engine.workers.local import InlineWorker

    return InlineWorker(member.target).submit


def until_it_waits(run: Any) -> None:
    while (signal := run.step()) is not WAITING:
        assert signal is not DONE


def test_who_does_not_answer_stops_who_stores() -> None:
    """F7: at the bound in items nothing more is pulled from the source; each answer lets one more in."""
    seen: list[int] = []
    buffer = ReplayActors(lambda: ReplayBuffer(8), 2, max_items=3)
    plan = (
        from_items(batches(20))
        .tap("Items", lambda batch: seen.append(int(batch.obs[0])))
        .for_each(StoreToReplay(buffer))
    )
    manual = manually(buffer)
    with plan.run() as run:
        until_it_waits(run)
        assert len(seen) == 4  # three on their way, one held
        assert "StoreToReplay: waits for shard 0, 1: 3 items" in run.explain()
        assert run.step() is WAITING
        assert len(seen) == 4
        manual.answer()
        until_it_waits(run)
        assert len(seen) == 5


def test_a_stopped_consumer_stops_the_producer() -> None:
    """F7, B8: nobody draws, so the limiter lets in so much and no more."""
    _, buffer = both()
    pulled: list[Any] = []
    plan = from_items(batches(99)).tap("Items", pulled.append).for_each(StoreToReplay(buffer))
    with pytest.raises(Deadlock, match="StoreToReplay: waits for training"):
        list(plan)
    assert (len(pulled), buffer.inserts) == (6, 10)


def test_two_in_flight_keep_the_learner_fed() -> None:
    """While one batch is learned from the next one is drawn, by another shard."""
    buffer = ReplayActors(lambda: ReplayBuffer(8), 2)
    for batch in batches(4):
        buffer.add(batch)
    manual = manually(buffer)
    with Replay(buffer, 3, in_flight=2).run() as run:
        assert run.step() is WAITING
        assert [request.worker for request in manual.requests] == [0, 1]
        manual.answer(1)
        assert next(run).shard.tolist() == [1, 1, 1]  # whoever is first
        assert [request.worker for request in manual.requests] == [0]
        manual.answer(0)
        assert next(run).shard.tolist() == [0, 0, 0]
        assert [request.worker for request in manual.requests] == [0]  # asked before that one was given out


def test_an_idle_replay_asks_nothing() -> None:
    """F6: a shard without rows is not asked, however often it is looked at."""
    buffer = ReplayActors(lambda: ReplayBuffer(8), 2)
    manual = manually(buffer)
    with Replay(buffer, 3, in_flight=2).run() as run:
        for _ in range(5):
            assert run.step() is BLOCKED
        assert not manual.requests
        with pytest.raises(Deadlock, match="Replay: waits for rows: nothing is stored yet"):
            next(run)


def test_a_run_that_is_closed_owes_nothing() -> None:
    """B8: what it had asked for is not waited for by the next one."""
    plan, buffer = both(count=20, in_flight=2)
    manual = manually(buffer)
    with plan.run() as run:
        while not buffer.promised:
            if run.step() is WAITING:
                manual.answer()
    assert buffer.promised == 0
    while manual.requests:
        manual.answer()
    with plan.run() as run:
        assert run.step() is not BLOCKED


# -- what a plan says before it runs


def test_check_knows_shards_as_buffers() -> None:
    """Columns, debts and limits are those of the stores, and a column tells the shard."""
    plan = off_policy("by priority")
    schemas = plan.check()
    assert str(schemas["train.Replay"].columns["shard"]) == "int64[B]"
    assert schemas["train.TrainOneStep"].has("priorities")
    assert str(off_policy("sequences").check()["train.Replay"].columns["shard"]) == "int64[T, N]"
    with pytest.raises(PlanError, match="its priorities are never written back; put UpdatePriorities"):
        plan.remove("train.UpdatePriorities").check()
    with pytest.raises(PlanError, match=r"Replay .* waits for ever: its ReplayActors is empty and no operator fills"):
        Replay(ReplayActors(STORES["uniform"], 2), 3).check()
    with pytest.raises(PlanError, match="UpdatePriorities needs a PrioritizedReplayBuffer, got 2 shards of"):
        UpdatePriorities(ReplayActors(STORES["uniform"], 2))
    _, buffer = both()
    with pytest.raises(PlanError, match="has a limit until items are drawn"):
        from_items(batches(3)).for_each(StoreToReplay(buffer)).check()
    with pytest.raises(PlanError, match="has sample_batch=3: it would never allow a draw"):
        Concurrently([from_items(batches(3)).for_each(StoreToReplay(buffer)), Replay(buffer, 4)]).check()


def test_explain_shows_shards() -> None:
    text = off_policy("uniform").explain()
    assert "StoreToReplay(buffer=2 shards of ReplayBuffer, 0 of 120 rows)" in text


def problems(buffer: Store, num_workers: int, mode: Any = "async", adder: Any = None) -> list[str]:
    policy = lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu")  # noqa: E731
    plan = ParallelRollouts(WorkerSet("CartPole-v1", policy, num_workers=num_workers), mode=mode, steps=4)
    plan = plan if adder is None else plan.for_each(adder)
    return [p for p in examine(plan.for_each(StoreToReplay(buffer))).problems if "draws from it" not in p]


IN_ORDER: dict[str, Any] = {
    "sequences": lambda: SequenceReplayBuffer(60, length=3),
    "episodes": lambda: EpisodeReplayBuffer(60),
    "n-step": lambda: ReplayBuffer(60, n_step=3),
    "stacks": lambda: ReplayBuffer(60, frame_stack=4),
}


@pytest.mark.parametrize("kind", IN_ORDER)
def test_fragments_of_several_workers_in_turn_are_refused_where_order_matters(kind: str) -> None:
    """N1, N7: sequences would be cut at the end of every fragment, and no episode would be whole."""
    make = IN_ORDER[kind]
    (problem,) = problems(make(), 3)
    assert "its items are fragments of 3 workers in turn" in problem
    assert "take ReplayActors(..., num_shards=3)" in problem
    assert problems(ReplayActors(make, 2), 3)
    assert not problems(ReplayActors(make, 3), 3)
    assert not problems(make(), 1)
    assert not problems(make(), 3, mode="bulk_sync")
    if kind in ("sequences", "episodes"):
        assert not problems(make(), 3, adder=Episodes())
    assert not problems(ReplayBuffer(60), 3)
    assert not problems(ReplayBuffer(60), 3, adder=NStep(3, 0.9))
