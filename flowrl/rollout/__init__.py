"""Rollouts: workers that act and collect experience, and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl._lazy import lazy

if TYPE_CHECKING:
    from flowrl.rollout.evaluation import Scores, evaluate, scores
    from flowrl.rollout.exploitability import NashConv, nash_conv
    from flowrl.rollout.payoff import Payoffs, payoffs
    from flowrl.rollout.worker import RolloutWorker
    from flowrl.rollout.worker_set import WorkerSet
    from flowrl.rollout.workers import Workers

__all__ = [
    "NashConv",
    "Payoffs",
    "RolloutWorker",
    "Scores",
    "WorkerSet",
    "Workers",
    "evaluate",
    "nash_conv",
    "payoffs",
    "scores",
]

# An actor without a policy needs no torch.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "Workers": "flowrl.rollout.workers",
        "RolloutWorker": "flowrl.rollout.worker",
        "WorkerSet": "flowrl.rollout.worker_set",
        **dict.fromkeys(("NashConv", "nash_conv"), "flowrl.rollout.exploitability"),
        **dict.fromkeys(("Payoffs", "payoffs"), "flowrl.rollout.payoff"),
        **dict.fromkeys(("Scores", "evaluate", "scores"), "flowrl.rollout.evaluation"),
    },
)
