"""The algorithms, one per file: `flowrl run plans/NAME.py` runs one; `from flowrl.plans import DQN` is its Trainer."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.plans.a2c import A2C as A2C
    from flowrl.plans.a3c import A3C as A3C
    from flowrl.plans.airl_ppo import AIRLPPO as AIRLPPO
    from flowrl.plans.apex_dqn import ApexDQN as ApexDQN
    from flowrl.plans.appo import APPO as APPO
    from flowrl.plans.bc import BC as BC
    from flowrl.plans.c51 import C51 as C51
    from flowrl.plans.cql import CQL as CQL
    from flowrl.plans.ddpg import DDPG as DDPG
    from flowrl.plans.ddppo import DDPPO as DDPPO
    from flowrl.plans.dqfd import DQfD as DQfD
    from flowrl.plans.dqn import DQN as DQN
    from flowrl.plans.gail_ppo import GAILPPO as GAILPPO
    from flowrl.plans.her_dqn import HERDQN as HERDQN
    from flowrl.plans.her_sac import HERSAC as HERSAC
    from flowrl.plans.icm_ppo import ICMPPO as ICMPPO
    from flowrl.plans.impala import IMPALA as IMPALA
    from flowrl.plans.iql import IQL as IQL
    from flowrl.plans.marwil import MARWIL as MARWIL
    from flowrl.plans.ppo import PPO as PPO
    from flowrl.plans.qrdqn import QRDQN as QRDQN
    from flowrl.plans.r2d2 import R2D2 as R2D2
    from flowrl.plans.r2d3 import R2D3 as R2D3
    from flowrl.plans.rainbow import Rainbow as Rainbow
    from flowrl.plans.rbc import RBC as RBC
    from flowrl.plans.rnd_dqn import RNDDQN as RNDDQN
    from flowrl.plans.rnd_ppo import RNDPPO as RNDPPO
    from flowrl.plans.sac import SAC as SAC
    from flowrl.plans.sacfd import SACfD as SACfD
    from flowrl.plans.sqil import SQIL as SQIL
    from flowrl.plans.td3 import TD3 as TD3


@cache
def _files() -> dict[str, str]:
    """The names of the Trainers, each with its file; found without importing them."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("[!_]*.py")}
    return {
        name: stem for stem, text in texts.items() for name in re.findall(r"^class (\w+)\(\w*Trainer\)", text, re.M)
    }


def __dir__() -> list[str]:
    return sorted(_files())


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in _files():  # imported on demand, one plan alone
        return getattr(import_module(f"flowrl.plans.{_files()[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
