"""CQL: conservative Q-learning from a dataset, over DQN for discrete actions and over SAC for continuous ones."""

from __future__ import annotations

from typing import Any

import attrs
from gymnasium import spaces

from flowrl.plans import iql
from flowrl.policies import CQLPolicy, DiscreteCQLPolicy
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import fraction, not_negative, positive, scheduled, sizes
from flowrl.trainer.offline import OfflineConfig, OfflineTrainer


@attrs.define(kw_only=True)
class Config(OfflineConfig):
    """Defaults for both kinds of actions."""

    # The networks
    hidden: tuple[int, ...] = sizes(256, 256)  #: sizes of the hidden layers of each network
    dueling: bool = True  #: of discrete actions: Q = V + A - mean A
    double: bool = True  #: of discrete actions: the online network chooses, the target network judges

    # Learning
    conservatism: float = not_negative(1.0)  #: weight of the penalty on values; 0 is DQN or SAC
    candidates: int = positive(10)  #: of continuous actions: how many of each kind it is estimated with
    gamma: float = fraction(0.99)  #: discount per step
    temperature: float = positive(1.0)  #: of continuous actions: what a unit of entropy is worth, at first
    learn_temperature: bool = True  #: whether it follows the entropy
    target_entropy: float | None = None  #: None: minus the numbers of an action
    learning_rate: Setting = scheduled(3e-4)  #: of Adam
    grad_clip: float | None = positive(None)  #: largest norm of the gradient
    target_every: int = positive(1)  #: updates between moves of the target networks
    tau: float = fraction(0.005)  #: how far they move then


def policy(config: Config, observation_space: Any, action_space: Any) -> DiscreteCQLPolicy | CQLPolicy:
    """The policy that learns, by the kind of actions."""
    settings: dict[str, Any] = {
        "conservatism": config.conservatism,
        "hidden": config.hidden,
        "gamma": config.gamma,
        "learning_rate": schedule(config.learning_rate),
        "grad_clip": config.grad_clip,
        **config.for_policy,
    }
    if isinstance(action_space, spaces.Discrete):
        networks = {"dueling": config.dueling, "double": config.double, "epsilon": 0.0}
        return DiscreteCQLPolicy(observation_space, action_space, **networks, **settings)
    return CQLPolicy(
        observation_space,
        action_space,
        candidates=config.candidates,
        temperature=config.temperature,
        learn_temperature=config.learn_temperature,
        target_entropy=config.target_entropy,
        **settings,
    )


class CQL(OfflineTrainer):
    """`CQL(data="data/cartpole").train(until={"updates": 5_000})`; its plan is that of IQL."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(iql.execution_plan)
