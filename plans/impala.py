"""IMPALA: workers that never wait for the learner, and V-trace for the age of what they send."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.learners import Aggregators, LearnerGroup
from flowrl.operators import (
    CollectBatches,
    ConcatBatches,
    MixInReplay,
    ParallelRollouts,
    ScaleRewards,
    StandardMetricsReporting,
    TrainOneStep,
)
from flowrl.policies import IMPALAPolicy, VTraceLimits
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, not_negative, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    # The network
    hidden: tuple[int, ...] = sizes(64, 64)  #: sizes of the hidden layers, of the actor and of the critic
    squash: bool = False  #: continuous actions through tanh into their bounds, instead of clipping
    log_std: float = 0.0  #: of continuous actions, before learning

    # Experience
    fragment_steps: int = positive(16)  #: steps of each environment of a worker in a fragment
    in_flight: int = positive(2)  #: fragments that each worker is asked for at a time
    max_weight_lag: int | None = not_negative(None)  #: updates that their weights may be behind; None: any number
    train_batch_size: int = positive(128)  #: env steps that are learned from at a time
    replay_ratio: float = not_negative(0.0)  #: old fragments for each new one
    replay_slots: int = positive(100)  #: fragments kept for that
    gamma: float = fraction(0.99)  #: discount per step
    reward_scale: float = positive(1.0)  #: factor of the rewards that are learned from

    # V-trace
    lam: float = fraction(1.0)  #: decay of the traces
    rho_bar: float = positive(1.0)  #: largest weight of an error
    c_bar: float = positive(1.0)  #: largest weight of a trace
    rho_pg_bar: float = positive(1.0)  #: largest weight of an advantage

    # Learning
    num_aggregators: int = not_negative(0)  #: processes on Ray that join fragments to batches; 0: this process does
    num_learners: int = not_negative(0)  #: 0: this process learns; 1: a thread of it does; more: processes on Ray
    learn_in_flight: int = positive(2)  #: batches that these are given at a time
    learning_rate: Setting = scheduled(1e-3)  #: of Adam, at the beginning
    learning_rate_end: float | None = 0.0  #: at the end of the schedule; None: as at the beginning
    entropy_coef: Setting = scheduled(0.0)  #: weight of the entropy, at the beginning
    entropy_coef_end: float | None = None  #: at the end of the schedule; None: as at the beginning
    schedule_steps: int = positive(500_000)  #: env steps of the schedules
    value_coef: float = 0.5  #: weight of the value loss
    grad_clip: float | None = positive(0.5)  #: largest norm of the gradient

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> IMPALAPolicy:
    """The policy that acts and learns."""
    return IMPALAPolicy(
        observation_space,
        action_space,
        hidden=config.hidden,
        squash=config.squash,
        log_std=config.log_std,
        gamma=config.gamma,
        lam=config.lam,
        limits=VTraceLimits(rho_bar=config.rho_bar, c_bar=config.c_bar, rho_pg_bar=config.rho_pg_bar),
        learning_rate=schedule(config.learning_rate, config.learning_rate_end, config.schedule_steps),
        entropy_coef=schedule(config.entropy_coef, config.entropy_coef_end, config.schedule_steps),
        value_coef=config.value_coef,
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: fragments as they arrive, old ones among them if wanted, and the learner."""
    # (1) Fragments of every worker as they are ready.
    rollouts = ParallelRollouts(
        workers,
        mode="async",
        in_flight=config.in_flight,
        steps=config.fragment_steps,
        max_weight_lag=config.max_weight_lag,
    )
    if config.reward_scale != 1:
        rollouts = rollouts.for_each(ScaleRewards(config.reward_scale))
    if config.replay_ratio:
        rollouts = rollouts.combine(MixInReplay(config.replay_slots, config.replay_ratio))

    # (2) Batches of them: made here, or by processes from which they go to the learners.
    if config.num_aggregators:
        aggregators = Aggregators(config.num_aggregators, address=config.address)
        collected = rollouts.combine(CollectBatches(config.train_batch_size))
        batches = collected.call(aggregators, "join", in_flight=2 * config.num_aggregators)
    else:
        batches = rollouts.combine(ConcatBatches(config.train_batch_size))

    # (3) A step on each: here, or by learners that work while the next ones come. The loss corrects for their age.
    if config.num_learners:
        learners = LearnerGroup(workers, config.num_learners, "thread" if config.num_learners == 1 else "actor")
        train_op = batches.call(learners, "train", in_flight=config.learn_in_flight)
    else:
        train_op = batches.for_each(TrainOneStep(workers))

    # (4) A result every so many env steps.
    return StandardMetricsReporting(train_op, workers, config)


class IMPALA(Trainer):
    """`IMPALA(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
