"""Experience as data: batches of columns, replay buffers and datasets."""

from flowrl.data.batch import Batch
from flowrl.data.datasets import Dataset
from flowrl.data.episodes import EpisodeReplayBuffer
from flowrl.data.limiter import RateLimiter
from flowrl.data.mixed import MixedReplay
from flowrl.data.multi_agent import DEFAULT_POLICY, MultiAgentBatch
from flowrl.data.objects import ObjectReplayBuffer
from flowrl.data.prioritized import PrioritizedReplayBuffer
from flowrl.data.prioritized_sequences import PrioritizedSequenceReplayBuffer
from flowrl.data.recording import DatasetWriter
from flowrl.data.replay import ReplayBuffer
from flowrl.data.replay_actors import ReplayActors
from flowrl.data.sequences import SequenceReplayBuffer
from flowrl.data.store import Store

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
