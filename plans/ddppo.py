"""DD-PPO: every worker learns from its own experience with the gradients of all; only scalars are sent here."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    GAE,
    ConcatBatches,
    FollowWorkers,
    ParallelRollouts,
    StandardMetricsReporting,
    TrainAllReduce,
)
from flowrl.operators.options import EarlyStoppingSettings, ScaledRewards
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = PPOPolicy.configured


@attrs.define(kw_only=True)
class Config(PPOPolicy.Settings, ScaledRewards, EarlyStoppingSettings, ActingConfig):
    """Defaults that solve CartPole-v1 within 100 000 env steps. Sizes of batches count all workers."""

    fragment_steps: int = 32
    gamma: float = 0.98
    lam: float = 0.8
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0
    clip_end: float | None = 0.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch, almost all of it on the workers: act, estimate advantages, learn in step, report."""
    share = max(1, config.num_workers)  # each worker holds one part of the batch

    # (1) Each worker acts with its own weights; estimate advantages per environment and fragment.
    rollouts = ParallelRollouts(workers, mode="raw", steps=config.fragment_steps)
    samples = rollouts.for_each(GAE(config.gamma, config.lam))
    batches = samples.combine(ConcatBatches(-(-config.train_batch_size // share)))

    # (2) Several epochs over its own batch, each step with the mean of all gradients: weights stay identical.
    epochs: dict[str, Any] = {"num_sgd_iter": config.num_sgd_iter, "minibatch_size": -(-config.minibatch_size // share)}
    learned = batches.for_each(TrainAllReduce(**epochs, target_kl=config.target_kl), name="TrainOneStep")

    # (3) Only scalars arrive here; a result every `report_every` env steps.
    return StandardMetricsReporting(learned.gather_sync(FollowWorkers(workers)), workers, config)


class DDPPO(Trainer):
    """`DDPPO(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
