"""C51: DQN that learns the distribution of returns, as probabilities of fixed atoms."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.networks.heads import CategoricalSettings
from flowrl.plans import dqn
from flowrl.policies import CategoricalHead, DQNPolicy
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(CategoricalSettings, dqn.Config):
    """The settings of DQN and those of the distribution; defaults that solve CartPole-v1 within 50 000 env steps."""


def policy(config: Config, observation_space: Any, action_space: Any, algorithm: str = "C51") -> DQNPolicy:
    """DQN's policy, with a distribution of returns in place of their mean."""
    head = CategoricalHead(config.atoms, config.v_min, config.v_max)
    return DQNPolicy.configured(config, observation_space, action_space, head=head, algorithm=algorithm)


class C51(Trainer):
    """`C51(env="CartPole-v1").train(until={"env_steps": 20_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
