"""Gradients apart from the step: averaged by rows, they are those of the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flowrl import from_items
from flowrl.data import Batch
from flowrl.errors import PlanError
from flowrl.operators import ApplyGradients, AverageGradients, ComputeGradients, TrainOneStep, UpdateTargetNetwork
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import check_plan, same
from tests.scripted import ScriptedPolicy, transitions


def make() -> WorkerSet:
    return WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, hidden=(8,), grad_clip=0.5, device="cpu"))


@pytest.fixture
def batch() -> Batch:
    return transitions(12)


def test_averaging_divides_by_the_rows(batch: Batch) -> None:
    """F13: three microbatches of unequal size give the gradient of the batch that they make up."""
    workers = make()
    compute = ComputeGradients(workers)
    whole = compute(batch)
    parts = [compute(batch[start:end]) for start, end in ((0, 2), (2, 9), (9, 12))]
    average = AverageGradients(3)
    assert [average(part) for part in parts[:2]] == [[], []]
    (mean,) = average(parts[2])
    assert mean.rows == 12
    assert mean.scalars["loss"] == pytest.approx(whole.scalars["loss"])
    for name, value in whole.values.items():
        torch.testing.assert_close(mean.values[name], value)
    assert workers.policy.version == 0, "computing gradients is no step"


def test_compute_and_apply_is_train_one_step(batch: Batch) -> None:
    """Bit for bit, clipping included; F12: the same rows and updates are counted."""
    apart, together = make(), make()
    with from_items([batch] * 3).for_each(ComputeGradients(apart)).for_each(ApplyGradients(apart)).run() as one:
        scalars = list(one)
        counters = one.counters
    with from_items([batch] * 3).for_each(TrainOneStep(together)).run() as other:
        assert list(other) == scalars
        assert other.counters == counters == {"trained": 36, "updates": 3}
    assert same(apart.policy.state_dict(), together.policy.state_dict())


def test_resumes_between_microbatches() -> None:
    """D3: gradients that wait to be averaged are in the state."""

    def plan() -> Any:
        workers = make()
        batches = [transitions(n, seed=n) for n in (3, 5, 2, 7, 4)]
        computed = from_items(batches).for_each(ComputeGradients(workers))
        return computed.combine(AverageGradients(2)).for_each(ApplyGradients(workers))

    check_plan(plan)


def test_the_target_network_moves_when_due() -> None:
    """Q2: every so many updates or env steps, in the unit that was given."""
    workers = make()
    moved: list[int] = []
    workers.policy.update_target = lambda tau: moved.append(workers.policy.version)  # type: ignore[method-assign]
    plan = (
        from_items([transitions(4)] * 7).for_each(TrainOneStep(workers)).for_each(UpdateTargetNetwork(workers, every=3))
    )
    list(plan)
    assert moved == [3, 6]
    by_steps = UpdateTargetNetwork(workers, every=100, unit="env_steps")
    for steps in (60, 60, 60, 60):
        by_steps.context.count("env_steps", steps)
        by_steps(None)
    assert len(moved) == 2 + 2


def test_bad_settings_are_refused_when_the_plan_is_built() -> None:
    with pytest.raises(PlanError, match="no target network"):
        UpdateTargetNetwork(WorkerSet("CartPole-v1", lambda *spaces: ScriptedPolicy()))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="TrainOneStep needs the workers whose policy learns, got 5"):
        TrainOneStep(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unit"):
        UpdateTargetNetwork(make(), unit="minutes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every"):
        UpdateTargetNetwork(make(), every=0)
