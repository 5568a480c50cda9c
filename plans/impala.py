"""IMPALA: workers that never wait for the learner, and V-trace that corrects for stale weights."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import ConcatBatches, ParallelRollouts, StandardMetricsReporting, TrainOneStep
from flowrl.operators.options import Aggregated, BatchSettings, LagSettings, Learners, ReplayedFragments, ScaledRewards
from flowrl.policies import IMPALAPolicy, VTraceLimits
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = IMPALAPolicy.configured


@attrs.define(kw_only=True)
class Config(
    IMPALAPolicy.Settings,
    VTraceLimits,
    ScaledRewards,
    ReplayedFragments,
    Aggregated,
    Learners,
    LagSettings,
    BatchSettings,
    ActingConfig,
):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    fragment_steps: int = 16
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: fragments as they arrive, and the learner."""
    # (1) Fragments of all workers as they become ready, in batches.
    requests = config.requests(workers, replayed=config.replay_ratio)
    rollouts = ParallelRollouts(workers, mode="async", steps=config.fragment_steps, **requests)
    batches = rollouts.combine(ConcatBatches(config.train_batch_size))

    # (2) A step on each batch. The loss corrects for stale weights.
    train_op = batches.for_each(TrainOneStep(workers))

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class IMPALA(Trainer):
    """`IMPALA(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
