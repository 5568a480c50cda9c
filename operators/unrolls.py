"""Adders that reassemble episodes: sequences of one length, and whole episodes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Literal

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import ENDS
from flowrl.data.trajectories import Held, Trajectory, hold, side_by_side, still_open, trajectories
from flowrl.data.types import Index
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.schema import Schema
from flowrl.operators.adders import check_fragment

_NEEDED = ("reward", *ENDS)


@operator
class Unroll:
    """Sequences for recurrent learners: fragments `[T, N, ...]` in, `[burn_in + length, B, ...]` out (rules N6, N7).

    A sequence holds consecutive steps of one episode. Sequences overlap by `burn_in + overlap` steps, so with
    `overlap=0` every step counts once. `mask` marks the steps that count; it is False on

    - padding, which is at the end of a sequence: 0 in every column but `obs`, `next_obs` and `action`, which repeat its
      last step (R7);
    - the first `burn_in` steps, which only warm up the recurrent state (N7). A sequence at the start of its episode
      has an exact state and needs no burn-in: all its steps count.

    A learner unrolls all steps from `state[0]`, the actor's recurrent state at the first step of the sequence (T8),
    and multiplies its loss by the mask. Any column, also `state`, may be nested.

    Streams may cut episodes anywhere and interleave, see `NStep`; padded input steps are dropped.

    Args:
        length: steps of a sequence, without `burn_in`.
        last: what happens to leftover steps that fill no sequence when an episode ends or is lost, or the stream
            ends. "drop": they are dropped. "last": the last sequence ends with them and overlaps more with the one
            before; a shorter episode is padded. "pad": padding follows them.
        burn_in: steps that warm up the state. overlap: steps that count in two sequences, less than `length`.
        across: whether a sequence may span several fragments. False: the end of a fragment counts as an end of its
            episodes, so on-policy learners get each step at once.

    Emits: per fragment the sequences that it completed, environment by environment, maybe none: `[.., 0, ...]`.
    State: of every environment the steps that future sequences need.
    Raises: SchemaError if a column is missing; ValueError for lengths that cannot work.
    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 3.

    >>> b = Batch(reward=[[1], [2], [3]], terminated=[[0], [0], [1]], truncated=[[0], [0], [0]])
    >>> rows = Unroll(length=2, last="pad")(b)
    >>> rows.reward.T.tolist(), rows.mask.T.tolist()
    ([[1, 2], [3, 0]], [[True, True], [True, False]])
    >>> Unroll(length=2, last="last")(b).reward.T.tolist()
    [[1, 2], [2, 3]]
    """

    requires = ("fragments", *_NEEDED)
    provides = ("mask", "sequences")
    length: int = attrs.field(validator=attrs.validators.ge(1))
    last: Literal["drop", "last", "pad"] = attrs.field(
        default="drop", validator=attrs.validators.in_(("drop", "last", "pad"))
    )
    burn_in: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    overlap: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    across: bool = True
    held: Batch = state(factory=Batch)
    running: Held = state(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.overlap >= self.length:
            raise ValueError(f"overlap is {self.overlap}: sequences of {self.length} steps overlap by fewer")

    def schema(self, given: Schema) -> Schema:
        return given.having(mask="bool[T, N]")

    def __call__(self, batch: Batch) -> Batch:
        """The sequences that this fragment completed."""
        check_fragment("Unroll", batch, needs=_NEEDED)
        table, found = trajectories(self.held, self.running, batch)
        if not self.across:
            found = [each._replace(open=False) for each in found]
        sequences = [each for trajectory in found for each in self._sequences(trajectory)]
        self.held, self.running = hold(table, [self._needed(each) for each in found if each.open])
        return self._batch(table, sequences)

    def finish(self) -> list[Batch]:
        """Flush the leftover steps at the end of the stream."""
        table, found = self.held, still_open(self.running)
        self.held, self.running = Batch(), {}
        rows = self._batch(table, [s for each in found for s in self._sequences(each._replace(open=False))])
        return [] if rows.is_empty else [rows]

    @property
    def _whole(self) -> int:
        return self.burn_in + self.length

    @property
    def _stride(self) -> int:
        return self.length - self.overlap

    def _made(self, steps: int) -> int:
        """The number of sequences that the first `steps` steps of an episode fill."""
        return max(0, (steps - self._whole) // self._stride + 1)

    def _sequences(self, trajectory: Trajectory) -> Iterator[tuple[int, Index]]:
        """The sequences that the newest fragment completed: the index of the first step, and the rows."""
        made = self._made(trajectory.length)
        for i in range(self._made(trajectory.known), made):
            yield i * self._stride, trajectory.after(i * self._stride)[: self._whole]
        covered = (made - 1) * self._stride + self._whole if made else 0
        if self.last != "drop" and not trajectory.open and covered < trajectory.length:
            first = made * self._stride if self.last == "pad" else max(0, trajectory.length - self._whole)
            yield first, trajectory.after(first)

    def _needed(self, trajectory: Trajectory) -> Trajectory:
        """Drop rows that no future sequence needs; keep the newest, which shows whether the episode goes on."""
        first = min(self._made(trajectory.length) * self._stride, trajectory.length - 1)
        if self.last == "last":
            first = min(first, trajectory.length - self._whole)
        return trajectory._replace(rows=trajectory.after(first))

    def _batch(self, table: Batch, sequences: Iterable[tuple[int, Index]]) -> Batch:
        counted = [(rows, 0 if self._is_begin(table, step, rows) else self.burn_in) for step, rows in sequences]
        counted = [(rows, warm_up) for rows, warm_up in counted if len(rows) > warm_up]
        batch = side_by_side(table, [rows for rows, _ in counted], self._whole)
        batch["mask"] &= np.arange(self._whole)[:, None] >= np.array([warm_up for _, warm_up in counted], np.int64)
        return batch

    def _is_begin(self, table: Batch, step: int, rows: Index) -> bool:
        """Whether the true start of an episode, not just its first known step."""
        return bool(table["t"][rows[0]] == 0) if "t" in table else step == 0


@operator
class Episodes:
    """Whole episodes from fragments: `[T, N, ...]` in, `[longest, E, ...]` out, padded, with a `mask`.

    Like `RolloutWorker.sample(episodes=)`, but from a stream that cuts episodes anywhere. `GAE`, `NStep`,
    `HindsightRelabel`, or a buffer of episodes may follow. Padding follows the end of an episode, 0 in every column.

    Streams of several workers may interleave, see `NStep`. An episode that is lost in part (its worker died, a
    fragment was lost, the stream began or ended inside it) is not emitted.

    Args:
        max_length: emits longer episodes in pieces of this many steps, each like an episode that is neither
            terminated nor truncated; a value estimate bootstraps there (T7). None: no bound.

    Emits: per fragment the episodes that it ended, environment by environment, maybe none: `[0, 0, ...]`.
    State: the steps of the running episode of every environment (H5).
    Counts: episodes_dropped, those that are lost in part.
    Raises: SchemaError if a column is missing.

    >>> b = Batch(reward=[[1, 5], [2, 6], [3, 7]], terminated=[[0, 0], [1, 0], [0, 0]], truncated=[[0, 0]] * 3)
    >>> adder = Episodes()
    >>> adder(b).reward.T.tolist()
    [[1, 2]]
    >>> rows = adder(b.replace(terminated=np.array([[1, 0], [0, 0], [0, 1]])))
    >>> rows.reward.T.tolist(), rows.mask.T.sum(1).tolist()
    ([[3, 1, 0, 0, 0, 0], [5, 6, 7, 5, 6, 7]], [2, 6])
    """

    requires = ("fragments", *_NEEDED)
    provides = ("mask", "episodes")
    max_length: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    held: Batch = state(factory=Batch)
    running: Held = state(factory=dict)
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return given.having(mask="bool[T, N]")

    def __call__(self, batch: Batch) -> Batch:
        """The episodes that this fragment ended."""
        check_fragment("Episodes", batch, needs=_NEEDED)
        table, found = trajectories(self.held, self.running, batch)
        episodes: list[Index] = []
        kept: list[Trajectory] = []
        for trajectory in found:
            whole = self._from_its_begin(table, trajectory)
            if whole:
                episodes += self._pieces(trajectory)
            if trajectory.open:
                kept.append(trajectory._replace(rows=trajectory.after(self._kept_from(trajectory, whole))))
            elif not (whole and trajectory.ended):
                self.context.count("episodes_dropped")
        self.held, self.running = hold(table, kept)
        return side_by_side(table, episodes, max(map(len, episodes), default=0))

    def finish(self) -> list[Batch]:
        """Drop the running episodes at the end of the stream."""
        if self.running:
            self.context.count("episodes_dropped", len(self.running))
        self.held, self.running = Batch(), {}
        return []

    def _from_its_begin(self, table: Batch, trajectory: Trajectory) -> bool:
        return "t" not in table or bool(table["t"][trajectory.rows[0]] == trajectory.start)

    @property
    def _size(self) -> int:
        return self.max_length or sys.maxsize

    def _pieces(self, trajectory: Trajectory) -> Iterator[Index]:
        """The parts of an episode that the newest fragment completed: all of it, or pieces of `max_length`."""
        for first in range(trajectory.known - trajectory.known % self._size, trajectory.length, self._size):
            piece = trajectory.after(first)[: self._size]
            if trajectory.ended or len(piece) == self._size:
                yield piece

    def _kept_from(self, trajectory: Trajectory, whole: bool) -> int:
        """The first step that is still needed; the newest shows whether the episode goes on."""
        newest = trajectory.length - 1
        return min(newest, trajectory.length - trajectory.length % self._size) if whole else newest
