"""Gradients apart from the step: averaged by rows, they are those of the whole."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import attrs
import pytest
import torch

from flowrl import Plan, from_items
from flowrl.data import Batch
from flowrl.errors import PlanError, SchemaError
from flowrl.operators import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    ParallelRollouts,
    TrainOneStep,
    UpdateTargetNetwork,
)
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


@pytest.mark.parametrize(
    ("rows", "reported", "mean"),
    [
        ((2, 6), (1.0, 5.0), 4.0),
        ((2, 6), (None, 5.0), 5.0),
        ((2, 6), (1.0, None), 1.0),
        ((2, 3, 1), (1.0, None, 4.0), 2.0),
    ],
)
def test_a_scalar_that_a_part_does_not_report_is_no_zero(
    batch: Batch, rows: tuple[int, ...], reported: tuple[float | None, ...], mean: float
) -> None:
    """F13: as TD3's delayed loss of the actor; a gradient that a part has not is 0."""
    whole = ComputeGradients(make())(batch)
    parts = [
        attrs.evolve(whole, rows=n, values={} if x is None else {"w": x}, scalars={} if x is None else {"loss": x})
        for n, x in zip(rows, reported, strict=True)
    ]
    (average,) = from_items(parts).combine(AverageGradients(len(parts)))
    assert average.scalars["loss"] == pytest.approx(mean)
    assert average.values["w"] == pytest.approx(sum(n * (x or 0) for n, x in zip(rows, reported)) / sum(rows))


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


def test_microbatches_are_train_one_step_on_the_whole() -> None:
    """F13: several steps of the optimiser, each with the average of unequal parts, are those of the joined batches."""
    apart, together = make(), make()
    batches = [transitions(n, seed=n) for n in (3, 8, 5, 7, 2, 7)]
    computed = from_items(batches).for_each(ComputeGradients(apart))
    averaged = computed.combine(AverageGradients(3)).for_each(ApplyGradients(apart))
    whole = from_items(batches).combine(ConcatBatches(16)).for_each(TrainOneStep(together))
    with averaged.run() as one, whole.run() as other:
        for scalars, expected in zip(one, other, strict=True):
            assert scalars == pytest.approx(expected, rel=1e-5)
        assert one.counters == other.counters == {"trained": 32, "updates": 2}
    for value, expected in zip(apart.policy.model.parameters(), together.policy.model.parameters(), strict=True):
        torch.testing.assert_close(value, expected)


def test_gradients_of_workers_know_whose_they_are() -> None:
    """F12, F3: env steps count once; each gradient is that of the weights that the one before it left."""
    workers = make()
    plan = AsyncGradients(workers, steps=4)
    versions = []
    with (
        plan.tap("Rollouts", lambda batch: versions.append(batch.policy_version))
        .for_each(ApplyGradients(workers, update_all=False))
        .run(seed=1) as run
    ):
        assert all(scalars.keys() == {"loss", "q"} for scalars in islice(run, 3))
        ended = run.counters["episodes"]
        assert run.counters == {"env_steps": 3 * 4 * 8, "trained": 3 * 4 * 8, "updates": 3, "episodes": ended}
    assert [set(version.flat) for version in versions] == [{0}, {1}, {2}]
    with AsyncGradients(make(), steps=4).run(seed=1) as run:
        first = next(run)
        assert (first.worker, first.rows) == (0, 32)
    assert "this process" in next(line for line in plan.explain().splitlines() if "ComputeGradients" in line)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_gradients_in_flight_resume(in_flight: int) -> None:
    """D3, F2: those that wait to be applied are in the state; nothing is lost, nothing applied twice."""

    def plan() -> Plan:
        workers = make()
        grads = AsyncGradients(workers, in_flight, steps=2)
        averaged = grads.combine(AverageGradients(2))
        return averaged.for_each(ApplyGradients(workers, update_all=False))

    check_plan(plan, items=4)


def test_gradients_from_the_workers_are_those_from_here() -> None:
    """The rows are prepared and the loss is taken in the same way on a worker."""
    there, here = make(), make()
    with AsyncGradients(there, steps=4).run(seed=1) as run:
        ours = next(run)
    with ParallelRollouts(here, steps=4).for_each(ComputeGradients(here)).run(seed=1) as run:
        theirs = next(run)
    assert same(ours.values, theirs.values)
    assert (ours.scalars, ours.rows) == (theirs.scalars, theirs.rows)
    assert (ours.worker, theirs.worker) == (0, None)


def test_an_average_is_that_of_a_worker_only_if_all_are(batch: Batch) -> None:
    part = ComputeGradients(make())(batch)
    of = [attrs.evolve(part, worker=index) for index in (0, 0, 1)]
    (alike,) = from_items(of[:2]).combine(AverageGradients(2))
    (mixed,) = from_items(of[1:]).combine(AverageGradients(2))
    assert (alike.worker, mixed.worker) == (0, None)


def test_weights_go_to_one_worker_only_if_there_is_one(batch: Batch) -> None:
    workers = make()
    gradients = ComputeGradients(workers)(batch)
    with pytest.raises(SchemaError, match="come from none, or from several; use AsyncGradients, or update_all=True"):
        ApplyGradients(workers, update_all=False)(gradients)
    assert workers.policy.version == 0
    ApplyGradients(workers)(gradients)
    with pytest.raises(PlanError, match=r"pass workers, ComputeGradients\(workers\)"):
        ComputeGradients()(batch)


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


def test_a_batch_without_rows_changes_nothing(batch: Batch) -> None:
    """A mean over no rows would be NaN, and so would the weights."""
    workers = make()
    train = TrainOneStep(workers)
    before = workers.policy.state_dict()
    assert train(batch[:0]) == {}
    assert train.context.counters == {}
    assert same(workers.policy.state_dict(), before)


def test_epochs_over_minibatches_see_every_row_once(batch: Batch) -> None:
    """F12: 12 rows in minibatches of 5 make 3 steps an epoch; shuffled anew for every epoch, from the run's seeds."""
    workers, seen = make(), []
    learn = workers.policy.learn_mode
    update = learn.update
    learn.update = lambda part, _: seen.append(part.reward.tolist()) or update(part)  # type: ignore[method-assign]
    train = TrainOneStep(workers, num_sgd_iter=2, minibatch_size=5)
    train(batch)
    assert train.context.counters == {"trained": 24, "updates": 6}
    assert [len(part) for part in seen] == [5, 5, 2, 5, 5, 2]
    epochs = [list(chain(*seen[:3])), list(chain(*seen[3:]))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(batch.reward.tolist())
    assert epochs[0] != epochs[1] != batch.reward.tolist()


@pytest.mark.parametrize("settings", [{"num_sgd_iter": 0}, {"minibatch_size": 0}])
def test_epochs_and_minibatches_are_at_least_one(settings: dict[str, int]) -> None:
    with pytest.raises(PlanError, match=">= 1, got 0"):
        TrainOneStep(make(), **settings)


def test_a_target_divergence_needs_a_learner_that_reports_one(batch: Batch) -> None:
    with pytest.raises(PlanError, match="DQNPolicy reports no kl"):
        TrainOneStep(make(), target_kl=0.1)(batch)
