"""PrioritizedSequenceReplayBuffer: sequences drawn the more often, the more there is to learn from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.data.arrays import Floats, Index
from flowrl.data.prioritized import PrioritizedReplayBuffer
from flowrl.data.sequences import SequenceReplayBuffer


class PrioritizedSequenceReplayBuffer(SequenceReplayBuffer, PrioritizedReplayBuffer):
    """A `SequenceReplayBuffer` that draws as a `PrioritizedReplayBuffer` does: N and P(i) are those of sequences.

    Its `weight` is the same at every step of a sequence.

    Args:
        eta: how much the largest priority of a sequence's steps counts, and not their mean.

    The other arguments are those of the two buffers.

    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 2.3.

    >>> from flowrl.data import Batch
    >>> no = np.zeros((5, 1), bool)
    >>> buffer = PrioritizedSequenceReplayBuffer(100, length=2, eta=0.5, alpha=1.0, beta=1.0, compiled=False, seed=0)
    >>> buffer.add(Batch(reward=[[1], [2], [3], [4], [5]], terminated=no, truncated=no))
    >>> rows = buffer.sample(2).flat()
    >>> rows.reward, rows.index
    (array([1, 3, 2, 4]), array([0, 2, 0, 2]))
    >>> buffer.update_priorities(rows.index, rows.generation, np.array([1.0, 4.0, 1.0, 8.0]))
    0
    >>> drawn = buffer.sample(8)
    >>> drawn.reward[0], drawn.weight[1].round(2)
    (array([1, 3, 3, 3, 3, 3, 3, 3]), array([1.  , 0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14], dtype=float32))
    """

    def __init__(self, capacity: int, *, eta: float = 0.9, **others: Any) -> None:
        if not 0 <= eta <= 1:
            raise ValueError(f"eta is {eta}: it lies in 0 .. 1, the mean of a sequence's priorities and the largest")
        super().__init__(capacity, **others)
        self.eta = eta

    def update_priorities(self, index: Index, generation: Index, priority: Floats) -> int:
        """Give sequences new priorities, from those of their steps `[B]`: η · max pᵢ + (1 − η) · mean pᵢ.

        `index` and `generation` tell which steps are of one sequence. See `PrioritizedReplayBuffer.update_priorities`.
        """
        index, generation, priority = np.asarray(index), np.asarray(generation), np.asarray(priority, np.float64)
        if index.ndim != 1 or not index.shape == generation.shape == priority.shape or not len(index):
            return super().update_priorities(index, generation, priority)
        places, of, steps = np.unique([index, generation], axis=1, return_inverse=True, return_counts=True)
        largest = np.full(len(steps), -np.inf)
        np.maximum.at(largest, of, priority)
        mean = np.bincount(of, priority) / steps
        return super().update_priorities(places[0], places[1], self.eta * largest + (1 - self.eta) * mean)

    def settings(self) -> dict[str, Any]:
        """See `ReplayBuffer.settings`."""
        return super().settings() | {"eta": self.eta}
