"""Spans: consecutive steps of one episode as a buffer draws them; what sequences and whole episodes share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import PROVENANCE, episode_breaks
from flowrl.data.replay import ReplayBuffer
from flowrl.data.rings import Index, Rings
from flowrl.data.slots import SlotSet
from flowrl.data.steps import is_fragment, real_steps
from flowrl.errors import SchemaError, did_you_mean
from flowrl.schema import Schema

_ENDS = ("terminated", "truncated")
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


class SpanRings(Rings):
    """Rings of which spans are drawn: a slot is drawable if a span begins there and all of it is stored.

    What completes a span is asked once for every step: when its successor is written, which shows whether the episode
    goes on, or at once where the step ended it. Steps are numbered 0, 1, 2 ... in each ring, as they were written. A
    run is what was written of one episode without a gap, steps that were overwritten since included.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.cut = False
        """Whether what is written next does not follow what was written last."""
        self.starts = SlotSet(0)
        self.span = np.zeros((2, 0), np.int32)
        """By slot, of the span that begins there: its steps, and how many of them come before those that count."""
        self._begin: Index = np.zeros(0, np.int64)  # of the newest step's run, by ring; -1 where that is over

    def complete(self, count: Index, over: Mask, ended: Mask, known: Mask) -> tuple[Mask, Index, Index]:
        """Whether each step `[T, N]` completes a span, how many steps that has, how many of these do not count.

        Args:
            count: the steps of the run up to this one. over: whether it is the last of them.
            ended: whether it terminated or truncated the episode. known: whether the run began where its episode did.
        """
        raise NotImplementedError

    @property
    def drawable(self) -> int:
        return self.starts.size

    def nth(self, number: Index) -> Index:
        return self.starts.members[number]

    def longest(self) -> int:
        """Steps of the longest span that can be drawn."""
        return int(self.span[0, self.starts.members].max(initial=0))

    def write(self, batch: Batch, *, slots: bool = False) -> tuple[Index, Index]:
        newest = None if self.columns is None else self._tell(self.columns[[(self.written - 1) % self.length]])
        written, _ = super().write(batch, slots=True)
        if newest is None:
            self._no_spans()
        self.starts.discard(written)
        opened = self._opened(newest, self._tell(batch.to_numpy()))
        self.starts.add(opened)
        return written, opened

    @staticmethod
    def _tell(steps: Batch) -> Batch:
        """The columns that tell where episodes end."""
        return steps.select([name for name in (*_ENDS, *PROVENANCE) if name in steps])

    def _opened(self, newest: Batch | None, told: Batch) -> Index:
        """Where the spans begin that new steps `[T, N]` completed, or the `newest` one from before; and note them."""
        told = told if newest is None else Batch.cat([newest, told])
        number = np.arange(self.written - len(told), self.written)[:, None]
        ended = (told["terminated"] != 0) | (told["truncated"] != 0)
        over, settled = ended.copy(), np.ones_like(ended)
        over[:-1] |= episode_breaks(told)
        settled[-1] = ended[-1]
        first_begin = number[0]
        if newest is not None:
            settled[0] = ~ended[0]  # else its span was noted when it was written
            over[0] |= self.cut
            first_begin = self._begin
        begin = np.vstack([np.broadcast_to(first_begin, ended[:1].shape), number[1:] * over[:-1]])
        begin = np.maximum.accumulate(begin, axis=0)
        self._begin, self.cut = begin[-1], False
        count = number + 1 - begin
        known = told["t"] == count - 1 if "t" in told else np.ones_like(ended)
        complete, steps, warm_up = self.complete(count, over, ended, known)
        first = number + 1 - steps
        complete &= settled & (first >= self.written - self.length)
        slot: Index = (first % self.length * self.envs + np.arange(self.envs))[complete]
        self.span[:, slot] = steps[complete], warm_up[complete]
        return slot

    def state_dict(self) -> dict[str, Any]:
        starts = self.starts.members.copy()
        own = {"starts": starts, "span": self.span[:, starts], "begin": self._begin.copy(), "cut": self.cut}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._no_spans()
        self.starts.add(state["starts"])
        self.span[:, state["starts"]] = state["span"]
        self._begin, self.cut = state["begin"].copy(), state["cut"]

    def _no_spans(self) -> None:
        slots = self.length * self.envs
        self.starts, self.span = SlotSet(slots), np.zeros((2, slots), np.int32)


class SpanReplayBuffer(ReplayBuffer):
    """What buffers of sequences and of whole episodes share: they give out spans side by side, `[T, B, ...]`.

    A span's slot is that of its first step; that it can be drawn, how often it was, and how old it is, is said of this
    step. Which slots are drawn is another matter, and a subclass may leave both to others:
    `class PrioritizedSequences(SequenceReplayBuffer, PrioritizedReplayBuffer)`.
    """

    requires = ("experience", "fragments", *_ENDS)
    span = "spans"
    _rings: SpanRings

    def __repr__(self) -> str:
        rows = f"rows={self.size}, {self.span}={self._rings.drawable}"
        return f"{type(self).__name__}(capacity={self.capacity}, {rows})"

    def add(self, batch: Batch) -> None:
        """Add a fragment `[T, N, ...]`, overwriting the oldest steps; 0 rows are nothing.

        Columns that are padded (`mask` 0), such as whole episodes side by side, are written one after another into one
        ring, without the padding. Where one ends, its episode does, or is cut.

        Raises: as `ReplayBuffer.add`.
        """
        if "mask" not in batch:
            super().add(batch)
            return
        if not is_fragment(batch):
            raise SchemaError(f"{type(self).__name__} needs fragments [T, N, ...], in the order of time, not {batch!r}")
        if self.limiter is not None:
            self.limiter.check_insert(real_steps(batch))
        steps = batch.select([name for name in batch if name != "mask"])
        with self._lock:
            for column, real in enumerate(np.asarray(batch["mask"] != 0).T):
                self._rings.cut = True
                super().add(steps[np.flatnonzero(real), column][:, None])
            self._rings.cut = True

    def most_rows(self, batch_size: int) -> int:
        return batch_size * max(1, self._rings.longest())

    def why_sample(self, rows: int) -> str:
        return super().why_sample(rows) or ("" if self.holds_items else f"waits for rows: {self._none}")

    def sample(self, batch_size: int) -> Batch:
        """Draw so many spans, uniformly with replacement, side by side: `[T, batch_size, ...]`.

        Adds `mask` (bool: the steps that count), and at every step of a span the same `index` (the slot of its first
        step, int64) and `generation` (how many times that slot had been written, int64). What is not there of a span is
        0 in every other column. Of a recurrent `state` every step has that of the first one.

        Raises: ValueError if there is no span to draw yet, and as `ReplayBuffer.sample`.
        """
        with self._lock:
            if self.size and not self.holds_items:
                raise ValueError(f"nothing can be drawn yet: {self._none}; ask can_sample() first")
            before = self._samples
            drawn = super().sample(batch_size)
            self._samples = before + real_steps(drawn)
            return drawn

    def schema(self, given: Schema) -> Schema:
        drawn = given.without("on_policy").having("experience", "replayed", self.span, mask="bool[T, N]")
        return drawn.having(index="int64[T, N]", generation="int64[T, N]")

    @property
    def _none(self) -> str:
        return f"none of the {self.size} rows stored begins one of the {self.span}"

    def _length(self, steps: Index) -> int:
        """T, for spans of so many steps."""
        return int(steps.max())

    def _rows(self, index: Index, beside: dict[str, Any]) -> Batch:
        steps, warm_up = self._rings.span[:, index]
        slots, _ = self._rings.following(index, self._length(steps))
        number = np.arange(len(slots))[:, None]
        real = number < steps
        drawn = self._rings.take(slots, [name for name in self._rings.slots if name != "state"])
        if not real.all():
            drawn[~real] = 0
        if "state" in self._rings.slots:
            beside = {**beside, **self._rings.take(index, ["state"])}
        # Views: they cost nothing, and all columns have the same leading axes.
        drawn.update(Batch(beside).map(lambda column: np.broadcast_to(column, (*slots.shape, *column.shape[1:]))))
        drawn["mask"] = real & (number >= warm_up)
        return drawn

    def _check_first(self, batch: Batch) -> None:
        super()._check_first(batch)
        if not is_fragment(batch):
            raise SchemaError(
                f"{type(self).__name__} needs fragments [T, N, ...], in the order of time, not {batch!r}; rows of one "
                "environment in the order of time are batch[:, None]"
            )
        for name in _ENDS:
            if name not in batch:
                raise SchemaError(f"{type(self).__name__} needs the column {name!r}: {did_you_mean(name, batch)}")
