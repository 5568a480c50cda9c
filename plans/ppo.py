"""PPO: clipped policy gradients, several epochs over each batch of fresh experience; with a memory where asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    GAE,
    ConcatBatches,
    GatherStatistics,
    NormalizeRewards,
    ParallelRollouts,
    ScaleRewards,
    StandardMetricsReporting,
    TrainOneStep,
    Unroll,
    UpdateKL,
    UpdateStatistics,
)
from flowrl.policies import PPOPolicy, RecurrentPPOPolicy
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
    recurrent: Literal["lstm", "gru"] | None = None  #: a memory before the hidden layers, which both share
    memory_size: int = positive(64)  #: its units
    sequence_length: int = positive(32)  #: steps that it is unrolled over in learning

    # Experience
    fragment_steps: int = positive(32)  #: steps of each environment in a batch
    train_batch_size: int = positive(256)  #: env steps that are learned from at a time
    gamma: float = fraction(0.98)  #: discount per step
    lam: float = fraction(0.8)  #: decay of the advantage's trace
    reward_scale: float = positive(1.0)  #: factor of the rewards that are learned from
    normalize_obs: bool = False  #: observations to mean 0 and deviation 1, by running statistics
    normalize_rewards: bool = False  #: rewards divided by the running deviation of the discounted return

    # Learning
    num_sgd_iter: int = positive(20)  #: epochs over a batch
    minibatch_size: int = positive(256)  #: rows of an optimiser step
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
    kl_coef: float = 0.0  #: weight of the KL penalty; if not 0, adapted to keep the divergence near kl_target
    kl_target: float = positive(0.01)  #: see kl_coef
    grad_clip: float | None = positive(0.5)  #: largest norm of the gradient

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> PPOPolicy:
    """The policy that acts and learns."""
    kind: Callable[..., PPOPolicy] = PPOPolicy
    if config.recurrent:
        kind = partial(RecurrentPPOPolicy, cell=config.recurrent, units=config.memory_size)
    return kind(
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
        kl_coef=config.kl_coef,
        grad_clip=config.grad_clip,
        normalize_obs=config.normalize_obs,
        normalize_rewards=config.normalize_rewards,
        **config.for_policy,
    )


def experience(workers: WorkerSet, config: Config) -> Plan:
    """Fragments of what the newest weights do, with the rewards that are to be learned from."""
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    if config.normalize_obs or config.normalize_rewards:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma))
    if config.normalize_rewards:
        rollouts = rollouts.for_each(NormalizeRewards(workers))
    if config.reward_scale != 1:
        rollouts = rollouts.for_each(ScaleRewards(config.reward_scale))
    return rollouts


def learn(rollouts: Plan, workers: WorkerSet, config: Config) -> Plan:
    """Advantages of these fragments, epochs over them, results."""
    # Advantages per environment and fragment.
    samples = rollouts.for_each(GAE(config.gamma, config.lam))
    if config.recurrent:
        samples = samples.for_each(Unroll(config.sequence_length, last="pad", across=False))

    # Several epochs over each batch.
    train_op = samples.combine(ConcatBatches(config.train_batch_size)).for_each(
        TrainOneStep(
            workers,
            num_sgd_iter=config.num_sgd_iter,
            minibatch_size=config.minibatch_size,
            target_kl=config.target_kl,
        )
    )
    if config.kl_coef:
        train_op = train_op.for_each(UpdateKL(workers, target=config.kl_target))

    # Statistics come into use when what was collected by the old ones has been learned from.
    if config.normalize_obs or config.normalize_rewards:
        train_op = train_op.for_each(UpdateStatistics(workers))

    # A result every so many env steps.
    return StandardMetricsReporting(train_op, workers, config)


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: act, estimate advantages, learn, report. Plans with other rewards put them in between."""
    return learn(experience(workers, config), workers, config)


class PPO(Trainer):
    """`PPO(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
