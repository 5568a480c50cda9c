"""DDPG: a deterministic actor climbs the values of one critic; both have slowly moving targets."""

from __future__ import annotations

import attrs

from flowrl.operators.options import NormalizedReplay, NStepReplay
from flowrl.plans import dqn
from flowrl.policies import DDPGPolicy
from flowrl.policies.td3 import ActionNoiseSettings
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = DDPGPolicy.configured


@attrs.define(kw_only=True)
class Config(ActionNoiseSettings, NStepReplay, NormalizedReplay, ActingConfig):
    """Defaults for one environment, with one update per step."""

    env: str = "Pendulum-v1"
    envs_per_worker: int = 1
    fragment_steps: int = 1
    random_steps: int = 1_000
    n_step: int = 1
    learning_rate: NumberOrSchedule = 1e-3
    batch_size: int = 256
    target_every: int = 1
    tau: float = 0.005
    buffer_size: int = 1_000_000
    replay_ratio: float = 256.0


class DDPG(Trainer):
    """`DDPG(env="Pendulum-v1").train(until={"env_steps": 10_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
