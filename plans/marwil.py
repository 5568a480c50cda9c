"""MARWIL: imitation of a dataset in which what went better than expected counts more; without an environment."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data.datasets.returns_view import OF_STEPS
from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep
from flowrl.plans import bc
from flowrl.policies import MARWILPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import schedule
from flowrl.trainer.config import fraction, not_negative, positive, proper_fraction
from flowrl.trainer.offline import OfflineTrainer


@attrs.define(kw_only=True)
class Config(bc.Config):
    """Those of BC, and what advantages count for."""

    beta: float = not_negative(1.0)  #: how much an advantage of the usual size counts; 0 is BC
    gamma: float = fraction(0.99)  #: discount per step
    value_coef: float = not_negative(1.0)  #: weight of the value's loss
    max_weight: float = positive(20.0)  #: the most that a row counts
    norm_rate: float = proper_fraction(0.01)  #: how far the mean square of advantages moves in an update


def policy(config: Config, observation_space: Any, action_space: Any) -> MARWILPolicy:
    """The policy that learns."""
    return MARWILPolicy(
        observation_space,
        action_space,
        beta=config.beta,
        gamma=config.gamma,
        value_coef=config.value_coef,
        max_weight=config.max_weight,
        norm_rate=config.norm_rate,
        hidden=config.hidden,
        learning_rate=schedule(config.learning_rate),
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
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
