"""MASAC: soft actor-critic of agents that win together, whose critics see the state and the actions of all."""

from __future__ import annotations

import attrs

from flowrl.operators.options import TeamMembers
from flowrl.plans import qmix, sac
from flowrl.policies import MASACPolicy
from flowrl.trainer.trainer import Trainer

policy = MASACPolicy.configured


@attrs.define(kw_only=True)
class Config(TeamMembers, sac.Config):
    """SAC's settings, for a game whose agents act together."""

    env: str = "flowrl:two_step"
    wrappers: list[str] = attrs.Factory(lambda: ["AgentId", "GlobalState"])
    envs_per_worker: int = 8
    fragment_steps: int = 4
    hidden: tuple[int, ...] = (64, 64)
    batch_size: int = 128
    replay_ratio: float = 64.0
    learning_rate: float = 1e-3


class MASAC(Trainer):
    """`MASAC(env="flowrl:two_step").train(until={"env_steps": 20_000})`; its plan is that of QMIX."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(qmix.execution_plan)
