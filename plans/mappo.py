"""MAPPO: PPO of agents that win together, each by what it observes, with critics that see the state of the whole."""

from __future__ import annotations

import attrs

from flowrl.operators.options import TeamMembers
from flowrl.plans import ippo
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(TeamMembers, ippo.Config):
    """IPPO's settings, for one policy that plays all agents of a team and a central critic."""

    env: str = "flowrl:two_step"
    agents: dict[str, str] | str = attrs.Factory(dict)
    wrappers: list[str] = attrs.Factory(lambda: ["AgentId", "GlobalState"])
    privileged: tuple[str, ...] = ("state",)


class MAPPO(Trainer):
    """`MAPPO(env="flowrl:two_step").train(until={"env_steps": 20_000})`; its plan and its policy are those of IPPO."""

    Config = Config
    policy = staticmethod(ippo.policy)
    execution_plan = staticmethod(ippo.execution_plan)
