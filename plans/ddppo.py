"""DD-PPO: every worker learns from its own experience with the gradients of all; only scalars come here."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    GAE,
    ConcatBatches,
    FollowWorkers,
    ParallelRollouts,
    ScaleRewards,
    StandardMetricsReporting,
    TrainOneStep,
)
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 within 100 000 env steps."""

    # The network
    hidden: tuple[int, ...] = sizes(64, 64)  #: sizes of the hidden layers, of the actor and of the critic
    squash: bool = False  #: continuous actions through tanh into their bounds, instead of clipping
    log_std: float = 0.0  #: of continuous actions, before learning

    # Experience
    fragment_steps: int = positive(32)  #: steps of each environment in a fragment
    train_batch_size: int = positive(256)  #: env steps that are learned from at a time, of all workers
    gamma: float = fraction(0.98)  #: discount per step
    lam: float = fraction(0.8)  #: decay of the advantage's trace
    reward_scale: float = positive(1.0)  #: factor of the rewards that are learned from

    # Learning
    num_sgd_iter: int = positive(20)  #: epochs over a batch
    minibatch_size: int = positive(256)  #: rows of an optimiser step, of all workers
    learning_rate: Setting = scheduled(1e-3)  #: of Adam, at the beginning
    learning_rate_end: float | None = 0.0  #: at the end of the schedule; None: as at the beginning
    clip: Setting = scheduled(0.2)  #: ε of the ratio, at the beginning
    clip_end: float | None = 0.0  #: at the end of the schedule; None: as at the beginning
    entropy_coef: Setting = scheduled(0.0)  #: weight of the entropy, at the beginning
    entropy_coef_end: float | None = None  #: at the end of the schedule; None: as at the beginning
    schedule_steps: int = positive(100_000)  #: env steps of the schedules
    value_coef: float = 0.5  #: weight of the value loss
    value_clip: float | None = positive(None)  #: how far values may move from the old ones; None: no limit
    standardize: bool = True  #: the advantages of each minibatch
    target_kl: float | None = positive(None)  #: divergence that ends the epochs of a batch
    grad_clip: float | None = positive(0.5)  #: largest norm of the gradient

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> PPOPolicy:
    """The policy that acts and learns."""
    return PPOPolicy(
        observation_space,
        action_space,
        hidden=config.hidden,
        squash=config.squash,
        log_std=config.log_std,
        gamma=config.gamma,
        lam=config.lam,
        learning_rate=schedule(config.learning_rate, config.learning_rate_end, config.schedule_steps),
        clip=schedule(config.clip, config.clip_end, config.schedule_steps),
        entropy_coef=schedule(config.entropy_coef, config.entropy_coef_end, config.schedule_steps),
        value_coef=config.value_coef,
        value_clip=config.value_clip,
        standardize=config.standardize,
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch, almost all of it on the workers: act, estimate advantages, learn together, report."""
    share = max(1, config.num_workers)  # of what all workers learn from, each has one part

    # (1) Each worker acts with its own weights; advantages per environment and fragment.
    rollouts = ParallelRollouts(workers, mode="raw", steps=config.fragment_steps)
    if config.reward_scale != 1:
        rollouts = rollouts.for_each(ScaleRewards(config.reward_scale))
    batches = rollouts.for_each(GAE(config.gamma, config.lam))
    batches = batches.combine(ConcatBatches(-(-config.train_batch_size // share)))

    # (2) Several epochs over its own batch, each step with the mean of everybody's gradients: weights stay the same.
    learn = TrainOneStep(
        all_reduce=True,
        num_sgd_iter=config.num_sgd_iter,
        minibatch_size=-(-config.minibatch_size // share),
        target_kl=config.target_kl,
    )

    # (3) Only scalars come here, and a result every so many env steps.
    train_op = batches.for_each(learn).gather_sync(FollowWorkers(workers))
    return StandardMetricsReporting(train_op, workers, config)


class DDPPO(Trainer):
    """`DDPPO(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
