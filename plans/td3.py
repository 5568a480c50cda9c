"""TD3: DDPG with twin critics, noise on the targets' actions, and an actor and targets that wait for the critics."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.plans import ddpg, dqn
from flowrl.policies import TD3Policy
from flowrl.trainer.config import not_negative, positive
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(ddpg.Config):
    """The settings of DDPG and those of its three additions; the critics are always two."""

    policy_delay: int = positive(2)  #: the actor learns in every so many updates
    target_every: int = positive(2)  #: updates between moves of the target networks
    target_noise: float = not_negative(0.2)  #: deviation of the noise on the target actor's actions
    target_noise_clip: float = positive(0.5)  #: its bound


def policy(config: Config, observation_space: Any, action_space: Any) -> TD3Policy:
    """The policy that acts and learns."""
    return TD3Policy(
        observation_space,
        action_space,
        policy_delay=config.policy_delay,
        target_noise=config.target_noise,
        target_noise_clip=config.target_noise_clip,
        **ddpg.policy_settings(config),
    )


class TD3(Trainer):
    """`TD3(env="Pendulum-v1").train(until={"env_steps": 10_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
