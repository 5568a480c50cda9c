"""The operators: one family a file."""

from flowrl.operators.adders import NStep
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue
from flowrl.operators.debug import debug_print
from flowrl.operators.evaluate import Confirm, Evaluate, StopWhen
from flowrl.operators.metrics import Report, StandardMetricsReporting
from flowrl.operators.replay import Replay, StoreToReplay
from flowrl.operators.rollout import ParallelRollouts
from flowrl.operators.train import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    TrainOneStep,
    UpdateKL,
    UpdateTargetNetwork,
)

__all__ = [
    "ApplyGradients",
    "AverageGradients",
    "ComputeGradients",
    "Concurrently",
    "Confirm",
    "Dequeue",
    "Enqueue",
    "Evaluate",
    "NStep",
    "ParallelRollouts",
    "Replay",
    "Report",
    "StandardMetricsReporting",
    "StopWhen",
    "StoreToReplay",
    "TrainOneStep",
    "UpdateKL",
    "UpdateTargetNetwork",
    "debug_print",
]
