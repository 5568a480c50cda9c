"""Rollouts: workers that act and collect experience, and evaluation."""

from flowrl.rollout.evaluate import Scores, evaluate, scores
from flowrl.rollout.worker import RolloutWorker
from flowrl.rollout.worker_set import WorkerSet

__all__ = ["RolloutWorker", "Scores", "WorkerSet", "evaluate", "scores"]
