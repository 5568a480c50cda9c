"""Gradients computed by workers that have policies of their own: whose weights, which schedules, what rides when."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from flowrl.operators import ApplyGradients, AsyncGradients, AverageGradients, ComputeGradients, ParallelRollouts
from flowrl.policies import A2CPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.remote_groups import RemoteGroups
from flowrl.testing import same


@pytest.fixture(params=["inline"])
def two(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two workers: objects of this process that know each other only by what they are sent, or processes."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    else:
        monkeypatch.setattr(RemoteGroups, "remote", False)
    with WorkerSet("CartPole-v1", policy, num_workers=2, envs_per_worker=2) as workers:
        yield workers


def policy(observation_space: Any, action_space: Any) -> A2CPolicy:
    return A2CPolicy(observation_space, action_space, hidden=(8,), entropy_coef=as_entropy, device="cpu")


def as_entropy(env_steps: int) -> float:
    return float(env_steps)


@pytest.mark.parametrize("update_all", [True, False])
def test_a_worker_goes_on_with_what_came_of_its_gradients(two: WorkerSet, update_all: bool) -> None:
    """F3, F12: its next gradients are of the newest weights as its last were applied, whoever learned since."""
    applied = {0: 0, 1: 0}
    gradients = AsyncGradients(two, steps=3)
    with gradients.run(seed=1) as run:
        apply = ApplyGradients(two, update_all)
        for each in islice(run, 8):
            assert each.version == applied[each.worker]
            apply(each)
            applied[each.worker] = two.version
        assert apply.context.counters == {"trained": 48, "updates": 8}
        lags = np.concatenate(apply.context.metrics.drain("policy_lag"))
    assert two.version == 8
    assert lags.max() >= 1, "while one computed, the other's were applied"


def test_a_round_of_gradients_is_one_step_for_all(two: WorkerSet) -> None:
    """F13, F3, Q7: the average of a round, the next round with what came of it; schedules follow the run."""
    raw = ParallelRollouts(two, mode="raw", steps=3).for_each(ComputeGradients())
    rounds = raw.gather_sync().combine(AverageGradients(2)).for_each(ApplyGradients(two))
    versions = []
    with rounds.run(seed=1) as run:
        for number, scalars in enumerate(islice(run, 3)):
            versions.append(two.version)
            assert set(scalars) == {"loss", "policy_loss", "value_loss", "entropy"}
            own = 12 * number + 6  # those of the run when it was asked, and its own since
            expected = scalars["policy_loss"] + 0.5 * scalars["value_loss"] - own * scalars["entropy"]
            assert scalars["loss"] == pytest.approx(expected, rel=1e-4)
        assert run.counters["trained"] == 36
    assert versions == [1, 2, 3]


@pytest.mark.parametrize("two", ["inline", pytest.param("ray", marks=pytest.mark.slow)], indirect=True)
def test_gradients_are_those_of_the_same_experience_here(two: WorkerSet) -> None:
    """D2: the same weights and rows give the same bits wherever they are."""
    raw = ParallelRollouts(two, mode="raw", steps=3)
    with raw.for_each(ComputeGradients()).gather_sync().run(seed=1) as run:
        there = list(islice(run, 2))
    with WorkerSet("CartPole-v1", policy, envs_per_worker=4, env_groups=2) as here:
        raw = ParallelRollouts(here, mode="raw", steps=3)
        with raw.for_each(ComputeGradients()).gather_sync().run(seed=1) as run:
            expected = list(islice(run, 2))
    for ours, theirs in zip(there, expected, strict=True):
        assert same(ours, theirs)
