"""Sequences and whole episodes in plans: stored, drawn, learned from, resumed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from flowrl import Plan, from_items
from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.inspect.check import examine
from flowrl.inspect.strict import strict
from flowrl.operators import (
    Concurrently,
    HindsightRelabel,
    NStep,
    ParallelRollouts,
    Replay,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
)
from flowrl.policies import DQNPolicy, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan
from tests.episodes import fragment
from tests.goal_envs import BitFlip

BUFFERS: dict[str, Callable[[], Any]] = {
    "sequences": lambda: SequenceReplayBuffer(60, length=3, burn_in=1, overlap=1),
    "by priority": lambda: PrioritizedSequenceReplayBuffer(60, length=3, compiled=False),
    "episodes": lambda: EpisodeReplayBuffer(400, store_next_obs=False),
}


def workers(kind: Any = DQNPolicy, env: Any = "CartPole-v1") -> WorkerSet:
    return WorkerSet(env, lambda *spaces: kind(*spaces, hidden=(4,), device="cpu"), envs_per_worker=2)


def stored(buffer: ReplayBuffer) -> Plan:
    whole = fragment(["...T..t....T....T..", ".....T.T.*....t..T."], first=1)
    return from_items([whole[start : start + 4] for start in range(0, 19, 4)]).for_each(StoreToReplay(buffer))


def off_policy(of: WorkerSet, buffer: ReplayBuffer, batch_size: int = 4) -> Plan:
    train = Replay(buffer, batch_size).for_each(TrainOneStep(of))
    if isinstance(buffer, PrioritizedSequenceReplayBuffer):
        train = train.for_each(UpdatePriorities(buffer))
    store = ParallelRollouts(of, steps=8).for_each(StoreToReplay(buffer))
    return Concurrently({"store": store, "train": train}, output_indexes=[1])


@pytest.mark.parametrize("name", BUFFERS)
def test_storing_and_replaying_resumes_at_every_step(name: str) -> None:
    """D1, D3, D4, D5: in the middle of sequences and of episodes."""

    def plan() -> Plan:
        buffer = BUFFERS[name]()
        return Concurrently({"store": stored(buffer), "replay": Replay(buffer, 3)})

    check_plan(plan, items=10)


@pytest.mark.parametrize("name", BUFFERS)
def test_dqn_learns_from_the_steps_that_count(name: str) -> None:
    """N6, N7, F12: sampled and trained are those, on every edge is what was predicted, and it resumes (D3)."""
    of, buffer = workers(), BUFFERS[name]()
    plan = off_policy(of, buffer)
    plan.check()
    with of, strict(plan).run(seed=0) as run:
        for result in islice(run, 6):
            assert np.isfinite(result["loss"])
        counted = run.counters
    assert 0 < counted["trained"] <= counted["sampled"] == buffer.samples
    check_plan(lambda: off_policy(workers(), BUFFERS[name]()), items=3)


def test_the_loss_of_sequences_is_that_of_their_steps() -> None:
    """N6, N7: padding and burn-in reach neither the mean nor its denominator."""
    of = workers()
    buffer = SequenceReplayBuffer(60, length=3, burn_in=1, seed=0)
    with of, ParallelRollouts(of, steps=25).run() as run:
        buffer.add(next(run))
    drawn, learn = buffer.sample(8), of.policy.learn_mode
    assert not drawn.mask.all()
    rows = [
        drawn[time : time + 1, i] for time in range(len(drawn)) for i in range(drawn.shape[1]) if drawn.mask[time, i]
    ]
    together, alone = learn.prepare(drawn), learn.prepare(Batch.cat(rows).select([n for n in drawn if n != "mask"]))
    assert together.rows == alone.rows == drawn.mask.sum()
    assert learn.loss(learn.tensors(together))[0] == learn.loss(learn.tensors(alone))[0]


def test_goals_are_relabelled_as_episodes_are_drawn() -> None:
    """H3, H4, H5: what is stored stays as it was, and each draw has goals of its own."""
    of, buffer = workers(env=BitFlip), EpisodeReplayBuffer(200)
    goals = BitFlip()
    relabel = HindsightRelabel(goals.compute_reward, goals.compute_terminated, gamma=0.9, k=3)
    train = Replay(buffer, 4).for_each(relabel)
    store = ParallelRollouts(of, steps=10).for_each(StoreToReplay(buffer))
    plan = Concurrently({"store": store, "train": train.for_each(TrainOneStep(of))}, output_indexes=[1])
    plan.check()
    with of, strict(plan).run(seed=0) as run:
        for result in islice(run, 4):
            assert np.isfinite(result["loss"])
    before = buffer.state_dict()["columns"]
    rows = [relabel(buffer.sample(4)) for _ in range(2)]
    assert rows[0] != rows[1]
    assert Batch(buffer.state_dict()["columns"]) == Batch(before)
    reached = (rows[0].next_obs.achieved_goal == rows[0].next_obs.desired_goal).all(-1)
    assert (rows[0].terminated == reached).all()


def test_what_cannot_fill_or_leave_such_a_buffer_is_found_before_the_run() -> None:
    """F1: rows in no order, draws that no capacity or limiter allows, losses that need present weights."""
    of, buffer = workers(), SequenceReplayBuffer(60, length=3)
    flat = ParallelRollouts(of).for_each(NStep(2, 0.9)).for_each(StoreToReplay(buffer))
    assert "StoreToReplay" in examine(flat).problems[0]
    assert "needs 'fragments', which is lost in NStep" in examine(flat).problems[0]
    (found,) = examine(off_policy(of, buffer, batch_size=21)).problems
    assert "batch_size is 21, up to 63 rows, but the buffer keeps 60 rows" in found
    whole = EpisodeReplayBuffer(60, seed=0)
    assert not examine(off_policy(of, whole, batch_size=21)).problems
    whole.add(fragment(["...T"]))
    assert not examine(off_policy(of, whole, batch_size=21)).problems, "a plan that was right is right when it resumes"
    ppo = workers(PPOPolicy)
    problems = examine(off_policy(ppo, SequenceReplayBuffer(60, length=3))).problems
    assert any("needs 'on_policy', which is lost in train.Replay" in each for each in problems)
    relabel = HindsightRelabel(lambda *_: 0, lambda *_: 0, gamma=0.9)
    sequences = SequenceReplayBuffer(60, length=3)
    store = ParallelRollouts(of).for_each(StoreToReplay(sequences))
    problems = examine(Concurrently([store, Replay(sequences, 4).for_each(relabel)])).problems
    assert any("needs 'episodes'" in each for each in problems)


def test_what_windows_of_a_buffer_need_is_found_before_the_run() -> None:
    """F1: they are made of fragments, of columns that are there, and limited by a version that is known."""
    of = workers()
    flat = ParallelRollouts(of).for_each(NStep(2, 0.9))
    for settings in ({"n_step": 3}, {"frame_stack": 2}):
        (found,) = examine(flat.for_each(StoreToReplay(ReplayBuffer(60, **settings)))).problems
        assert "needs 'fragments', which is lost in NStep" in found
        assert not examine(ParallelRollouts(of).for_each(StoreToReplay(ReplayBuffer(60, **settings)))).problems
    few = flat.for_each(lambda batch: batch).for_each(StoreToReplay(ReplayBuffer(60, max_staleness=2)))
    assert not examine(few).problems, "unknown never fails"
