"""ReplayBuffer: the newest rows of experience, drawn uniformly."""

from __future__ import annotations

import copy
import threading
from typing import Any, Protocol

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import PROVENANCE, episode_breaks
from flowrl.data.limiter import RateLimiter
from flowrl.data.rings import Index, Rings
from flowrl.errors import SchemaError, did_you_mean
from flowrl.returns import n_step as n_step_windows
from flowrl.schema import Schema

_OF_LAST = ("next_obs", "terminated", "truncated")


class _Seeds(Protocol):
    def seed(self, name: str = "") -> int: ...


class ReplayBuffer:
    """Keeps the newest rows and draws them uniformly, with replacement.

    Flat batches `[B, ...]` fill one ring of `capacity` rows; fragments `[T, N, ...]` fill N rings, one per
    environment, of capacity // N rows each. A buffer holds one of the two. Columns are allocated at the
    first `add` with its names, dtypes and shapes (uint8 stays uint8, B6); later batches must be alike.
    `add` and `sample` may be called from different threads. They never wait: where there is a limiter, ask
    `can_insert` and `can_sample` first.

    Other buffers are subclasses. Slots are numbered time-major, `time * N + environment`, in `self._rings`, which
    knows what follows and precedes a row, and which rows are drawable. A subclass overrides `_drawn` (which slots to
    give out), `_rows` (what is given out for them), `_stored` and `_dropped` (with `_watches = True`: rows came and
    went), and extends `state_dict`, `load_state_dict` and `settings` (what `load` makes the buffer with).

    Args:
        capacity: rows, over all rings.
        n_step: steps per transition drawn. More than 1 needs fragments and is computed when sampling, in
            windows that end with the episode, at the newest row of the ring, and where provenance (`worker`,
            `env_id`, `episode_id`, `t`, if stored) shows that the next row is not its next step (N1-N4).
        gamma: discount per step.
        limiter: keeps sampled and added rows in a ratio.
        seed: of the buffer's own generator (P7); without it, the run that opens the buffer gives one.

    Raises: ValueError for a setting or a request that cannot work, SchemaError for a batch that does not fit.

    >>> buffer = ReplayBuffer(capacity=100, gamma=0.5, seed=0)
    >>> buffer.add(Batch(obs=np.arange(3), terminated=np.array([False, False, True])))
    >>> buffer
    ReplayBuffer(capacity=100, rows=3)
    >>> rows = buffer.sample(4)
    >>> rows.obs, rows.discount
    (array([2, 1, 1, 0]), array([0. , 0.5, 0.5, 0.5], dtype=float32))
    """

    requires: tuple[str, ...] = ("experience",)
    """Words and columns of what is added."""

    def __init__(
        self,
        capacity: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        limiter: RateLimiter | None = None,
        seed: int | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: a buffer holds at least 1 row")
        if n_step < 1:
            raise ValueError(f"n_step is {n_step}: a transition spans at least 1 step")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}: a discount lies in 0 .. 1")
        self.n_step = n_step
        self.gamma = gamma
        self.limiter = limiter
        self._rings = Rings(capacity)
        self._samples = 0
        self._generator = None if seed is None else np.random.default_rng(seed)
        self._lock = threading.RLock()

    @property
    def capacity(self) -> int:
        """Rows that there is room for, over all rings."""
        return self._rings.capacity

    @property
    def size(self) -> int:
        """Rows stored."""
        return self._rings.size

    @property
    def holds_items(self) -> bool:
        """Can something be drawn before a plan adds something?"""
        return self._rings.drawable > 0

    @property
    def fills_up(self) -> bool:
        """Must something be drawn before more can be added?"""
        return self.limiter is not None

    @property
    def inserts(self) -> int:
        """Rows ever added."""
        return self._rings.inserts

    @property
    def samples(self) -> int:
        """Rows ever drawn."""
        return self._samples

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True  # an empty buffer is still a buffer: `if buffer` must not depend on its rows

    def __repr__(self) -> str:
        steps = f", n_step={self.n_step}" if self.n_step > 1 else ""
        return f"ReplayBuffer(capacity={self.capacity}, rows={self.size}{steps})"

    # -- when to add and when to draw

    def can_insert(self, rows: int) -> bool:
        """Whether `rows` more may be added now."""
        return self.limiter is None or self.limiter.can_insert(self.inserts, self.samples, rows)

    def can_sample(self, rows: int) -> bool:
        """Whether `rows` may be drawn now."""
        most = self.most_rows(rows)
        if self.limiter is not None and not self.limiter.can_sample(self.inserts, self.samples, most):
            return False
        return self.holds_items

    def why_insert(self, rows: int) -> str:
        """What adding `rows` waits for, in one sentence; "" if nothing."""
        return "" if self.limiter is None else self.limiter.why_insert(self.inserts, self.samples, rows)

    def why_sample(self, rows: int) -> str:
        """What drawing `rows` waits for, in one sentence; "" if nothing."""
        if self.limiter is not None:
            return self.limiter.why_sample(self.inserts, self.samples, self.most_rows(rows))
        return "" if self.size else "waits for rows: nothing is stored yet"

    # -- in and out

    def start(self, context: _Seeds) -> None:
        """The engine's hook, when a run opens: take a generator from its seeds, unless there is one."""
        if self._generator is None:
            self._generator = np.random.default_rng(context.seed("sample"))

    def add(self, batch: Batch) -> None:
        """Add rows `[B, ...]` or a fragment `[T, N, ...]`, overwriting the oldest; 0 rows are nothing.

        Raises: SchemaError naming column, expected and got, and for padded steps (`mask` 0); ValueError for more
            rows than the limiter was told.
        """
        if self.limiter is not None:
            self.limiter.check_insert(batch.rows)
        if batch.is_empty:
            return
        if "mask" in batch and not np.all(batch["mask"]):
            raise SchemaError(
                "the batch has padded steps (mask 0), which would be drawn like any other: "
                "put NStep(n=1, gamma=...) before the buffer, it drops them"
            )
        with self._lock:
            if self._rings.columns is None:
                self._check_first(batch)
            written, drawable = self._rings.write(batch, slots=self._watches)
            if self._watches:
                self._stored(written, drawable)

    def sample(self, batch_size: int) -> Batch:
        """Rows `[batch_size, ...]`, uniform with replacement: so they may be more than are stored (B7).

        Adds `index` (the slot of the row, int64), `generation` (how many times the slot had been written,
        int64) and, where `terminated` is stored and `discount` is not, `discount` (float32: γᵏ for the k
        steps of the transition, 0 if it terminated). With n_step > 1 reward is the window's return, and
        next_obs, terminated and truncated are those of its last step.

        Raises: ValueError if nothing is stored, if batch_size < 1 or more than the limiter was told, and if
            there is neither a seed nor a run to give one.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: draw at least 1 row")
        if self.limiter is not None:
            self.limiter.check_sample(self.most_rows(batch_size))
        with self._lock:
            if not self.size:
                raise ValueError("sample() from an empty buffer: add rows first, or ask can_sample()")
            if self._generator is None:
                raise ValueError("no generator to draw with: give ReplayBuffer a seed=, or use it in a run")
            index, more = self._drawn(batch_size)
            rows = self._rows(index, {"index": index, "generation": self._rings.generation(index), **more})
            self._samples += batch_size
            return rows

    def most_rows(self, batch_size: int) -> int:
        """The most rows that `sample(batch_size)` gives, as the limiter counts them."""
        return batch_size

    def schema(self, given: Schema) -> Schema:
        """What `sample` gives, from the schema of what is added."""
        drawn = given.rows().without("on_policy").having("experience", "replayed")
        drawn = drawn.having(index="int64[B]", generation="int64[B]")
        return drawn.having(discount="float32[B]") if "terminated" in given.columns else drawn

    # -- what kinds of buffers differ in; all of it is called under the lock

    _watches = False
    """Whether `_stored` and `_dropped` are called: they cost time, which uniform sampling need not pay."""

    def _drawn(self, batch_size: int) -> tuple[Index, dict[str, Any]]:
        """Which slots to give out `[B]`, and columns `[B, ...]` to add to what is drawn. Uniform here."""
        assert self._generator is not None
        return self._rings.nth(self._generator.integers(self._rings.drawable, size=batch_size)), {}

    def _rows(self, index: Index, beside: dict[str, Any]) -> Batch:
        """What is given out for slots `[B]`: their rows, as one step or as n-step windows, and columns `[B, ...]`."""
        rows = self._one_step(index) if self.n_step == 1 else self._windows(index)
        rows.update(beside)
        return rows

    def _stored(self, written: Index, drawable: Index) -> None:
        """Rows were written: what was in the slots `written` is gone; those in `drawable` can be drawn from now on.

        They differ where next_obs is stored once: the newest row of a ring is drawable when its successor is there.
        """

    def _dropped(self, slots: Index) -> None:
        """Rows that were drawable cannot be drawn any longer, though they are stored: used up, or too stale."""

    def _one_step(self, index: Index) -> Batch:
        rows: Batch = self._rings.slots[index]
        if "discount" not in rows and "terminated" in rows:
            rows["discount"] = np.where(rows["terminated"], 0, self.gamma).astype(np.float32)
        return rows

    def _windows(self, index: Index) -> Batch:
        slots = self._rings.slots
        window, ended = self._rings.following(index, self.n_step)
        ended |= slots["truncated"][window] != 0
        ended[:-1] |= episode_breaks(slots.select([name for name in PROVENANCE if name in slots])[window])
        reward, terminated = slots["reward"][window], slots["terminated"][window]
        total, steps, discount = n_step_windows(reward, terminated, ended, gamma=self.gamma, n=self.n_step)
        rows: Batch = slots.select([name for name in slots if name not in _OF_LAST])[index]
        rows.update(slots.select(_OF_LAST)[window[steps[0] - 1, np.arange(len(index))]])
        rows.update(reward=total[0], discount=discount[0].astype(np.float32))
        return rows

    def _check_first(self, batch: Batch) -> None:
        if len(batch.shape) > 2:
            raise SchemaError(f"cannot tell rows from features, no column has one number per row: {batch!r}")
        if made := [name for name in ("index", "generation") if name in batch]:
            raise SchemaError(f"the column {made[0]!r} is made by sample(): drop it before adding")
        if self.n_step == 1:
            return
        if len(batch.shape) == 1:
            raise SchemaError(f"n_step={self.n_step} needs fragments [T, N, ...] in order of time, not {batch!r}")
        if "discount" in batch:
            raise SchemaError(f"n_step={self.n_step} makes the column 'discount', which the batch has already")
        for name in ("reward", *_OF_LAST):
            if name not in batch:
                raise SchemaError(f"n_step={self.n_step} needs the column {name!r}: {did_you_mean(name, batch)}")

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """All that decides what comes next, as plain data: loaded, the next sample is identical (B5)."""
        with self._lock:
            generator = None if self._generator is None else self._generator.bit_generator.state
            return {
                **self._rings.state_dict(),
                "samples": self._samples,
                "generator": copy.deepcopy(generator),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the buffer that was saved. Raises CheckpointError for one of another capacity."""
        with self._lock:
            self._rings.load_state_dict(state)
            self._samples = state["samples"]
            if state["generator"] is not None:
                self._generator = self._generator or np.random.default_rng(0)
                self._generator.bit_generator.state = copy.deepcopy(state["generator"])

    def settings(self) -> dict[str, Any]:
        """The arguments that make such a buffer, without the seed: what `save` writes beside the state."""
        return {"capacity": self.capacity, "n_step": self.n_step, "gamma": self.gamma, "limiter": self.limiter}

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
