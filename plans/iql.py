"""IQL: implicit Q-learning from a dataset, of its own actions alone, for continuous and for discrete ones."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep, UpdateTargetNetwork
from flowrl.policies import IQLPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import fraction, not_negative, positive, scheduled, sizes
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer

#: The columns of a transition that Q-learning learns from.
TRANSITION = ("obs", "action", "reward", "next_obs", "terminated")


@attrs.define(kw_only=True)
class Config(OfflineConfig):
    """Defaults as they were published."""

    # The networks
    hidden: tuple[int, ...] = sizes(256, 256)  #: sizes of the hidden layers of each network

    # Learning
    gamma: float = fraction(0.99)  #: discount per step
    expectile: float = fraction(0.7)  #: which of the data's actions count: 0.5 their mean, 1 the best
    beta: float = not_negative(3.0)  #: how much an advantage counts in imitating; 0 is BC
    max_weight: float = positive(100.0)  #: the most that a row counts in it
    learning_rate: Setting = scheduled(3e-4)  #: of Adam
    grad_clip: float | None = positive(None)  #: largest norm of the gradient
    target_every: int = positive(1)  #: updates between moves of the target networks
    tau: float = fraction(0.005)  #: how far they move then


def policy(config: Config, observation_space: Any, action_space: Any) -> IQLPolicy:
    """The policy that learns."""
    return IQLPolicy(
        observation_space,
        action_space,
        expectile=config.expectile,
        beta=config.beta,
        max_weight=config.max_weight,
        hidden=config.hidden,
        gamma=config.gamma,
        learning_rate=schedule(config.learning_rate),
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Any) -> Plan:
    """One stream of transitions; CQL learns so too."""
    # (1) Rows of the dataset, shuffled anew in each epoch, with actions in the policy's numbers.
    rows = OfflineRows(workers, config.data, config.batch_size, epochs=config.epochs, needs=TRANSITION)

    # (2) Learn from them; the target networks follow. A result every so many updates.
    train = rows.for_each(TrainOneStep(workers))
    train_op = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))
    return StandardMetricsReporting(train_op, workers, config)


class IQL(OfflineTrainer):
    """`IQL(data="data/cartpole").train(until={"updates": 5_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
