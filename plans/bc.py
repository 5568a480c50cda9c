"""BC: behavioral cloning, an actor that learns to repeat the actions of a dataset; without an environment."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep
from flowrl.policies import BCPolicy
from flowrl.rollout import Workers
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer

policy = BCPolicy.configured


@attrs.define(kw_only=True)
class Config(BCPolicy.Settings, OfflineConfig):
    """Defaults for small networks and any dataset."""


def execution_plan(workers: Workers, config: Config) -> Plan:
    """One stream, in which all rows count alike."""
    # (1) Rows of the dataset, reshuffled in each epoch, with actions in the policy's scale.
    rows = OfflineRows(workers, config.source, config.batch_size, epochs=config.epochs)

    # (2) Imitate; a result every `report_every` updates.
    train_op = rows.for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, config)


class BC(OfflineTrainer):
    """`BC(data="data/cartpole").train(until={"updates": 2_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
