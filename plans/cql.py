"""CQL: conservative Q-learning from a dataset, over DQN for discrete actions and over SAC for continuous ones."""

from __future__ import annotations

from typing import Any

import attrs
from gymnasium import spaces

from flowrl.errors import ConfigError
from flowrl.operators.options import TargetNetworkSettings
from flowrl.plans import iql
from flowrl.policies import CQLPolicy, DiscreteCQLPolicy
from flowrl.policies.cql import CandidateSettings
from flowrl.policies.dqn import DoubleQSettings
from flowrl.policies.q_actor_critic import EnsembleSettings
from flowrl.policies.sac import TemperatureSettings
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer


@attrs.define(kw_only=True)
class Config(
    EnsembleSettings, CandidateSettings, DoubleQSettings, TemperatureSettings, TargetNetworkSettings, OfflineConfig
):
    """Defaults for both kinds of actions; some settings apply to one kind alone."""

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: NumberOrSchedule = 3e-4
    grad_clip: float | None = None
    target_every: int = 1
    tau: float = 0.005


def policy(config: Config, observation_space: Any, action_space: Any) -> DiscreteCQLPolicy | CQLPolicy:
    """The policy for the kind of actions."""
    if isinstance(action_space, spaces.Discrete):
        if config.diversity:
            raise ConfigError(
                f"diversity={config.diversity:g} needs continuous actions, but the action space is {action_space}: "
                "leave it at 0"
            )
        return DiscreteCQLPolicy.configured(config, observation_space, action_space, epsilon=0.0, algorithm="CQL")
    return CQLPolicy.configured(config, observation_space, action_space)


class CQL(OfflineTrainer):
    """`CQL(data="data/cartpole").train(until={"updates": 5_000})`; its plan is that of IQL."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(iql.execution_plan)
