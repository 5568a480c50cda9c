"""TRPO: steps of the policy in a trust region, which natural gradients and a line search find."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import GAE, ConcatBatches, ParallelRollouts, StandardMetricsReporting, TrainOneStep
from flowrl.operators.options import EpochSettings, NormalizedRollouts, ScaledRewards
from flowrl.policies import TRPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = TRPOPolicy.configured


@attrs.define(kw_only=True)
class Config(TRPOPolicy.Settings, ScaledRewards, NormalizedRollouts, EpochSettings, ActingConfig):
    """Defaults of sb3-contrib, with 8 environments for 2 048 env steps of a batch."""

    fragment_steps: int = 256
    train_batch_size: int = 2048
    num_sgd_iter: int = 10
    minibatch_size: int = 128


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch, as of PPO: act, estimate advantages, learn, report."""
    # (1) Act with the newest weights; estimate advantages per environment and fragment.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    samples = rollouts.for_each(GAE(config.gamma, config.lam))

    # (2) One step of the policy on each batch, then several epochs of the critic.
    batches = samples.combine(ConcatBatches(config.train_batch_size))
    epochs: dict[str, Any] = {"num_sgd_iter": config.num_sgd_iter, "minibatch_size": config.minibatch_size}
    train_op = batches.for_each(TrainOneStep(workers, **epochs))

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class TRPO(Trainer):
    """`TRPO(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
