"""The algorithms: one a file, each runs by `flowrl run plans/NAME.py`; `from flowrl.plans import DQN` is a Trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.plans.a2c import A2C
    from flowrl.plans.dqn import DQN
    from flowrl.plans.ppo import PPO

__all__ = ["A2C", "DQN", "PPO"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # when asked for: a plan is imported alone
        return getattr(import_module(f"flowrl.plans.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
