"""Worker sets: described by the user, started by a run, and passed on to the next one."""

from __future__ import annotations

import logging
from functools import partial

import gymnasium
import numpy as np
import pytest

from flowrl import Plan
from flowrl.errors import CheckpointError, PlanError
from flowrl.operators import ParallelRollouts
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.scripted import ScriptedPolicy


def make(**kwargs: object) -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: ScriptedPolicy(), envs_per_worker=2, **kwargs)  # type: ignore


@pytest.mark.parametrize("mode", ["bulk_sync", "async"])
def test_a_plan_starts_nothing_and_a_run_does(mode: str) -> None:
    """F1: neither the set nor the plan over it makes the environments that act."""
    with make() as workers:
        plan = ParallelRollouts(workers, mode, steps=3)  # type: ignore[arg-type]
        assert workers.members == []
        with plan.run() as run:
            batch = next(run)
            assert batch.shape == (3, 2)
            assert run.counters == {"env_steps": 6}


def test_raw_rollouts_take_operators_to_the_worker() -> None:
    """DESIGN: an adder before the gather runs where the experience is made."""
    with make() as workers:
        plan = ParallelRollouts(workers, "raw", steps=3).for_each(lambda batch: batch.flat()).gather_async()
        with plan.run() as run:
            assert next(run).shape == (6,)


def test_the_next_run_goes_on_where_the_last_one_ended() -> None:
    """Environments and policy stay; an open run keeps them to itself."""
    with make() as workers:
        plan = ParallelRollouts(workers, steps=2)
        with plan.run() as run:
            last = next(run)
            with pytest.raises(PlanError, match="belongs to another open run"):
                plan.run()
        with plan.run() as run:
            first = next(run)
        ended = last.terminated[-1] | last.truncated[-1]
        np.testing.assert_array_equal(first.obs[0][~ended], last.next_obs[-1][~ended])
        assert first.t[0].tolist() == [2, 2]


def test_episodes_are_recorded_with_the_items_that_ended_them() -> None:
    """S1, F12: returns of finished episodes reach the run's ledger once."""
    with make() as workers, ParallelRollouts(workers, steps=50).run() as run:
        batch = next(run)
        returns = run.context.metrics.drain("episode_return")
        assert len(returns) == int((batch.terminated | batch.truncated).sum()) > 0
        assert run.context.metrics.drain("episode_return") == []


def test_unknown_raw_returns_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """S1: the log says so where a wrapper may have changed the rewards first."""

    def scaled() -> gymnasium.Env:
        return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 2 * reward)

    workers = WorkerSet(scaled, lambda *spaces: ScriptedPolicy(), envs_per_worker=1)  # type: ignore[arg-type]
    with workers, caplog.at_level(logging.WARNING, "flowrl"), ParallelRollouts(workers).run():
        assert "wrappers may change rewards" in caplog.text
        assert "(--wrapper)" in caplog.text


def test_two_worker_sets_do_not_act_in_one_environment_object() -> None:
    """T7: each would reset the episodes of the other."""
    env = gymnasium.make_vec("CartPole-v1", 2)
    wrapped = gymnasium.vector.VectorWrapper(env)
    first, second = (WorkerSet(each, lambda *spaces: ScriptedPolicy(), envs_per_worker=2) for each in (env, wrapped))
    with ParallelRollouts(first, steps=1).run():
        pass
    with pytest.raises(PlanError, match=r"CartPole.* in use by another worker set.* close\(\) that one first"):
        ParallelRollouts(second, steps=1).run()
    first.close()
    with ParallelRollouts(second, steps=1).run() as run:
        assert next(run).shape == (1, 2)


def test_the_state_of_another_number_of_workers_is_refused() -> None:
    workers = make()
    with pytest.raises(CheckpointError, match=r"the state has 1 workers, .* has 0: a run starts them"):
        workers.load_state_dict({"workers": [{}]})
    with (
        ParallelRollouts(workers, steps=1).run(),
        pytest.raises(CheckpointError, match=r"state has 0 workers, .* has 1"),
    ):
        workers.load_state_dict({"workers": []})


def test_a_network_of_another_shape_is_refused_and_the_environments_go_on() -> None:
    def plan(width: int) -> Plan:
        workers = WorkerSet("CartPole-v1", partial(DQNPolicy, hidden=(width,), device="cpu"), envs_per_worker=1)
        return ParallelRollouts(workers, steps=2)

    with plan(4).run() as other, plan(8).run() as run:
        next(other)
        next(other)
        next(run)
        before = run.state_dict()
        with pytest.raises(CheckpointError, match=r"DQNPolicy does not take the state, [^\n]*\n\s*size mismatch"):
            run.load_state_dict(other.state_dict())
        assert same(run.state_dict(), before)
