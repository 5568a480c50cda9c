"""QR-DQN: DQN that learns the quantiles of the distribution of returns."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.networks.heads import QuantileSettings
from flowrl.plans import dqn
from flowrl.policies import DQNPolicy, QuantileHead
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(QuantileSettings, dqn.Config):
    """The settings of DQN and one more; defaults that solve CartPole-v1 within 50 000 env steps."""

    learning_rate: NumberOrSchedule = 2e-3
    grad_clip: float | None = None  # the norm grows with the number of quantiles


def policy(config: Config, observation_space: Any, action_space: Any) -> DQNPolicy:
    """DQN's policy, with quantiles of returns in place of their mean."""
    head = QuantileHead(config.quantiles)
    return DQNPolicy.configured(config, observation_space, action_space, head=head, algorithm="QR-DQN")


class QRDQN(Trainer):
    """`QRDQN(env="CartPole-v1").train(until={"env_steps": 20_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
