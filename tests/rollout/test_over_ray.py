"""Worker sets over real Ray actors: what tests/rollout/test_remote_groups.py says of objects holds of processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.operators import ParallelRollouts, TrainOneStep
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.plans.small import SMALL

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.slow]


@pytest.fixture(scope="module")
def two(ray_for_module: None) -> Iterator[WorkerSet]:
    """Two processes with two groups each, for all tests here that only look."""
    with WorkerSet("CartPole-v1", small, num_workers=2, envs_per_worker=4, env_groups=4, seed=3) as workers:
        yield workers


def small(*spaces: Any) -> PPOPolicy:
    return PPOPolicy(*spaces, hidden=(4,), device="cpu")


def run_of(name: str, rounds: int, state: Any = None, **settings: Any) -> tuple[list[Any], Any, Any]:
    """What a plan collects in so many results, its state and the policy's at the end."""
    from flowrl.trainer.plan_file import load_plan_file

    plan_file, seen = load_plan_file(name.split()[0]), []
    config = plan_file.Config(**{**SMALL[name], "env_groups": 2, "seed": 5, **settings})
    workers, plan = plan_file.build(config)
    with workers, plan.tap("ParallelRollouts", seen.append).run(seed=5) as run:
        if state is not None:
            run.load_state_dict(state)
        for _ in range(rounds):
            next(run)
        return seen, run.state_dict(), workers.policy.state_dict()


def test_ppo_over_two_processes_is_ppo_in_this_one() -> None:
    """D2, D3, O1: stream, parameters and statistics, bit for bit; and each goes on with the other's checkpoint."""
    here, there = {"num_workers": 0, "envs_per_worker": 4}, {"num_workers": 2, "envs_per_worker": 2}
    whole = run_of("ppo normalized", 6, **here)
    half = run_of("ppo normalized", 3, **there)
    assert same(half[0], whole[0][: len(half[0])])
    rest = run_of("ppo normalized", 3, half[1], **here)
    assert same(half[0] + rest[0], whole[0])
    assert same(rest[1:], whole[1:])


@pytest.mark.parametrize(("num_workers", "envs"), [(1, 4), (2, 2)])
def test_dqn_over_processes_goes_on_from_a_checkpoint_of_this_one(num_workers: int, envs: int) -> None:
    """D2, D3: parameters, replay and exploration bit for bit."""
    whole = run_of("dqn", 6, num_workers=0, envs_per_worker=4)
    half = run_of("dqn", 3, num_workers=0, envs_per_worker=4)
    rest = run_of("dqn", 3, half[1], num_workers=num_workers, envs_per_worker=envs)
    assert same(half[0] + rest[0], whole[0])
    assert same(rest[1:], whole[1:])


@pytest.mark.parametrize("mode", ["bulk_sync", "async"])
def test_weights_pushed_after_an_item_make_the_next_one_of_that_worker(two: WorkerSet, mode: str) -> None:
    """F3, T7: with one request in flight; episodes go on from item to item of a group."""
    seen: list[Batch] = []
    plan = ParallelRollouts(two, mode, steps=3).for_each(TrainOneStep(two))  # type: ignore[arg-type]
    newest: dict[int, int] = dict.fromkeys(range(4), two.policy.version)
    last: dict[int, Batch] = {}
    with plan.tap("ParallelRollouts", seen.append).run() as run:
        for _ in range(8):
            next(run)
            groups = np.unique(seen[-1].worker).tolist()
            for group in groups:
                batch = seen[-1][:, seen[-1].worker[0] == group]
                assert newest[group] <= batch.policy_version.min()
                assert batch.policy_version.max() < two.policy.version
                if mode == "bulk_sync":
                    assert batch.policy_version.min() == newest[group]
                if group in last:
                    on = ~(last[group].terminated | last[group].truncated)[-1]
                    np.testing.assert_array_equal(batch.obs[0][on], last[group].next_obs[-1][on])
                    np.testing.assert_array_equal(batch.episode_id[0][on], last[group].episode_id[-1][on])
                last[group] = batch
                newest[group] = two.policy.version
        lags = np.concatenate(run.context.metrics.drain("policy_lag"))
    assert len(lags) == sum(batch.rows for batch in seen)
    assert mode == "async" or lags.max() == 0  # how far a slow group falls behind nobody knows


def test_operators_before_the_gather_run_in_the_processes(two: WorkerSet) -> None:
    """F4: and what they count comes home."""
    import os

    plan = ParallelRollouts(two, "raw", steps=2).for_each(lambda batch: (os.getpid(), batch.rows)).gather_sync()
    with plan.run() as run:
        found = [next(run) for _ in range(4)]
        assert run.counters["env_steps"] == 16
    processes = [pid for pid, _ in found]
    assert processes[0] == processes[1] != processes[2] == processes[3]
    assert os.getpid() not in processes


def test_a_run_over_processes_resumes_at_any_item(two: WorkerSet) -> None:
    """D3, D5: bulk_sync, mid-stream, in the processes that have gone on meanwhile."""
    with ParallelRollouts(two, steps=3).run() as run:
        next(run)
        state = run.state_dict()
        assert same(state, run.state_dict())
        expected = [next(run) for _ in range(3)]
        run.load_state_dict(state)
        assert same([next(run) for _ in range(3)], expected)


def test_a_consumer_that_stops_stops_the_workers(two: WorkerSet) -> None:
    """F7: what they have made then is what was taken and, at most, what may be in flight."""
    taken, in_flight = 5, 3
    with ParallelRollouts(two, "async", in_flight, steps=2).run() as run:
        for _ in range(taken):
            next(run)
        parts = run.state_dict()["operators"]["ParallelRollouts"]["@workers"]  # each has done all that it was asked
    made = [part["items"]["Rollouts"] for part in parts]
    assert taken < sum(made) <= taken + in_flight * len(made)
