"""Rainbow: DQN with six improvements at once: double, dueling, n-step, prioritized, distributional, noisy."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.plans import c51, dqn
from flowrl.policies import DQNPolicy
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(c51.Config):
    """The settings of C51, with everything switched on; defaults that solve CartPole-v1 within 50 000 env steps.

    Double Q-learning, a dueling network and three-step returns are the defaults of DQN already.
    """

    noisy: bool = True
    prioritized: bool = True
    priority_alpha: float = 0.5
    epsilon_end: float = 0.0  # the noise explores alone by then


def policy(config: Config, observation_space: Any, action_space: Any) -> DQNPolicy:
    """The policy of C51."""
    return c51.policy(config, observation_space, action_space, "Rainbow")


class Rainbow(Trainer):
    """`Rainbow(env="CartPole-v1").train(until={"env_steps": 20_000})`; plan and policy are those of C51."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
