"""A2C: one synchronous policy-gradient step on every batch of fresh experience."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    GAE,
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    GatherStatistics,
    NormalizeRewards,
    ParallelRollouts,
    ScaleRewards,
    SplitBatch,
    StandardMetricsReporting,
    TrainOneStep,
    UpdateStatistics,
)
from flowrl.policies import A2CPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    # The network
    hidden: tuple[int, ...] = sizes(64, 64)  #: sizes of the hidden layers, of the actor and of the critic
    squash: bool = False  #: continuous actions through tanh into their bounds, instead of clipping
    log_std: float = 0.0  #: of continuous actions, before learning

    # Experience
    fragment_steps: int = positive(16)  #: steps of each environment in a batch
    train_batch_size: int = positive(128)  #: env steps that are learned from at a time
    gamma: float = fraction(0.99)  #: discount per step
    lam: float = fraction(0.95)  #: decay of the advantage's trace
    reward_scale: float = positive(1.0)  #: factor of the rewards that are learned from
    normalize_obs: bool = False  #: observations to mean 0 and deviation 1, by running statistics
    normalize_rewards: bool = False  #: rewards divided by the running deviation of the discounted return

    # Learning
    microbatches: int = positive(1)  #: parts of a batch whose gradients are averaged before the step
    learning_rate: Setting = scheduled(1e-3)  #: of Adam, at the beginning
    learning_rate_end: float | None = 0.0  #: at the end of the schedule; None: as at the beginning
    entropy_coef: Setting = scheduled(0.0)  #: weight of the entropy, at the beginning
    entropy_coef_end: float | None = None  #: at the end of the schedule; None: as at the beginning
    schedule_steps: int = positive(500_000)  #: env steps of the schedules
    value_coef: float = 0.5  #: weight of the value loss
    grad_clip: float | None = positive(0.5)  #: largest norm of the gradient

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> A2CPolicy:
    """The policy that acts and learns."""
    return A2CPolicy(
        observation_space,
        action_space,
        hidden=config.hidden,
        squash=config.squash,
        log_std=config.log_std,
        gamma=config.gamma,
        lam=config.lam,
        learning_rate=schedule(config.learning_rate, config.learning_rate_end, config.schedule_steps),
        entropy_coef=schedule(config.entropy_coef, config.entropy_coef_end, config.schedule_steps),
        value_coef=config.value_coef,
        grad_clip=config.grad_clip,
        normalize_obs=config.normalize_obs,
        normalize_rewards=config.normalize_rewards,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: act, estimate advantages, take one step, report."""
    # (1) Act with the newest weights; advantages per environment and fragment.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    normalizes = config.normalize_obs or config.normalize_rewards
    if normalizes:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma))
    if config.normalize_rewards:
        rollouts = rollouts.for_each(NormalizeRewards(workers))
    if config.reward_scale != 1:
        rollouts = rollouts.for_each(ScaleRewards(config.reward_scale))
    batches = rollouts.for_each(GAE(config.gamma, config.lam)).combine(ConcatBatches(config.train_batch_size))

    # (2) One step on each batch; its gradient at once, or in parts that need less memory.
    if config.microbatches == 1:
        train_op = batches.for_each(TrainOneStep(workers))
    else:
        train_op = (
            batches.combine(SplitBatch(config.microbatches))
            .for_each(ComputeGradients(workers))
            .combine(AverageGradients(config.microbatches))
            .for_each(ApplyGradients(workers))
        )

    # Statistics come into use when what was collected by the old ones has been learned from.
    if normalizes:
        train_op = train_op.for_each(UpdateStatistics(workers))

    # (3) A result every so many env steps.
    return StandardMetricsReporting(train_op, workers, config)


class A2C(Trainer):
    """`A2C(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
