"""flowrl: reinforcement-learning algorithms as lazy, composable dataflow plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl._lazy import lazy
from flowrl._version import __version__
from flowrl.engine.context import Context
from flowrl.engine.operator import context, declare, operator, pure, state
from flowrl.engine.plan import Plan, from_items, from_workers
from flowrl.engine.run import Run
from flowrl.engine.workers.queues import Queue

if TYPE_CHECKING:
    from flowrl.data import Batch
    from flowrl.trainer.loading import load, resume
    from flowrl.trainer.trainer import Trainer

__all__ = [
    "Batch",
    "Context",
    "Plan",
    "Queue",
    "Run",
    "Trainer",
    "__version__",
    "context",
    "declare",
    "from_items",
    "from_workers",
    "load",
    "operator",
    "pure",
    "resume",
    "state",
]

# When asked for, since a plan over plain lists needs no numpy and no torch.
if not TYPE_CHECKING:  # to type checkers, every name would be there
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Batch": "flowrl.data",
            "Trainer": "flowrl.trainer",
            "load": "flowrl.trainer.loading",
            "resume": "flowrl.trainer.loading",
        },
    )
