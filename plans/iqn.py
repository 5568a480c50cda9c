"""IQN: DQN that learns the quantile of the distribution of returns at any level."""

from __future__ import annotations

import attrs

from flowrl.plans import dqn
from flowrl.policies import IQNPolicy
from flowrl.policies.iqn import ImplicitSettings
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import Trainer

policy = IQNPolicy.configured


@attrs.define(kw_only=True)
class Config(ImplicitSettings, dqn.Config):
    """The settings of DQN and those of the distribution; defaults for CartPole-v1 and 50 000 env steps."""

    learning_rate: NumberOrSchedule = 2e-3
    target_every: int = 250
    grad_clip: float | None = None  # the norm grows with the number of quantiles


class IQN(Trainer):
    """`IQN(env="CartPole-v1").train(until={"env_steps": 20_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
