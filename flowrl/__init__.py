"""flowrl: reinforcement-learning algorithms as lazy, composable dataflow plans."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flowrl.context import Context
from flowrl.operator import context, declare, operator, pure, state
from flowrl.plan import Plan, from_items, from_workers
from flowrl.queues import Queue
from flowrl.scheduler import Run

if TYPE_CHECKING:
    from flowrl.data import Batch
    from flowrl.trained import load
    from flowrl.trainer import Trainer

__all__ = [
    "Batch",
    "Context",
    "Plan",
    "Queue",
    "Run",
    "Trainer",
    "context",
    "declare",
    "from_items",
    "from_workers",
    "load",
    "operator",
    "pure",
    "state",
]
__version__ = "0.1.0"


#: Loaded when asked for, since a plan over plain lists needs no numpy and no torch.
_LATER = {"Batch": "flowrl.data", "Trainer": "flowrl.trainer", "load": "flowrl.trained"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
