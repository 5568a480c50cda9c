"""TQC: SAC whose critics learn quantiles of the return, of which targets leave out the highest."""

from __future__ import annotations

import attrs

from flowrl.plans import dqn, sac
from flowrl.policies import TQCPolicy
from flowrl.policies.q_actor_critic import EnsembleSettings
from flowrl.trainer.trainer import Trainer

policy = TQCPolicy.configured


@attrs.define(kw_only=True)
class Config(EnsembleSettings, TQCPolicy.Settings, sac.Config):
    """Defaults as published, but for fewer and smaller critics: their losses cost the square of the number."""


class TQC(Trainer):
    """`TQC(env="Pendulum-v1").train(until={"env_steps": 10_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
