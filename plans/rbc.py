"""RBC: behavioural cloning whose values obey the environment: the squared soft Bellman error regularises it."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.plans import sqil
from flowrl.policies import RBCPolicy
from flowrl.trainer.config import not_negative
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(sqil.Config):
    """The settings of SQIL, and how much of the loss is not cloning."""

    bellman_weight: float = not_negative(0.01)  #: of the squared soft Bellman error at reward 0; 0 clones alone


def policy(config: Config, observation_space: Any, action_space: Any) -> RBCPolicy:
    """The policy that acts and learns."""
    return RBCPolicy(
        observation_space,
        action_space,
        temperature=config.temperature,
        bellman_weight=config.bellman_weight,
        **sqil.for_soft_q(config),
    )


class RBC(Trainer):
    """`RBC(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`; its plan is SQIL's."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(sqil.execution_plan)
