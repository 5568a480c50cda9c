"""Shards that are Ray actors: the same as those of this process, but for where rows are."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import from_items
from flowrl.actors.actors import Actors
from flowrl.data import Batch, PrioritizedReplayBuffer, RateLimiter, ReplayActors, ReplayBuffer
from flowrl.data.replay import sharded
from flowrl.engine.context import Context
from flowrl.engine.workers import members
from flowrl.engine.workers.local import wait_for
from flowrl.engine.workers.remote import Remote
from flowrl.errors import SchemaError, Stalled
from flowrl.operators import Concurrently, NStep, ParallelRollouts, Replay, StoreToReplay
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same

pytestmark = pytest.mark.usefixtures("ray_cluster")


def rows(start: int, count: int = 4) -> Batch:
    obs = np.arange(start, start + count)
    return Batch(obs=obs, reward=np.ones(count), terminated=np.zeros(count, bool))


def stored(shards: ReplayActors) -> None:
    """Wait until everything has arrived."""
    wait_for([request.future for request in shards._adds], "rows to arrive")
    shards.can_insert(1)


class Collector:
    """What makes rows elsewhere."""

    def collect(self, start: int) -> tuple[str, Batch]:
        return "a answer", rows(start)


def test_a_plan_gives_the_same_batches_as_in_this_process() -> None:
    """D1, B8, F2: with one batch in flight each, shards here or elsewhere are the same; so is one that is resumed."""

    def shards(remote: bool) -> ReplayActors:
        limiter = RateLimiter(2.0, 8, sample_batch=3, insert_batch=4)
        return ReplayActors(lambda: PrioritizedReplayBuffer(16, compiled=False), 2, remote=remote, limiter=limiter)

    def plan(buffer: ReplayActors) -> Any:
        store = from_items([rows(4 * i) for i in range(30)]).for_each(StoreToReplay(buffer))
        return Concurrently([store, Replay(buffer, 3)], output_indexes=[1])

    with shards(False) as here, shards(True) as there:
        with plan(here).run(seed=1) as run, plan(there).run(seed=1) as remote:
            expected = [next(run) for _ in range(12)]
            assert same([next(remote) for _ in range(12)], expected)
            state = remote.state_dict()
            expected = [next(run) for _ in range(12)]
            assert same([next(remote) for _ in range(12)], expected)
        with plan(there).run(seed=1) as remote:
            remote.load_state_dict(state)
            assert same([next(remote) for _ in range(12)], expected)


@pytest.mark.slow
def test_rows_go_from_who_made_them_to_their_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never in this process, which knows how many they are and where."""
    here: list[Any] = []
    made = Batch.__init__

    def seen(batch: Batch, *columns: Any, **more: Any) -> None:
        made(batch, *columns, **more)
        here.extend(batch["obs"].tolist() if "obs" in batch else ())

    with (
        Actors([Collector], kind="collector", remote=True) as actors,
        ReplayActors(lambda: ReplayBuffer(16, seed=0), 2, remote=True) as shards,
    ):
        (collector,) = actors.members
        store = StoreToReplay(shards)
        assert store.takes_remote
        monkeypatch.setattr(Batch, "__init__", seen)
        for start in (0, 10, 20):
            future = collector.submit_apart("collect", start)
            wait_for([future], "rows")
            answer, remote = future.result()
            assert (answer, type(remote), remote.rows) == ("a answer", Remote, 4)
            assert store.ready(remote) is True
            assert store(remote) is remote
        stored(shards)
        assert not here
        assert store.context.counters == {"inserted": 12}
        assert shards.rows_of_shards == [8, 4]
        drawn = shards.sample(60)
        assert {*drawn.obs} <= {0, 1, 2, 3, 20, 21, 22, 23}
        assert here


@pytest.mark.slow
def test_what_a_remote_shard_refuses_is_raised_later() -> None:
    """F9: as it was raised, at what is asked next."""
    with ReplayActors(lambda: ReplayBuffer(16, seed=0), 1, remote=True) as shards:
        shards.add(rows(0))
        stored(shards)
        shards.add(rows(4).replace(more=np.ones(4)))
        wait_for([request.future for request in shards._adds], "an answer")
        with pytest.raises(SchemaError, match="has extra 'more'"):
            shards.can_insert(4)
        assert (shards.inserts, len(shards)) == (4, 4)


@pytest.mark.slow
def test_a_plan_stores_the_rows_of_workers_without_having_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adder runs on the worker; what it makes goes from there to the shards. This process sees what is drawn."""
    seen: list[Any] = []
    made = Batch.__init__

    def noted(batch: Batch, *columns: Any, **more: Any) -> None:
        made(batch, *columns, **more)
        seen.append("index" in batch or "worker" not in batch)

    policy = lambda *spaces: DQNPolicy(*spaces, hidden=(4,), device="cpu")  # noqa: E731
    limiter = RateLimiter(1.0, 40, sample_batch=16, insert_batch=64)
    with (
        WorkerSet("CartPole-v1", policy, num_workers=1, envs_per_worker=2) as workers,
        ReplayActors(lambda: ReplayBuffer(400), 2, remote=True, limiter=limiter) as shards,
    ):
        rollouts = ParallelRollouts(workers, mode="raw", steps=8).for_each(NStep(3, 0.99)).gather_async(in_flight=2)
        plan = Concurrently(
            {"store": rollouts.for_each(StoreToReplay(shards)), "train": Replay(shards, 16, in_flight=2)},
            mode="async",
            output_indexes=[1],
        )
        with plan.run(seed=1) as run:
            monkeypatch.setattr(Batch, "__init__", noted)
            drawn = [next(run) for _ in range(10)]
            monkeypatch.undo()
            state = run.state_dict()  # which has what was on its way
            assert len(seen) >= 10
            assert all(seen)
            assert {int(number) for batch in drawn for number in batch.shard} == {0, 1}
            assert all((batch.worker == 0).all() for batch in drawn)
            counters = state["ledger"]["counters"]
            assert counters["sampled"] == 160
            assert counters["inserted"] == shards.inserts
            assert sum(shards.rows_of_shards) == len(shards) == min(counters["inserted"], 800)
            assert counters["env_steps"] >= counters["inserted"]


@pytest.mark.slow
def test_a_state_without_a_shard_that_hangs_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10, F2: stopped. It is waited for once; the error names it, and once it goes on nothing is lost."""

    def make() -> ReplayBuffer:
        (tmp_path / str(os.getpid())).touch()
        return ReplayBuffer(40, seed=0)

    with ReplayActors(make, 1, remote=True, worker_timeout=900) as shards:
        shards.start(Context())
        shards.add(rows(0))
        stored(shards)
        before = shards.state_dict()
        (pid,) = (int(file.name) for file in tmp_path.iterdir() if int(file.name) != os.getpid())
        os.kill(pid, signal.SIGSTOP)
        try:
            hangs = "replay 0 has not answered for .* s .*, and no state is complete without its rows.*=900 s"
            monkeypatch.setattr(sharded, "DRAIN_SECONDS", 0.1)
            with pytest.raises(Stalled, match=hangs):
                shards.state_dict()
            monkeypatch.setattr(members, "DRAIN_SECONDS", 0.1)
            monkeypatch.setattr(sharded, "wait", lambda *_: pytest.fail("it waited again"))
            with pytest.raises(Stalled, match=hangs):
                shards.state_dict()
        finally:
            os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()
        assert same(shards.state_dict(), before)


@pytest.mark.slow
def test_a_killed_shard_costs_its_rows_and_nothing_else(tmp_path: Path) -> None:
    """F10: SIGKILL. The rows of the others are untouched, those lost are counted, drawing and adding go on."""

    def make() -> ReplayBuffer:
        (tmp_path / str(os.getpid())).touch()
        return ReplayBuffer(40, seed=0)

    with ReplayActors(make, 2, remote=True) as shards:
        shards.start(Context())
        counters = shards._context.counters
        for number in range(6):
            shards.add(rows(10 * number))
        stored(shards)
        before = shards.state_dict()["shards"]
        pid = next(int(file.name) for file in tmp_path.iterdir() if int(file.name) != os.getpid())
        os.kill(pid, signal.SIGKILL)
        drawn = [shards.sample(8) for _ in range(6)]
        lost = next(k for k in range(2) if shards._records[k].number == 2)
        left = 1 - lost
        assert counters == {"lost_requests": 1, "lost_rows": 12, "replay_restarts": 1}
        assert shards.rows_of_shards[lost] == 0
        after_death = [batch for batch in drawn if (batch.shard != lost).all()]
        assert len(after_death) >= 5
        for number in range(6, 10):
            shards.add(rows(10 * number))
        stored(shards)
        state = shards.state_dict()["shards"]
        old = before[left]["columns"]["obs"]
        assert same(state[left]["columns"]["obs"][: len(old)], old)
        assert shards.rows_of_shards[lost] == 8
        assert shards.inserts == 40
        assert counters["lost_rows"] + len(shards) == shards.inserts
        assert {int(number) for _ in range(4) for number in shards.sample(8).shard} == {left, 2}
