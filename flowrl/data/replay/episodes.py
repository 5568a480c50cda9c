"""EpisodeReplayBuffer: whole episodes."""

from __future__ import annotations

import warnings

import attrs
import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.replay.segments import SpanReplayBuffer, Spans
from flowrl.data.types import Array, Index, Mask


class EpisodeReplayBuffer(SpanReplayBuffer):
    """Keeps the newest steps and draws whole episodes, `[longest drawn, B, ...]`, like those of `Episodes`.

    An episode can be drawn once it has ended (H5) and until its first step is overwritten (B9). Incomplete episodes
    are not drawn: those where provenance (`worker`, `env_id`, `episode_id`, `t`, if stored) shows that the next step
    belongs to another, or that the first stored step is not the first. `mask` is False on padding, see
    `flowrl.data.steps.pad`.

    Fragments `[T, N, ...]` fill N rings of capacity // N steps each; an episode must fit into its ring. Padded
    fragments, such as those of `RolloutWorker.sample(episodes=)`, fill one ring.

    Args:
        capacity: rows, over all rings.
        limiter: in steps. Its `sample_batch` must allow the longest stored episode times the episodes of a draw.
        seed: see `ReplayBuffer`.

    >>> end = np.array([[False], [False], [True], [True], [False]])
    >>> buffer = EpisodeReplayBuffer(100, seed=1)
    >>> buffer.add(Batch(reward=[[1], [2], [3], [4], [5]], terminated=end, truncated=np.zeros((5, 1), bool)))
    >>> buffer
    EpisodeReplayBuffer(capacity=100, rows=5, episodes=2)
    >>> drawn = buffer.sample(2)
    >>> drawn.reward.T
    array([[1, 2, 3],
           [4, 0, 0]])
    """

    span = "episodes"
    _warned = False

    def most_rows(self, batch_size: int) -> int:
        """See `Store.most_rows`."""
        with self._lock:
            return batch_size * int(self._rings.span[0, self._limits.members].max(initial=1))

    def _spans(self) -> Spans:
        return EpisodeSegments()

    def _write(self, batch: Batch, begins: Array | None = None, uses: Array | None = None) -> None:
        super()._write(batch, begins, uses)
        rings = self._rings
        if rings.longest_run > rings.length and not self._warned:
            self._warned = True
            warnings.warn(
                f"an episode has {rings.longest_run} steps by now, its ring room for {rings.length} (capacity "
                f"{self.capacity} over {rings.envs}): such long ones are never drawn; take a larger capacity",
                stacklevel=2,
            )


@attrs.frozen(repr=False)
class EpisodeSegments(Spans):
    """Episodes from their first step to their end."""

    def __repr__(self) -> str:
        return "WholeEpisodes()"  # the name in saved buffers

    def completed(self, count: Index, over: Mask, ended: Mask, known: Mask) -> tuple[Mask, Index, Index]:
        """See `Spans.completed`."""
        return ended & known, count, np.zeros_like(count)
