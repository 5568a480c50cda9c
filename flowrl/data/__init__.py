"""Experience as data: batches of columns, replay buffers and datasets."""

from flowrl.data.batch import Batch
from flowrl.data.datasets.dataset import Dataset
from flowrl.data.datasets.writer import DatasetWriter
from flowrl.data.multi_agent import DEFAULT_POLICY, MultiAgentBatch
from flowrl.data.replay.base import Store
from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.data.replay.episodes import EpisodeReplayBuffer
from flowrl.data.replay.mixture import MixedReplay
from flowrl.data.replay.objects import ObjectReplayBuffer
from flowrl.data.replay.prioritized import PrioritizedReplayBuffer
from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.data.replay.sequences import PrioritizedSequenceReplayBuffer, SequenceReplayBuffer
from flowrl.data.replay.sharded import ReplayActors

__all__ = [
    "DEFAULT_POLICY",
    "Batch",
    "Dataset",
    "DatasetWriter",
    "EpisodeReplayBuffer",
    "MixedReplay",
    "MultiAgentBatch",
    "ObjectReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedSequenceReplayBuffer",
    "RateLimiter",
    "ReplayActors",
    "ReplayBuffer",
    "SequenceReplayBuffer",
    "Store",
]
