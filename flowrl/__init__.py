"""flowrl: reinforcement-learning algorithms as lazy, composable dataflow plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.context import Context
from flowrl.operator import context, operator, pure, state
from flowrl.plan import Plan, from_items, from_workers
from flowrl.queues import Queue
from flowrl.scheduler import Run

if TYPE_CHECKING:
    from flowrl.data import Batch

__all__ = [
    "Batch",
    "Context",
    "Plan",
    "Queue",
    "Run",
    "context",
    "from_items",
    "from_workers",
    "operator",
    "pure",
    "state",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Batch":  # when asked for: a plan over plain lists needs no numpy
        from flowrl.data import Batch

        return Batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
