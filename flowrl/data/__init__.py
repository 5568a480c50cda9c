"""Experience as data: batches of columns and replay buffers."""

from flowrl.data.batch import Batch
from flowrl.data.episodes import EpisodeReplayBuffer
from flowrl.data.limiter import RateLimiter
from flowrl.data.multi_agent import DEFAULT_POLICY, MultiAgentBatch
from flowrl.data.prioritized import PrioritizedReplayBuffer
from flowrl.data.prioritized_sequences import PrioritizedSequenceReplayBuffer
from flowrl.data.replay import ReplayBuffer
from flowrl.data.sequences import SequenceReplayBuffer

__all__ = [
    "DEFAULT_POLICY",
    "Batch",
    "EpisodeReplayBuffer",
    "MultiAgentBatch",
    "PrioritizedReplayBuffer",
    "PrioritizedSequenceReplayBuffer",
    "RateLimiter",
    "ReplayBuffer",
    "SequenceReplayBuffer",
]
