"""Rollouts: workers that act and collect experience, and evaluation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flowrl._moved import attribute

if TYPE_CHECKING:
    from flowrl.rollout.evaluation import Scores, evaluate, scores
    from flowrl.rollout.worker import RolloutWorker
    from flowrl.rollout.worker_set import WorkerSet

__all__ = ["RolloutWorker", "Scores", "WorkerSet", "evaluate", "scores"]

#: Loaded when asked for, since an actor without a policy needs no torch.
_LATER = {
    "RolloutWorker": "worker",
    "WorkerSet": "worker_set",
    **dict.fromkeys(("Scores", "evaluate", "scores"), "evaluation"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"flowrl.rollout.{_LATER[name]}"), name)
    return attribute(__name__, name)
