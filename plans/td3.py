"""TD3: DDPG with twin critics, noise on the targets' actions, and delayed updates of the actor and the targets."""

from __future__ import annotations

import attrs

from flowrl.plans import ddpg, dqn
from flowrl.policies import TD3Policy
from flowrl.trainer.trainer import Trainer

policy = TD3Policy.configured


@attrs.define(kw_only=True)
class Config(TD3Policy.Settings, ddpg.Config):
    """The settings of DDPG and of the three additions; there are always two critics."""

    target_every: int = 2


class TD3(Trainer):
    """`TD3(env="Pendulum-v1").train(until={"env_steps": 10_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
