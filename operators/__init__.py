"""The operators, one family per file."""

from flowrl.operators.adders import GAE, NStep, VTrace
from flowrl.operators.batches import (
    CollectBatches,
    ConcatBatches,
    OfPolicy,
    ScaleRewards,
    SelectExperiences,
    SplitBatch,
    StandardizeFields,
)
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue, Sequentially
from flowrl.operators.contracts import CheckActions, CheckEpisodes, CheckFinite, CheckLogRatios, CheckPriorities
from flowrl.operators.datasets import Demonstrations, FromDataset, OfflineRows, PolicyActions, Record, from_minari
from flowrl.operators.debug import debug_print
from flowrl.operators.demonstrations import FillColumn, InitialState, KeepOneStep, MixInDemonstrations
from flowrl.operators.evaluate import Confirm, Evaluate, StopWhen
from flowrl.operators.hindsight import HindsightRelabel
from flowrl.operators.league import AddSnapshot, RecordGames
from flowrl.operators.metrics import Report, StandardMetricsReporting
from flowrl.operators.models import FitModel, ImagineAhead, ImaginedRollouts, Snapshots, TrainWorldModel
from flowrl.operators.normalize import DatasetStatistics, GatherStatistics, NormalizeRewards, UpdateStatistics
from flowrl.operators.replay import MixInReplay, Reanalyse, Replay, StoreToReplay, UpdatePriorities
from flowrl.operators.rewards import CombineRewards, EstimateLogp, EstimateReward, TrainReward
from flowrl.operators.rollout import ParallelRollouts
from flowrl.operators.teams import JoinTeam
from flowrl.operators.train import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    ComputeGradients,
    FollowWorkers,
    TrainAllReduce,
    TrainOneStep,
    UpdateKL,
    UpdateTargetNetwork,
)
from flowrl.operators.turns import JoinTurns
from flowrl.operators.unrolls import Episodes, Unroll

__all__ = [
    "GAE",
    "AddSnapshot",
    "ApplyGradients",
    "AsyncGradients",
    "AverageGradients",
    "CheckActions",
    "CheckEpisodes",
    "CheckFinite",
    "CheckLogRatios",
    "CheckPriorities",
    "CollectBatches",
    "CombineRewards",
    "ComputeGradients",
    "ConcatBatches",
    "Concurrently",
    "Confirm",
    "DatasetStatistics",
    "Demonstrations",
    "Dequeue",
    "Enqueue",
    "Episodes",
    "EstimateLogp",
    "EstimateReward",
    "Evaluate",
    "FillColumn",
    "FitModel",
    "FollowWorkers",
    "FromDataset",
    "GatherStatistics",
    "HindsightRelabel",
    "ImagineAhead",
    "ImaginedRollouts",
    "InitialState",
    "JoinTeam",
    "JoinTurns",
    "KeepOneStep",
    "MixInDemonstrations",
    "MixInReplay",
    "NStep",
    "NormalizeRewards",
    "OfPolicy",
    "OfflineRows",
    "ParallelRollouts",
    "PolicyActions",
    "Reanalyse",
    "Record",
    "RecordGames",
    "Replay",
    "Report",
    "ScaleRewards",
    "SelectExperiences",
    "Sequentially",
    "Snapshots",
    "SplitBatch",
    "StandardMetricsReporting",
    "StandardizeFields",
    "StopWhen",
    "StoreToReplay",
    "TrainAllReduce",
    "TrainOneStep",
    "TrainReward",
    "TrainWorldModel",
    "Unroll",
    "UpdateKL",
    "UpdatePriorities",
    "UpdateStatistics",
    "UpdateTargetNetwork",
    "VTrace",
    "debug_print",
    "from_minari",
]
