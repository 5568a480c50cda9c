"""The algorithms: one a file, each runs by `flowrl run plans/NAME.py`; `from flowrl.plans import DQN` is a Trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.plans.dqn import DQN

__all__ = ["DQN"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # when asked for: a plan is imported alone
        return getattr(import_module(f"flowrl.plans.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
