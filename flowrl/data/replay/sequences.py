"""SequenceReplayBuffer: sequences of one length, for recurrent learners."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.replay.prioritized import PrioritizedReplayBuffer
from flowrl.data.replay.segments import SpanReplayBuffer, Spans
from flowrl.data.types import Floats, Index, Mask


class SequenceReplayBuffer(SpanReplayBuffer):
    """Keeps the newest steps and draws sequences `[burn_in + length, B, ...]`, like those of `Unroll`.

    A sequence holds consecutive steps of one episode (N7). One begins every `length - overlap` steps, from the first
    added step of the episode on. It can be drawn once it is full and the next step is stored, or its episode is over;
    the remaining steps then form a padded sequence (N6). A sequence whose first step was overwritten is no longer drawn
    (B9).

    `mask` marks the steps that count: neither padding nor the first `burn_in` steps, which only warm up the recurrent
    state. If a sequence begins with its episode all steps count: its state is exact. A learner unrolls from `state[0]`,
    the actor's recurrent state at the first step (T8).

    Args:
        capacity: rows, over all rings.
        length: steps of a sequence, without `burn_in`.
        burn_in: steps that warm up the state.
        overlap: steps that count in two sequences, less than `length`.
        limiter: in steps that count, at most `burn_in + length` per sequence: `sample_batch` is that times the
            sequences of a draw.
        seed: see `ReplayBuffer`.

    Raises: ValueError for lengths that cannot work, also if rings turn out not to be longer than a sequence.
    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3.

    >>> no = np.zeros((5, 1), bool)
    >>> buffer = SequenceReplayBuffer(100, length=2, seed=0)
    >>> buffer.add(Batch(reward=[[1], [2], [3], [4], [5]], terminated=no, truncated=no))
    >>> buffer
    SequenceReplayBuffer(capacity=100, rows=5, sequences=2)
    >>> buffer.sample(3).reward.T
    array([[3, 4],
           [3, 4],
           [3, 4]])
    """

    span = "sequences"

    def __init__(self, capacity: int, *, length: int, burn_in: int = 0, overlap: int = 0, **others: Any) -> None:
        if length < 1:
            raise ValueError(f"length is {length}: a sequence holds at least 1 step")
        if burn_in < 0:
            raise ValueError(f"burn_in is {burn_in}: it is a number of steps, or 0")
        if not 0 <= overlap < length:
            raise ValueError(f"overlap is {overlap}: sequences of {length} steps overlap by 0 .. {length - 1}")
        self.length, self.burn_in, self.overlap = length, burn_in, overlap
        super().__init__(capacity, **others)

    @property
    def steps(self) -> int:
        """Steps of a sequence, burn-in included."""
        return self.burn_in + self.length

    def settings(self) -> dict[str, Any]:
        """See `ReplayBuffer.settings`."""
        return super().settings() | {"length": self.length, "burn_in": self.burn_in, "overlap": self.overlap}

    def declared_rows(self, batch_size: int) -> int:
        """See `Store.declared_rows`."""
        return batch_size * self.steps

    def _spans(self) -> Spans:
        return Windows(self.steps, self.burn_in, self.length - self.overlap)

    def _length(self, steps: Index) -> int:
        return self.steps

    def _check_spans(self, batch: Batch) -> None:
        super()._check_spans(batch)
        envs = batch.shape[1]
        if (length := self.capacity // envs) <= self.steps:
            raise ValueError(
                f"capacity is {self.capacity}: {envs} environments have {length} rows each, which must be more than "
                f"the {self.steps} steps of a sequence"
            )


@attrs.frozen
class Windows(Spans):
    """Windows of `steps` that begin every `stride` steps of a run; the last one of a run may be shorter."""

    steps: int
    burn_in: int
    stride: int

    def completed(self, count: Index, over: Mask, ended: Mask, known: Mask) -> tuple[Mask, Index, Index]:
        """See `Spans.completed`."""
        full = np.maximum((count - self.steps) // self.stride + 1, 0)
        covered = np.where(full > 0, (full - 1) * self.stride + self.steps, 0)
        steps = np.where(covered == count, self.steps, count - full * self.stride)
        warm_up = np.where(known & (steps == count), 0, self.burn_in)
        return ((covered == count) | (over & (covered < count))) & (steps > warm_up), steps, warm_up


class PrioritizedSequenceReplayBuffer(SequenceReplayBuffer, PrioritizedReplayBuffer):
    """A `SequenceReplayBuffer` that samples like a `PrioritizedReplayBuffer`: N and P(i) are those of sequences.

    Its `weight` is the same at every step of a sequence.

    Args:
        eta: weight of the largest priority of a sequence's steps; their mean has weight 1 − eta.

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
        """Set the priorities of sequences from those of their steps `[B]`: η · max pᵢ + (1 − η) · mean pᵢ.

        Steps of one sequence share `index` and `generation`. See `PrioritizedReplayBuffer.update_priorities`.
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
