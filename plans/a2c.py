"""A2C: one synchronous policy-gradient step on every batch of fresh experience."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import GAE, ConcatBatches, ParallelRollouts, StandardMetricsReporting, TrainOneStep
from flowrl.operators.options import BatchSettings, Microbatches, NormalizedRollouts, ScaledRewards
from flowrl.policies import A2CPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = A2CPolicy.configured


@attrs.define(kw_only=True)
class Config(A2CPolicy.Settings, ScaledRewards, Microbatches, NormalizedRollouts, BatchSettings, ActingConfig):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    fragment_steps: int = 16
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: act, estimate advantages, take one step, report."""
    # (1) Act with the newest weights; estimate advantages per environment and fragment.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    samples = rollouts.for_each(GAE(config.gamma, config.lam))

    # (2) One step on each batch.
    train_op = samples.combine(ConcatBatches(config.train_batch_size)).for_each(TrainOneStep(workers))

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class A2C(Trainer):
    """`A2C(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
