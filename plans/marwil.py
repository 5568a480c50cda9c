"""MARWIL: imitation of a dataset that weights actions by their advantage; without an environment."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data.datasets.returns_view import OF_STEPS
from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep
from flowrl.plans import bc
from flowrl.policies import MARWILPolicy
from flowrl.rollout import Workers
from flowrl.trainer.offline import OfflineTrainer

policy = MARWILPolicy.configured


@attrs.define(kw_only=True)
class Config(MARWILPolicy.Settings, bc.Config):
    """The settings of BC, and the weighting by advantages."""


def execution_plan(workers: Workers, config: Config) -> Plan:
    """The plan of BC, with rows that carry their returns."""
    # (1) Shuffled rows, with the discounted return to the end of their episodes.
    needs = ("obs", "action", *OF_STEPS)
    settings: dict[str, Any] = {"epochs": config.epochs, "needs": needs, "returns": config.gamma}
    rows = OfflineRows(workers, config.source, config.batch_size, **settings)

    # (2) Imitate, weighted by advantage; a result every `report_every` updates.
    train_op = rows.for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, config)


class MARWIL(OfflineTrainer):
    """`MARWIL(data="data/cartpole").train(until={"updates": 2_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
