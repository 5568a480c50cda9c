"""DD-PPO: workers that learn together are PPO, keep the same weights, and send only scalars."""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan
from flowrl.errors import Disconnected, PlanError, WorkerDied
from flowrl.operators import GAE, Concurrently, FollowWorkers, ParallelRollouts, Report, TrainAllReduce, TrainOneStep
from flowrl.testing import same
from tests.plans.small import final, make, weights

WHOLE = {"train_batch_size": 20, "minibatch_size": 20, "num_sgd_iter": 3}


def test_without_workers_it_is_ppo() -> None:
    """D1: the same bits, where nobody shuffles."""
    ours, theirs = final("ddppo", 6, **WHOLE), final("ppo in torch", 6, **WHOLE)
    assert same(ours[0], theirs[0])
    assert same(weights(ours[1]), weights(theirs[1]))


@pytest.mark.slow
def test_two_workers_keep_the_same_weights(ray_cluster: None) -> None:
    """F13, F12, D3, D5: bit for bit after many steps, also after a resume; a row is learned from by one, an
    optimiser step is one for both; the policy here is theirs when somebody asks for it."""
    settings: Any = {"num_workers": 2, "envs_per_worker": 2, "train_batch_size": 20}
    workers, plan = make("ddppo", **settings)
    with workers, plan.run(seed=0) as run:
        results = list(islice(run, 4))
        assert run.counters["env_steps"] == 80
        assert run.counters["trained"] == 2 * 80
        assert run.counters["updates"] == 4 * 2 * 3  # batches, epochs, and minibatches of 4 of 10 rows
        assert [result["policy_lag"] for result in results] == [0.0] * 4
        (version, first), (other, second) = _weights(workers)
        assert version == other == workers.version == 24
        assert same(first, second)
        assert same(workers.policy.weights(), first)
        state = run.state_dict()
        assert same(state, run.state_dict())
        rest = list(islice(run, 2))
        run.close()
        end = _weights(workers)
        with plan.run(seed=9) as resumed:  # in the same processes, whose policies have gone on meanwhile
            resumed.load_state_dict(state)
            assert same(list(islice(resumed, 2)), rest)
            assert same(_weights(workers), end)


def _weights(workers: Any) -> list[Any]:
    return [member.submit("weights_apart").result(30) for member in workers.members]


@pytest.mark.slow
def test_what_the_workers_learned_is_here_when_they_are_gone(ray_cluster: None) -> None:
    """`act` and `evaluate` work after `stop`: the weights are those of the last step, though nobody had asked."""
    workers, plan = make("ddppo", num_workers=2)
    with workers, plan.run(seed=0) as run:
        next(run)
        (_, expected), _ = _weights(workers)
    assert workers._broadcast._published is None
    assert workers.policy.version == 6
    assert same(workers.policy.weights(), expected)


@pytest.mark.slow
def test_a_death_ends_the_run_at_once(ray_cluster: None) -> None:
    """F10 has a bound here: a group that learns together is one; the others do not wait for who is gone."""
    workers, plan = make("ddppo", num_workers=2)
    with workers, plan.run(seed=0) as run:
        next(run)
        os.kill(workers.members[1].submit("process").result(30), signal.SIGKILL)
        with pytest.raises((Disconnected, WorkerDied)):
            list(islice(run, 20))


def test_groups_that_share_a_policy_cannot_learn_apart() -> None:
    workers, plan = make("ddppo", env_groups=2)
    with workers, pytest.raises(PlanError, match="several groups in a process, which share a policy"):
        plan.run(seed=0)


def test_here_nobody_learns_together() -> None:
    workers, _ = make("ddppo")
    here = ParallelRollouts(workers, steps=3).for_each(TrainAllReduce())
    with workers, here.run() as run, pytest.raises(PlanError, match="put it before the gather"):
        next(run)


def test_two_groups_of_workers_count_apart() -> None:
    """F16: what is counted on the workers bears the name of their learner too."""
    groups = {name: make("ddppo")[0] for name in ("left", "right")}

    def learned(workers: Any, steps: int) -> Plan:
        fragments = ParallelRollouts(workers, mode="raw", steps=steps).for_each(GAE(0.9, 0.8))
        return fragments.for_each(TrainAllReduce()).gather_sync(FollowWorkers(workers)).take(steps)

    plan = Concurrently({"left": learned(groups["left"], 3), "right": learned(groups["right"], 2)})
    with groups["left"], groups["right"], plan.combine(Report(1_000)).run(seed=0) as run:
        (result,) = run
    counted = {name: value for name, value in result.items() if name.startswith(("updates", "trained"))}
    rows = {"trained": 13 * 2, "trained/left": 9 * 2, "trained/right": 4 * 2}
    assert counted == rows | {"updates": 5, "updates/left": 3, "updates/right": 2}
    assert {"loss/left", "loss/right", "policy_lag/left", "policy_lag/right"} < result.keys()
    assert not {"loss", "policy_lag"} & result.keys()


def test_its_former_name_is_that_of_its_path_and_streams() -> None:
    """For one version: `TrainOneStep(all_reduce=True)`."""
    with pytest.warns(DeprecationWarning, match=r"TrainAllReduce\(\) now"):
        former: Any = TrainOneStep(all_reduce=True, num_sgd_iter=3)
    assert isinstance(former, TrainAllReduce)
    assert former.num_sgd_iter == 3
    workers, _ = make("ddppo")
    assert ParallelRollouts(workers, steps=3).for_each(former).name == "TrainOneStep"


def test_a_worker_that_has_not_met_the_others_does_not_learn_alone() -> None:
    """One that was started again, say: its policy would be another one from then on."""
    workers, plan = make("ddppo")
    with workers, plan.run(seed=0) as run:
        next(run)
        workers.local.peers = 0
        with pytest.raises(Disconnected, match="gone, or were never connected"):
            next(run)
