"""HER with SAC: hindsight for continuous actions."""

from __future__ import annotations

import attrs

from flowrl.plans import her_dqn, sac
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import Trainer

policy = sac.policy


@attrs.define(kw_only=True)
class Config(her_dqn.HindsightSettings, sac.Config):
    """The settings of SAC and of hindsight; defaults for point reaching."""

    env: str = "flowrl.envs.goals:point_reach"
    hidden: tuple[int, ...] = (64, 64)
    gamma: float = 0.95
    learning_rate: NumberOrSchedule = 1e-3
    batch_size: int = 128
    temperature: float = 0.1
    replay_ratio: float = 16.0


class HERSAC(Trainer):
    """`HERSAC(env="flowrl.envs.goals:point_reach").train(until={"env_steps": 20_000})`.

    Its policy is that of SAC, its plan that of HER with DQN.
    """

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(her_dqn.execution_plan)
