"""RBC: behavioral cloning, regularized by the squared soft Bellman error of its values."""

from __future__ import annotations

import attrs

from flowrl.plans import sqil
from flowrl.policies import RBCPolicy
from flowrl.policies.soft_q import BellmanSettings
from flowrl.trainer.trainer import Trainer

policy = RBCPolicy.configured


@attrs.define(kw_only=True)
class Config(BellmanSettings, sqil.Config):
    """The settings of SQIL, and the weight of the regularization."""

    bellman_weight: float = 0.01


class RBC(Trainer):
    """`RBC(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`; its plan is SQIL's."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(sqil.execution_plan)
