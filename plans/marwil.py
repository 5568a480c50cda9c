"""MARWIL: imitation of a dataset in which what went better than expected counts more; without an environment."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data.datasets.returns_view import OF_STEPS
from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep
from flowrl.plans import bc
from flowrl.policies import MARWILPolicy
from flowrl.rollout import BaseWorkers
from flowrl.trainer.offline import OfflineTrainer

policy = MARWILPolicy.configured


@attrs.define(kw_only=True)
class Config(MARWILPolicy.Settings, bc.Config):
    """Those of BC, and what advantages count for."""


def execution_plan(workers: BaseWorkers, config: Config) -> Plan:
    """That of BC, but rows know what came of them."""
    # (1) Shuffled rows, with the discounted return of the rest of their episodes.
    needs = ("obs", "action", *OF_STEPS)
    settings: dict[str, Any] = {"epochs": config.epochs, "needs": needs, "returns": config.gamma}
    rows = OfflineRows(workers, config.data, config.batch_size, **settings)

    # (2) Learn to do what was done, the more the better it went; a result every so many updates.
    train_op = rows.for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, config)


class MARWIL(OfflineTrainer):
    """`MARWIL(data="data/cartpole").train(until={"updates": 2_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
