"""REDQ: SAC with many critics and many updates per env step; and DroQ, with two critics, dropout and normalization."""

from __future__ import annotations

import attrs

from flowrl.plans import dqn, sac
from flowrl.policies import REDQPolicy
from flowrl.policies.q_actor_critic import EnsembleSettings
from flowrl.trainer.trainer import Trainer

policy = REDQPolicy.configured


@attrs.define(kw_only=True)
class Config(EnsembleSettings, REDQPolicy.Settings, sac.Config):
    """20 updates of the critics per env step, and one of the actor, as published; else those of SAC."""

    critics: int = 10
    replay_ratio: float = 5_120.0


class REDQ(Trainer):
    """`REDQ(env="Pendulum-v1").train(until={"env_steps": 5_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
