"""Rollouts: workers that act and collect experience, and evaluation."""

from flowrl.rollout.evaluate import evaluate, mean_return
from flowrl.rollout.worker import RolloutWorker
from flowrl.rollout.worker_set import WorkerSet

__all__ = ["RolloutWorker", "WorkerSet", "evaluate", "mean_return"]
