"""Spans: consecutive steps of one episode, drawn as a unit; the base of buffers of sequences and episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import ENDS, PROVENANCE, episode_breaks
from flowrl.data.replay.agent_runs import AHEAD, BACK, AgentRuns
from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.data.replay.eligibility import Eligibility
from flowrl.data.replay.ring_storage import Rings
from flowrl.data.replay.transitions import transitions
from flowrl.data.replay.tree import Leaf, Spec
from flowrl.data.steps import is_fragment, pad, real_steps
from flowrl.data.trajectories import of_seats
from flowrl.data.types import Array, Index, Mask
from flowrl.engine.schema import Schema
from flowrl.errors import CheckpointError, SchemaError, did_you_mean
from flowrl.saved import Saved


class Spans(Protocol):
    """The definition of spans."""

    def completed(self, count: Index, over: Mask, ended: Mask, known: Mask) -> tuple[Mask, Index, Index]:
        """Whether each step `[T, N]` completes a span, its number of steps, and how many of these do not count.

        Args:
            count: steps of the run so far. over: whether this is the last step of the run.
            ended: whether it terminated or truncated the episode. known: whether the run began with its episode.
        """


class SegmentStorage(Rings):
    """Rings of spans: a slot is drawable if a span begins there and all of it is stored.

    Each step is tested once whether it completes a span: when its successor is written, which shows whether the episode
    goes on, or at once if the step ended it. Steps are numbered 0, 1, 2 ... in each ring, in the order of writing. A
    run is the part of an episode that was written without a gap, including steps overwritten since. Its steps are side
    by side in their ring; only seats of games, whose rows name them by `env_id` and `agent`, share one: `AgentRuns`.
    """

    def __init__(self, capacity: int, spans: Spans, **options: Any) -> None:
        self.spans = spans
        super().__init__(capacity, **options)

    def _clear(self) -> None:
        super()._clear()
        self.span = np.zeros((2, 0), np.int32)
        """By slot: the steps of the span that begins there (0: none), and how many of these do not count."""
        self.longest_run = 0
        """Steps of the longest run so far."""
        self._begin: Index = np.zeros(0, np.int64)  # by ring, the first step of the newest step's run
        self._seats: AgentRuns | None = None

    def _allocate(self, specs: Mapping[Leaf, Spec], envs: int, *, flat: bool, axes: Mapping[Spec, int | None]) -> None:
        super()._allocate(specs, envs, flat=flat, axes=axes)
        self.span = np.zeros((2, self.length * envs), np.int32)
        if envs == 1 and {("env_id",), ("agent",)} <= specs.keys():
            self._seats = AgentRuns(self.length)

    @property
    def bytes(self) -> int:
        return super().bytes + self.span.nbytes + (0 if self._seats is None else self._seats.apart.nbytes)

    def write(
        self, batch: Batch, *, slots: bool = False, begins: Array | None = None, uses: Array | None = None
    ) -> tuple[Index, Index]:
        before, newest = self.written, None
        if before and self.columns is not None:
            newest = self._tell(self.columns)[[(before - 1) % self.length]]
        cut = np.zeros(batch.shape, np.bool_) if begins is None else begins.copy()
        over = self.cut
        written, _ = super().write(batch, slots=True, begins=begins, uses=uses)
        if self.written == before:
            return written, written
        self.span[:, written] = 0
        told = self._tell(batch).to_numpy()
        if self._seats is not None:
            return written, self._opened_of_seats(self._seats, told.flat(), cut.ravel(), over)
        cut[:1] |= over
        return written, self._opened(newest, told, cut)

    @staticmethod
    def _tell(steps: Batch) -> Batch:
        """The columns that mark the ends of episodes."""
        return steps.select([name for name in (*ENDS, *PROVENANCE) if name in steps])

    def _opened(self, newest: Batch | None, told: Batch, cut: Array) -> Index:
        """Record the spans that new steps `[T, N]`, or the previous `newest`, completed; return where they begin."""
        told = told if newest is None else Batch.cat([newest, told])
        number = np.arange(self.written - len(told), self.written)[:, None]
        ended = (told["terminated"] != 0) | (told["truncated"] != 0)
        over, settled = ended.copy(), np.ones_like(ended)
        over[:-1] |= episode_breaks(told) | cut[newest is None :]
        settled[-1] = ended[-1]
        first = number[0]
        if newest is not None:
            settled[0] = ~ended[0]  # else its span was recorded when it was written
            first = self._begin
        begin = np.vstack([np.broadcast_to(first, ended[:1].shape), number[1:] * over[:-1]])
        begin = np.maximum.accumulate(begin, axis=0)
        self._begin = begin[-1]
        count = number + 1 - begin
        self.longest_run = max(self.longest_run, int(count.max()))
        known = told["t"] == count - 1 if "t" in told else np.ones_like(ended)
        complete, steps, warm_up = self.spans.completed(count, over, ended, known)
        start = number + 1 - steps
        complete &= settled & (start >= self.written - self.length)
        slot: Index = (start % self.length * self.envs + np.arange(self.envs))[complete]
        self.span[:, slot] = steps[complete], warm_up[complete]
        return slot

    def _opened_of_seats(self, seats: AgentRuns, told: Batch, begins: Mask, cut: bool) -> Index:
        """The same for new steps `[B]` of seats that share the ring."""
        rows, number, count, ended, over, settled = seats.add(told, self.written, begins, cut=cut)
        self.longest_run = max(self.longest_run, int(count.max()))
        known = rows["t"] == count - 1 if "t" in rows else np.ones_like(ended)
        complete, steps, warm_up = self.spans.completed(count, over, ended, known)
        complete &= settled & (number >= self.written - self.length)
        last, steps, warm_up = number[complete] % self.length, steps[complete], warm_up[complete]
        if not len(last):
            return last
        way, missing = seats.walk(last, int(steps.max()), BACK, self._age(last))
        each = np.arange(len(last))
        stored = (steps == 1) | ~np.logical_or.accumulate(missing)[steps - 2, each]
        slot: Index = way[steps - 1, each][stored]
        self.span[:, slot] = steps[stored], warm_up[stored]
        return slot

    def following(self, slot: Index, n: int) -> tuple[Index, Mask]:
        """See `Rings.following`; of a seat, those of its run."""
        if self._seats is None:
            return super().following(slot, n)
        return self._seats.walk(slot, n, AHEAD, min(self.written, self.length) - 1 - self._age(slot))

    def preceding(self, slot: Index, n: int) -> tuple[Index, Mask]:
        """See `Rings.preceding`; of a seat, those of its run."""
        if self._seats is None:
            return super().preceding(slot, n)
        return self._seats.walk(slot, n, BACK, self._age(slot))

    def begins(self, slot: Index) -> Mask:
        """See `Rings.begins`; of a seat, whether its step does not continue the step before it in its run."""
        return super().begins(slot) if self._seats is None else self._seats.begins(slot, self._age(slot))

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        own: dict[str, Any] = {"spans": repr(self.spans), "span": self.span[:, : self.size].copy()}
        if self._seats is None:
            own["begin"] = self._begin.copy()
        else:
            own["seats"] = self._seats.state_dict(self.size)
        return {**super().state_dict(copy=copy), **own}

    def _load(self, saved: Saved) -> None:
        if (given := saved.get("spans", str, otherwise="single rows")) != repr(self.spans):
            raise CheckpointError(f"the saved buffer gives out {given}, this one {self.spans!r}; it must be equal")
        super()._load(saved)
        span = saved.array("span", np.int32, (2, self.size), least=0)
        steps, warm_up = span
        there = self._age(np.arange(self.size)) + steps <= min(self.written, self.length) if self.size else True
        if not np.all(there & (warm_up <= steps)):
            saved.refuse("span", "spans of stored steps, at most all of which warm up")
        self.span[:, : self.size] = span
        if self._seats is None:
            begin = saved.array("begin", np.int64, (self.envs,), least=0, most=max(0, self.written - 1))
            self._begin = begin.copy()
        elif "seats" in saved and self.columns is not None:
            dtypes = {name: column.dtype for name, column in self._tell(self.columns).items()}
            self._seats.load(saved.inside("seats"), self._age(np.arange(self.size)), self.written, dtypes)
        else:  # of before seats shared a ring
            self._seats.in_a_row(self.size)

    def drawable_slots(self) -> Mask:
        return self.span[0, : self.size] > 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "spans": self.spans}


class SpanReplayBuffer(ReplayBuffer):
    """Base of buffers of sequences and episodes, which draw spans side by side, `[T, B, ...]`.

    The slot of a span is that of its first step, which holds its uses and its age. Another base class may choose the
    slots to draw:
    `class PrioritizedSequences(SequenceReplayBuffer, PrioritizedReplayBuffer)`.
    """

    requires = ("experience", "fragments", *ENDS)
    takes_padding = True
    span = "spans"
    _picks = True
    _rings: SegmentStorage
    _limits: Eligibility

    def __init__(self, capacity: int, **others: Any) -> None:
        for name in ("n_step", "gamma"):
            if name in others:
                raise ValueError(
                    f"{name} is of transitions: a {type(self).__name__} gives out all steps of its {self.span}"
                )
        super().__init__(capacity, **others)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.span}={self._limits.count})"

    def add(self, batch: Batch) -> None:
        """Add a fragment `[T, N, ...]`, overwriting the oldest steps; 0 rows are nothing.

        Padded columns (`mask` 0), such as whole episodes side by side, are written one after another into one ring,
        without padding. The end of a column ends or cuts its episode, except for seats of games, which `env_id` and
        `agent` name: they go on in the next fragment.

        Raises: see `ReplayBuffer.add`.
        """
        if "mask" not in batch:
            super().add(batch)
            return
        if not is_fragment(batch):
            raise self._needs_fragments(batch)
        steps = batch.select([name for name in batch if name != "mask"])
        if of_seats(batch):
            with self._lock:
                if self._rings.columns is None and not steps.is_empty:
                    self._check_spans(steps)
                seat, time = np.nonzero(np.asarray(batch["mask"] != 0).T)
                super().add(steps[time, seat][:, None])
            return
        if self.limiter is not None:
            self.limiter.check_insert(real_steps(batch))
        with self._lock:
            cut = self._rings.cut
            try:
                for column, real in enumerate(np.asarray(batch["mask"] != 0).T):
                    self._rings.cut = True
                    super().add(steps[np.flatnonzero(real), column][:, None])
            except SchemaError:  # raised for all columns or none: nothing was added
                self._rings.cut = cut
                raise
            self._rings.cut = True

    def sample(self, batch_size: int) -> Batch:
        """Draw `batch_size` spans, with replacement, side by side: `[T, batch_size, ...]`.

        Adds `mask` (bool: the steps that count), and at every step of a span the same `index` (the slot of its first
        step, int64) and `generation` (how many times that slot has been written, int64). Missing steps of a span are 0
        in the stored columns. Every step has the recurrent `state` of the first one.

        Raises: see `ReplayBuffer.sample`.
        """
        with self._lock:
            before = self._samples
            drawn = super().sample(batch_size)
            self._samples = before + real_steps(drawn)
            return drawn

    def replace(self, drawn: Batch, columns: Batch) -> int:
        """Replace columns `[T, B, ...]` of the steps of spans that were drawn; returns how many steps are gone (P4).

        Args:
            drawn: A sample of this buffer, whose steps with a `mask` are replaced.
            columns: New values of stored columns; a dtype or a shape per step does not change.

        Raises: SchemaError for a column that is not stored, or has other shapes.
        """
        with self._lock:
            index, generation = drawn["index"][0], drawn["generation"][0]
            slots, _ = self._rings.following(index, len(drawn["index"]))
            there = self._rings.generation(index) == generation
            real = np.asarray(drawn["mask"] != 0)
            self._rings.replace(slots[real & there], columns[real & there])
            return int((real & ~there).sum())

    def schema(self, given: Schema) -> Schema:
        """See `ReplayBuffer.schema`."""
        return self._schema(given, "T", "N").having(self.span, mask="bool[T, N]")

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if name not in ("n_step", "gamma")}

    def _make_rings(self, capacity: int, **options: Any) -> Rings:
        return SegmentStorage(capacity, self._spans(), **options)

    def _spans(self) -> Spans:
        """The spans of this buffer."""
        raise NotImplementedError

    def _length(self, steps: Index) -> int:
        """T for drawn spans with these numbers of steps."""
        return int(steps.max())

    def _rows(self, index: Index, beside: dict[str, Any]) -> Batch:
        rings = self._rings
        steps, warm_up = rings.span[:, index]
        slots, _ = rings.following(index, self._length(steps))
        number, flat = np.arange(len(slots))[:, None], slots.ravel()
        rows = transitions(rings, flat, flat, self.frame_stack, self._new, without=("state",))
        drawn = rows.map(lambda column: column.reshape(*slots.shape, *column.shape[1:]))
        real = number < steps
        if not real.all():
            pad(drawn, real)
        if "state" in rings:
            beside = {**beside, **rings.take(index, ["state"])}
        # Views, at no cost, so that all columns have the same leading axes.
        drawn.update(Batch(beside).map(lambda column: np.broadcast_to(column, (*slots.shape, *column.shape[1:]))))
        drawn["mask"] = real & (number >= warm_up)
        return drawn

    def _why_not(self, rows: int) -> str:
        if self.size and not self._rings.span[0].any():
            return f"waits for rows: none of the {self.size} stored begins one of the {self.span}"
        return super()._why_not(rows)

    def _needs_fragments(self, batch: Batch) -> SchemaError:
        return SchemaError(
            f"{type(self).__name__} needs fragments [T, N, ...], in the order of time, not {batch!r}; rows of one "
            "environment in the order of time are batch[:, None]"
        )

    def _write(self, batch: Batch, begins: Array | None = None, uses: Array | None = None) -> None:
        if self._rings.columns is None and not batch.is_empty:
            self._check_spans(batch)
        super()._write(batch, begins, uses)

    def _check_spans(self, batch: Batch) -> None:
        """Raise unless the first batch can form spans."""
        if not is_fragment(batch):
            raise self._needs_fragments(batch)
        for name in ENDS:
            if name not in batch:
                raise SchemaError(f"{type(self).__name__} needs the column {name!r}: {did_you_mean(name, batch)}")
