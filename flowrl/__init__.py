"""flowrl: reinforcement-learning algorithms as lazy, composable dataflow plans."""

from __future__ import annotations

from flowrl.context import Context
from flowrl.operator import context, operator, pure, state
from flowrl.plan import Plan, from_items, from_workers
from flowrl.queues import Queue
from flowrl.scheduler import Run

__all__ = ["Context", "Plan", "Queue", "Run", "context", "from_items", "from_workers", "operator", "pure", "state"]
__version__ = "0.1.0"
