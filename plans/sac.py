"""SAC: soft actor-critic with twin critics and a learned temperature, for continuous and discrete actions."""

from __future__ import annotations

import attrs

from flowrl.operators.options import NormalizedReplay, NStepReplay
from flowrl.plans import dqn
from flowrl.policies import SACPolicy
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = SACPolicy.configured


@attrs.define(kw_only=True)
class Config(SACPolicy.Settings, NStepReplay, NormalizedReplay, ActingConfig):
    """Defaults as published, for one environment with one update per step."""

    env: str = "Pendulum-v1"
    envs_per_worker: int = 1
    fragment_steps: int = 1
    random_steps: int = 1_000
    n_step: int = 1
    batch_size: int = 256
    target_every: int = 1
    tau: float = 0.005
    buffer_size: int = 1_000_000
    replay_ratio: float = 256.0


class SAC(Trainer):
    """`SAC(env="Pendulum-v1").train(until={"env_steps": 10_000})`; its plan is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(dqn.execution_plan)
