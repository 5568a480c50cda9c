"""BC: behavioural cloning, an actor that learns from a dataset to do what was done; without an environment."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep
from flowrl.policies import BCPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import positive, scheduled, sizes
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer


@attrs.define(kw_only=True)
class Config(OfflineConfig):
    """Defaults for small networks and any dataset."""

    hidden: tuple[int, ...] = sizes(256, 256)  #: sizes of the hidden layers
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    grad_clip: float | None = positive(None)  #: largest norm of the gradient


def policy(config: Config, observation_space: Any, action_space: Any) -> BCPolicy:
    """The policy that learns."""
    return BCPolicy(
        observation_space,
        action_space,
        hidden=config.hidden,
        learning_rate=schedule(config.learning_rate),
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One stream, of which every row counts alike."""
    # (1) Rows of the dataset, shuffled anew in each epoch, with actions in the policy's numbers.
    rows = OfflineRows(workers, config.data, config.batch_size, epochs=config.epochs)

    # (2) Learn to do what was done; a result every so many updates.
    train_op = rows.for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, config)


class BC(OfflineTrainer):
    """`BC(data="data/cartpole").train(until={"updates": 2_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
