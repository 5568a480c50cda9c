"""A3C: gradients computed where experience is collected, applied one by one as they arrive."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import ApplyGradients, AsyncGradients, StandardMetricsReporting
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
    fragment_steps: int = positive(16)  #: steps of each environment of a worker in one gradient
    in_flight: int = positive(1)  #: gradients that each worker is asked for at a time
    gamma: float = fraction(0.99)  #: discount per step
    lam: float = fraction(0.95)  #: decay of the advantage's trace; 1 as in the paper

    # Learning
    learning_rate: Setting = scheduled(1e-3)  #: of Adam, at the beginning
    learning_rate_end: float | None = 0.0  #: at the end of the schedule; None: as at the beginning
    schedule_steps: int = positive(500_000)  #: env steps of the schedule
    entropy_coef: Setting = scheduled(0.0)  #: weight of the entropy
    value_coef: float = 0.5  #: weight of the value loss
    grad_clip: float | None = positive(0.5)  #: largest norm of the gradient

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> A2CPolicy:
    """The policy that acts and learns: the loss is that of A2C."""
    return A2CPolicy(
        observation_space,
        action_space,
        hidden=config.hidden,
        squash=config.squash,
        log_std=config.log_std,
        gamma=config.gamma,
        lam=config.lam,
        learning_rate=schedule(config.learning_rate, config.learning_rate_end, config.schedule_steps),
        entropy_coef=schedule(config.entropy_coef),
        value_coef=config.value_coef,
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch: gradients from the workers, applied here, and a result."""
    # (1) Every worker acts, and computes the gradient of what it did.
    gradients = AsyncGradients(workers, config.in_flight, steps=config.fragment_steps)

    # (2) One step with each; its worker goes on with the weights that came of it, the others with what they have.
    train_op = gradients.for_each(ApplyGradients(workers, update_all=False))

    # (3) A result every so many env steps.
    return StandardMetricsReporting(train_op, workers, config)


class A3C(Trainer):
    """`A3C(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
