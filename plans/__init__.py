"""The algorithms: one a file, each runs by `flowrl run plans/NAME.py`; `from flowrl.plans import DQN` is a Trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.plans.a2c import A2C
    from flowrl.plans.a3c import A3C
    from flowrl.plans.airl_ppo import AIRLPPO
    from flowrl.plans.apex_dqn import ApexDQN
    from flowrl.plans.appo import APPO
    from flowrl.plans.bc import BC
    from flowrl.plans.c51 import C51
    from flowrl.plans.cql import CQL
    from flowrl.plans.ddpg import DDPG
    from flowrl.plans.ddppo import DDPPO
    from flowrl.plans.dqfd import DQfD
    from flowrl.plans.dqn import DQN
    from flowrl.plans.gail_ppo import GAILPPO
    from flowrl.plans.her_dqn import HERDQN
    from flowrl.plans.her_sac import HERSAC
    from flowrl.plans.icm_ppo import ICMPPO
    from flowrl.plans.impala import IMPALA
    from flowrl.plans.iql import IQL
    from flowrl.plans.marwil import MARWIL
    from flowrl.plans.ppo import PPO
    from flowrl.plans.qrdqn import QRDQN
    from flowrl.plans.r2d2 import R2D2
    from flowrl.plans.r2d3 import R2D3
    from flowrl.plans.rainbow import Rainbow
    from flowrl.plans.rbc import RBC
    from flowrl.plans.rnd_dqn import RNDDQN
    from flowrl.plans.rnd_ppo import RNDPPO
    from flowrl.plans.sac import SAC
    from flowrl.plans.sacfd import SACfD
    from flowrl.plans.sqil import SQIL
    from flowrl.plans.td3 import TD3

__all__ = [
    "A2C",
    "A3C",
    "AIRLPPO",
    "APPO",
    "BC",
    "C51",
    "CQL",
    "DDPG",
    "DDPPO",
    "DQN",
    "GAILPPO",
    "HERDQN",
    "HERSAC",
    "ICMPPO",
    "IMPALA",
    "IQL",
    "MARWIL",
    "PPO",
    "QRDQN",
    "R2D2",
    "R2D3",
    "RBC",
    "RNDDQN",
    "RNDPPO",
    "SAC",
    "SQIL",
    "TD3",
    "ApexDQN",
    "DQfD",
    "Rainbow",
    "SACfD",
]

#: Files that are not called as their class in small letters.
_FILES = {
    "AIRLPPO": "airl_ppo",
    "ApexDQN": "apex_dqn",
    "GAILPPO": "gail_ppo",
    "HERDQN": "her_dqn",
    "HERSAC": "her_sac",
    "ICMPPO": "icm_ppo",
    "RNDDQN": "rnd_dqn",
    "RNDPPO": "rnd_ppo",
}


def __getattr__(name: str) -> Any:
    if name in __all__:  # when asked for: a plan is imported alone
        return getattr(import_module(f"flowrl.plans.{_FILES.get(name, name.lower())}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
