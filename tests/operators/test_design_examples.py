"""The plans that people try first run as they stand, down to the results."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from flowrl import Plan
from flowrl.data import ReplayBuffer
from flowrl.operators import (
    ApplyGradients,
    AsyncGradients,
    ConcatBatches,
    Concurrently,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    debug_print,
)
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.plans.small import without_clock


def batches(workers: WorkerSet, config: dict[str, Any]) -> Plan:
    rollouts = ParallelRollouts(workers, mode="bulk_sync")
    train_op = (
        rollouts.combine(ConcatBatches(min_batch_size=config["train_batch_size"]))
        .for_each(debug_print)
        .for_each(TrainOneStep(workers))
    )
    return StandardMetricsReporting(train_op, workers, config)


def gradients(workers: WorkerSet, config: dict[str, Any]) -> Plan:
    grads = AsyncGradients(workers)
    train_op = grads.for_each(ApplyGradients(workers, update_all=False))
    return StandardMetricsReporting(train_op, workers, config)


def replay(workers: WorkerSet, config: dict[str, Any]) -> Plan:
    buffer = ReplayBuffer(1_000)
    store_op = ParallelRollouts(workers, mode="bulk_sync").for_each(StoreToReplay(buffer))
    replay_op = Replay(buffer).for_each(TrainOneStep(workers))
    train_op = Concurrently([store_op, replay_op], mode="round_robin", output_indexes=[1])
    return StandardMetricsReporting(train_op, workers, config)


# With 2 environments and 32 steps a fragment has 64 rows; after 1024 env steps, 16 fragments, comes a result.
EXAMPLES: dict[str, tuple[Callable[[WorkerSet, dict[str, Any]], Plan], dict[str, int]]] = {
    "ConcatBatches": (batches, {"env_steps": 1024, "trained": 1024, "updates": 8}),
    "AsyncGradients": (gradients, {"env_steps": 1024, "trained": 1024, "updates": 16}),
    "Replay": (replay, {"env_steps": 1024, "inserted": 1024, "sampled": 512, "trained": 512, "updates": 16}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run_as_they_stand(name: str) -> None:
    """F12, D1: a plain dict as configuration; results with every counter, and the same ones again."""
    make, counters = EXAMPLES[name]
    config = {"train_batch_size": 128}

    def results() -> list[dict[str, Any]]:
        policy = lambda *spaces: DQNPolicy(*spaces, hidden=(16,), device="cpu")  # noqa: E731
        workers = WorkerSet("CartPole-v1", policy, envs_per_worker=2)
        with workers, make(workers, config).run(seed=1) as run:
            return [without_clock(each) for each in islice(run, 2)]

    found = results()
    assert {unit: found[0][unit] for unit in counters} == counters
    assert [each["env_steps"] for each in found] == sorted({each["env_steps"] for each in found})
    assert all(each["loss"] > 0 and each["episodes"] > 0 and each["episode_return"] > 0 for each in found)
    assert same(found, results())


def test_debug_print_shows_what_is_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Two fragments of two environments side by side."""
    workers = WorkerSet("CartPole-v1", lambda *spaces: DQNPolicy(*spaces, device="cpu"), envs_per_worker=2)
    with workers, batches(workers, {"train_batch_size": 128}).run() as run:
        next(run)
    assert re.search(r"^  obs +float32\[32, 4, 4\] +min -[\d.]+  mean", capsys.readouterr().out, re.MULTILINE)
