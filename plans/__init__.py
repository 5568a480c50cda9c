"""The algorithms: one a file, each runs by `flowrl run plans/NAME.py`; `from flowrl.plans import DQN` is a Trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.plans.a2c import A2C
    from flowrl.plans.a3c import A3C
    from flowrl.plans.apex_dqn import ApexDQN
    from flowrl.plans.appo import APPO
    from flowrl.plans.c51 import C51
    from flowrl.plans.ddpg import DDPG
    from flowrl.plans.ddppo import DDPPO
    from flowrl.plans.dqfd import DQfD
    from flowrl.plans.dqn import DQN
    from flowrl.plans.impala import IMPALA
    from flowrl.plans.ppo import PPO
    from flowrl.plans.qrdqn import QRDQN
    from flowrl.plans.r2d2 import R2D2
    from flowrl.plans.r2d3 import R2D3
    from flowrl.plans.rainbow import Rainbow
    from flowrl.plans.rbc import RBC
    from flowrl.plans.sac import SAC
    from flowrl.plans.sqil import SQIL
    from flowrl.plans.td3 import TD3

__all__ = [
    "A2C",
    "A3C",
    "APPO",
    "C51",
    "DDPG",
    "DDPPO",
    "DQN",
    "IMPALA",
    "PPO",
    "QRDQN",
    "R2D2",
    "R2D3",
    "RBC",
    "SAC",
    "SQIL",
    "TD3",
    "ApexDQN",
    "DQfD",
    "Rainbow",
]

#: Files that are not called as their class in small letters.
_FILES = {"ApexDQN": "apex_dqn"}


def __getattr__(name: str) -> Any:
    if name in __all__:  # when asked for: a plan is imported alone
        return getattr(import_module(f"flowrl.plans.{_FILES.get(name, name.lower())}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
