"""APPO: PPO's clipped loss on experience that arrives asynchronously, corrected by V-trace."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    ConcatBatches,
    ParallelRollouts,
    StandardMetricsReporting,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.options import EpochSettings, KLPenalty, LagSettings, ScaledRewards, TargetNetworkSettings
from flowrl.policies import APPOPolicy, VTraceLimits
from flowrl.policies.appo import TargetPolicySettings
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = APPOPolicy.configured


@attrs.define(kw_only=True)
class Config(
    TargetPolicySettings,
    VTraceLimits,
    ScaledRewards,
    KLPenalty,
    LagSettings,
    TargetNetworkSettings,
    EpochSettings,
    ActingConfig,
):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    fragment_steps: int = 32
    lam: float = 0.95
    target_every: int = 4
    num_sgd_iter: int = 4
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: fragments as they arrive, the learner, then the target policy."""
    # (1) Fragments of all workers as they become ready, in batches.
    requests = config.requests(workers, config.num_sgd_iter, config.minibatch_size)
    rollouts = ParallelRollouts(workers, mode="async", steps=config.fragment_steps, **requests)
    batches = rollouts.combine(ConcatBatches(config.train_batch_size))

    # (2) Several epochs over each batch, clipped around the target policy, which then follows.
    learn = TrainOneStep(workers, num_sgd_iter=config.num_sgd_iter, minibatch_size=config.minibatch_size)
    train_op = batches.for_each(learn).for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class APPO(Trainer):
    """`APPO(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
