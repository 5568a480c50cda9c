"""Experience as data: batches of columns and replay buffers."""

from flowrl.data.batch import Batch
from flowrl.data.limiter import RateLimiter
from flowrl.data.multi_agent import DEFAULT_POLICY, MultiAgentBatch
from flowrl.data.objects import ObjectReplayBuffer
from flowrl.data.replay import ReplayBuffer
from flowrl.data.store import Store

__all__ = ["DEFAULT_POLICY", "Batch", "MultiAgentBatch", "ObjectReplayBuffer", "RateLimiter", "ReplayBuffer", "Store"]
