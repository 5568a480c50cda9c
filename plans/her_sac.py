"""HER with SAC: hindsight for continuous actions."""

from __future__ import annotations

import attrs

from flowrl.plans import her_dqn, sac
from flowrl.schedules import Setting
from flowrl.trainer.config import fraction, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(sac.Config):
    """The settings of SAC, and what is relabelled; defaults for point reaching. Rows are real and relabelled ones."""

    env: str = "flowrl.envs.goals:point_reach"

    her_k: int = positive(4)  #: relabelled steps for each real one
    her_strategy: her_dqn.Strategy = "future"  #: whose achieved goals a step gets

    hidden: tuple[int, ...] = sizes(64, 64)  #: sizes of the hidden layers of the actor and of each critic
    gamma: float = fraction(0.95)  #: discount per step
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    batch_size: int = positive(128)  #: rows of an update
    temperature: float = positive(0.1)  #: what a unit of entropy is worth, at first
    replay_ratio: float = positive(16.0)  #: rows trained on per row stored


class HERSAC(Trainer):
    """`HERSAC(env="flowrl.envs.goals:point_reach").train(until={"env_steps": 20_000})`.

    Its policy is that of SAC, its plan that of HER with DQN.
    """

    Config = Config
    policy = staticmethod(sac.policy)
    execution_plan = staticmethod(her_dqn.execution_plan)
