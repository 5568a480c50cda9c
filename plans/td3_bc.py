"""TD3+BC: TD3 from a dataset, whose actor also imitates the data."""

from __future__ import annotations

import attrs

from flowrl.operators.options import TargetNetworkSettings
from flowrl.plans import iql
from flowrl.policies import TD3BCPolicy
from flowrl.policies.td3_bc import ImitatingSettings
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer

policy = TD3BCPolicy.configured


@attrs.define(kw_only=True)
class Config(ImitatingSettings, TargetNetworkSettings, OfflineConfig):
    """Defaults as published."""

    data: str = "data/pendulum"
    normalize_obs: bool = True
    target_every: int = 2
    tau: float = 0.005


class TD3BC(OfflineTrainer):
    """`TD3BC(data="data/pendulum").train(until={"updates": 5_000})`; its plan is that of IQL."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(iql.execution_plan)
