"""EpisodeReplayBuffer: whole episodes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from flowrl.data.limiter import RateLimiter
from flowrl.data.rings import Index
from flowrl.data.spans import Mask, SpanReplayBuffer, SpanRings


class EpisodeReplayBuffer(SpanReplayBuffer):
    """Keeps the newest steps and draws whole episodes of them, `[longest drawn, B, ...]`, as `Episodes` gives them.

    An episode is drawn from its end on (H5) until its first step is overwritten (B9). One of which a step is missing
    is not drawn: where provenance (`worker`, `env_id`, `episode_id`, `t`, if stored) shows that the next step is of
    another, or that the first one stored is not the first. `mask` is False on padding, which is 0 in every column (N6).

    Fragments `[T, N, ...]` fill N rings of capacity // N steps each; an episode needs to fit into its ring. Padded
    fragments, such as those of `RolloutWorker.sample(episodes=)`, fill one.

    Args:
        capacity: rows, over all rings.
        limiter: in steps. A draw asks it for the longest episode that is stored, times the episodes of a draw; so many
            its `sample_batch` must allow.
        seed: see `ReplayBuffer`.

    >>> from flowrl.data import Batch
    >>> end = np.array([[False], [False], [True], [True], [False]])
    >>> buffer = EpisodeReplayBuffer(100, seed=0)
    >>> buffer.add(Batch(reward=[[1], [2], [3], [4], [5]], terminated=end, truncated=np.zeros((5, 1), bool)))
    >>> buffer
    EpisodeReplayBuffer(capacity=100, rows=5, episodes=2)
    >>> drawn = buffer.sample(2)
    >>> drawn.reward.T
    array([[4, 0, 0],
           [1, 2, 3]])
    """

    span = "episodes"

    def __init__(self, capacity: int, *, limiter: RateLimiter | None = None, seed: int | None = None) -> None:
        super().__init__(capacity, limiter=limiter, seed=seed)
        self._rings = EpisodeRings(capacity)

    def settings(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "limiter": self.limiter}


class EpisodeRings(SpanRings):
    """Rings of whole episodes."""

    _warned = False

    def complete(self, count: Index, over: Mask, ended: Mask, known: Mask) -> tuple[Mask, Index, Index]:
        if not self._warned and (longest := int(count.max())) > self.length:
            self._warned = True
            warnings.warn(
                f"an episode has {longest} steps by now, but its ring has room for {self.length} (a capacity of "
                f"{self.capacity} over {self.envs} environments): it will not be drawn, nor any other that is too "
                "long; take a larger capacity",
                stacklevel=2,
            )
        return ended & known, count, np.zeros_like(count)
