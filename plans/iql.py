"""IQL: implicit Q-learning from the actions of a dataset alone, for continuous and discrete actions."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep, UpdateTargetNetwork
from flowrl.operators.options import TargetNetworkSettings
from flowrl.policies import IQLPolicy
from flowrl.policies.iql import ImplicitQSettings
from flowrl.rollout import Workers
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer

#: The columns that Q-learning reads.
TRANSITION = ("obs", "action", "reward", "next_obs", "terminated")

policy = IQLPolicy.configured


@attrs.define(kw_only=True)
class Config(ImplicitQSettings, TargetNetworkSettings, OfflineConfig):
    """Defaults as published."""

    target_every: int = 1
    tau: float = 0.005


def execution_plan(workers: Workers, config: Any) -> Plan:
    """One stream of transitions; CQL shares it."""
    # (1) Rows of the dataset, reshuffled in each epoch, with actions in the policy's scale.
    rows = OfflineRows(workers, config.source, config.batch_size, epochs=config.epochs, needs=TRANSITION)

    # (2) Learn from them; the target networks follow. A result every `report_every` updates.
    train = rows.for_each(TrainOneStep(workers))
    train_op = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))
    return StandardMetricsReporting(train_op, workers, config)


class IQL(OfflineTrainer):
    """`IQL(data="data/cartpole").train(until={"updates": 5_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
