"""EpisodeReplayBuffer: whole episodes."""

from __future__ import annotations

import warnings

import attrs
import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.replay.segments import SpanReplayBuffer, Spans
from flowrl.data.types import Array, Index, Mask


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
        return "WholeEpisodes()"  # what files of buffers say

    def completed(self, count: Index, over: Mask, ended: Mask, known: Mask) -> tuple[Mask, Index, Index]:
        """See `Spans.completed`."""
        return ended & known, count, np.zeros_like(count)
