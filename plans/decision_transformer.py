"""Decision Transformer: from a dataset, actions as the next words of sequences that begin with the return to get."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import OfflineRows, StandardMetricsReporting, TrainOneStep
from flowrl.policies import DecisionTransformerPolicy
from flowrl.rollout import Workers
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer

policy = DecisionTransformerPolicy.configured


@attrs.define(kw_only=True)
class Config(DecisionTransformerPolicy.Settings, OfflineConfig):
    """Sizes, batches and rates as published for continuous control."""

    batch_size: int = 64


def execution_plan(workers: Workers, config: Config) -> Plan:
    """The plan of BC, with sequences in place of rows."""
    # (1) Shuffled rows, each with the steps before it, and all of them with their returns to go.
    needs = ("obs", "action", "reward", "terminated", "truncated", "episode_id", "t")
    context = config.context
    rows = OfflineRows(workers, config.source, config.batch_size, epochs=config.epochs, needs=needs, context=context)

    # (2) Imitate, given what the actions led to; a result every `report_every` updates.
    train_op = rows.for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, config)


class DecisionTransformer(OfflineTrainer):
    """`DecisionTransformer(data="data/cartpole").train(until={"updates": 5_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
