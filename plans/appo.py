"""APPO: PPO's clipped loss on experience that arrives asynchronously, corrected by V-trace."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    ConcatBatches,
    ParallelRollouts,
    ScaleRewards,
    StandardMetricsReporting,
    TrainOneStep,
    UpdateKL,
    UpdateTargetNetwork,
)
from flowrl.policies import APPOPolicy, VTraceLimits
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
    fragment_steps: int = positive(32)  #: steps of each environment of a worker in a fragment
    in_flight: int = positive(2)  #: fragments that each worker is asked for at a time
    max_weight_lag: int | None = not_negative(None)  #: updates that their weights may be behind; None: any number
    train_batch_size: int = positive(256)  #: env steps that are learned from at a time
    gamma: float = fraction(0.99)  #: discount per step
    reward_scale: float = positive(1.0)  #: factor of the rewards that are learned from

    # V-trace, and the target policy
    lam: float = fraction(0.95)  #: decay of the traces
    rho_bar: float = positive(1.0)  #: largest weight of an error
    c_bar: float = positive(1.0)  #: largest weight of a trace
    rho_pg_bar: float = positive(1.0)  #: largest weight of an advantage
    old_weight: float = positive(2.0)  #: largest weight of who acted against the target policy
    target_every: int = positive(4)  #: updates between copies to the target policy
    tau: float = fraction(1.0)  #: how far the target policy moves then; 1 copies

    # Learning
    num_sgd_iter: int = positive(4)  #: epochs over a batch
    minibatch_size: int = positive(256)  #: rows of an optimiser step
    learning_rate: Setting = scheduled(1e-3)  #: of Adam, at the beginning
    learning_rate_end: float | None = 0.0  #: at the end of the schedule; None: as at the beginning
    clip: Setting = scheduled(0.2)  #: ε of the ratio
    entropy_coef: Setting = scheduled(0.0)  #: weight of the entropy, at the beginning
    entropy_coef_end: float | None = None  #: at the end of the schedule; None: as at the beginning
    schedule_steps: int = positive(500_000)  #: env steps of the schedules
    value_coef: float = 0.5  #: weight of the value loss
    standardize: bool = True  #: the advantages of each minibatch
    kl_coef: float = 0.0  #: weight of the KL penalty; if not 0, adapted to keep the divergence near kl_target
    kl_target: float = positive(0.01)  #: see kl_coef
    grad_clip: float | None = positive(0.5)  #: largest norm of the gradient

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> APPOPolicy:
    """The policy that acts and learns."""
    return APPOPolicy(
        observation_space,
        action_space,
        hidden=config.hidden,
        squash=config.squash,
        log_std=config.log_std,
        gamma=config.gamma,
        lam=config.lam,
        limits=VTraceLimits(rho_bar=config.rho_bar, c_bar=config.c_bar, rho_pg_bar=config.rho_pg_bar),
        old_weight=config.old_weight,
        learning_rate=schedule(config.learning_rate, config.learning_rate_end, config.schedule_steps),
        clip=schedule(config.clip),
        entropy_coef=schedule(config.entropy_coef, config.entropy_coef_end, config.schedule_steps),
        value_coef=config.value_coef,
        standardize=config.standardize,
        kl_coef=config.kl_coef,
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: fragments as they arrive, the learner, and the target policy behind it."""
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
    batches = rollouts.combine(ConcatBatches(config.train_batch_size))

    # (2) Several epochs over each batch of them, around the target policy, which follows.
    learn = TrainOneStep(workers, num_sgd_iter=config.num_sgd_iter, minibatch_size=config.minibatch_size)
    train_op = batches.for_each(learn).for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))
    if config.kl_coef:
        train_op = train_op.for_each(UpdateKL(workers, target=config.kl_target))

    # (3) A result every so many env steps.
    return StandardMetricsReporting(train_op, workers, config)


class APPO(Trainer):
    """`APPO(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
