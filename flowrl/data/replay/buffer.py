"""ReplayBuffer: the newest rows, drawn uniformly; and the base of the other buffers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, Self, TypeVar

import attrs
import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.replay.base import PADDED, SAVED, Store
from flowrl.data.replay.eligibility import Eligibility
from flowrl.data.replay.frame_stack import newest_frames, stacked_schema
from flowrl.data.replay.pool import Pool
from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.data.replay.ring_storage import Rings, must_equal
from flowrl.data.replay.shared_frames import told_form
from flowrl.data.replay.transitions import check_first, content, needed, one_step, transitions, windows
from flowrl.data.replay.tree import Spec
from flowrl.data.steps import real_steps
from flowrl.data.types import Array, Index, New
from flowrl.engine.schema import Schema
from flowrl.errors import CheckpointError, SchemaError
from flowrl.saved import MOST, Saved
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint


class SampleSchema(Store):
    """The schema of a replay buffer's samples, for `plan.check()`; buffers with other samples override it."""

    requires: tuple[str, ...] = ("experience",)
    takes_padding = False
    n_step: int
    track_uses: bool
    frame_stack: int
    newest_frame_only: bool
    share_frames: bool

    def schema(self, given: Schema) -> Schema:
        """The schema of samples, from the schema of the added items."""
        drawn = self._schema(given.rows(), "B").having(*(("windows",) if self.n_step > 1 else ()))
        return drawn.having(discount="float32[B]") if "terminated" in given.columns else drawn

    def kept_once(self, given: Schema) -> str:
        """See `Store.kept_once`.

        >>> given = Schema.of_columns(obs="uint8[B, 4, 84, 84]", next_obs="uint8[B, 4, 84, 84]")
        >>> ReplayBuffer(10, share_frames=True).kept_once(given)
        'frames stored once: 4 x 84 x 84 as 84 x 84'
        """
        if not self.share_frames:
            return ""
        forms = [
            Spec(np.dtype(column.dtype), tuple(size for size in column.shape if isinstance(size, int)))
            for name, column in given.columns.items()
            if name.partition(".")[0] == "obs"
        ]
        told = dict.fromkeys(filter(None, map(told_form, forms)))
        return f"frames stored once: {', '.join(told)}" if told else ""

    def _schema(self, given: Schema, *axes: str) -> Schema:
        """The schema of samples with these leading axes, from the schema of the stored rows."""
        beside = {name: f"{dtype}[{', '.join(axes)}]" for name, dtype in self._beside(given).items()}
        drawn = given.without("on_policy").having("experience", "replayed", **beside)
        return drawn if self.newest_frame_only else stacked_schema(drawn, self.frame_stack, len(axes))

    def _beside(self, given: Schema) -> dict[str, str]:
        """The columns that sampling adds to the stored ones, with their dtypes."""
        names = ["index", "generation"]
        if self.track_uses:
            names += ["uses", *(["staleness"] if "policy_version" in given.columns else [])]
        return dict.fromkeys(names, "int64")


class ReplayBuffer(SampleSchema):
    """Keeps the newest rows and draws them uniformly, with replacement.

    Flat batches `[B, ...]` fill one ring of `capacity` rows; fragments `[T, N, ...]` fill N rings, one per
    environment, of capacity // N rows each. A buffer holds one of the two. The first `add` allocates columns with its
    names, dtypes and shapes (uint8 stays uint8, B6); later batches must match. `add` and `sample` may be called from
    different threads. They never wait: if there is a limiter, check `can_insert` and `can_sample` first.

    `buffer[...]` returns rows in the order of time, environments side by side: by index, slice, array or mask. The
    column `index` of samples holds slots instead, for `get`, `next` and `prev`.

    Other buffers are subclasses. Slots are numbered time-major, `time * N + environment`, in `self._rings`, which
    knows the neighbors of a row and which rows are drawable. A subclass overrides `_drawn` (the slots to draw),
    `_rows` (the sample for these slots), `_stored` and `_dropped` (with `_watches = True`: rows come and go), sets
    `_linked = True` if it uses `self._rings.begins`, and extends `state_dict`, `load_state_dict` and `settings` (the
    arguments that `load` passes). One that draws only some rows overrides `_make_rings`, whose `write` returns them,
    and sets `_picks = True`.

    Args:
        capacity: rows, over all rings. capacity_bytes: bytes of their columns; the smaller limit counts.
        n_step: steps per drawn transition. More than 1 needs fragments and is computed when sampling, in windows that
            stop at the end of the episode, at the newest row of the ring, and where provenance (`worker`, `env_id`,
            `episode_id`, `t`, if stored) shows that the next row is not the next step (N1-N4).
        gamma: discount per step.
        store_next_obs: False rebuilds `next_obs` from the next row, for about half the memory. It is still stored
            where the next row lacks it, as at the end of an episode (T6). The newest row of each ring can be drawn
            once its successor is stored (B2).
        frame_stack: frames per drawn observation, `[B, k, ...]`. More than 1 needs fragments of single frames; at the
            start of an episode the first frame repeats (B1).
        newest_frame_only: added observations are stacks `[..., k, *frame]`, of which only the newest frame is stored.
            Samples equal them if the environment also repeats the first frame.
        track_uses: adds the columns `uses`, how often a row was drawn, this time included, and, if `policy_version`
            is stored, `staleness`, the versions by which it is older than the newest one stored; both int64.
        max_uses, max_staleness: rows beyond these limits are no longer drawn (B10); either implies `track_uses`.
        share_frames: whether to store each frame of wide observations once, in however many stacks and `next_obs` it is
            (B13); changes no sample. `store_next_obs=False` and `frame_stack` do without.
        directory: a folder for the columns, if they do not fit into memory.
        reuse: whether to draw wide columns into arrays that are no longer referenced, instead of new ones. This saves
            the time to allocate large arrays.
        limiter: keeps sampled and added rows in a ratio.
        seed: seed of the buffer's generator (P7); None: the run that opens the buffer provides one.

    Raises: ValueError for an invalid setting or request, SchemaError for a batch that does not fit.

    >>> buffer = ReplayBuffer(capacity=10, gamma=0.5, seed=0)
    >>> buffer.add(Batch(obs=np.arange(15), terminated=np.arange(15) % 5 == 4))
    >>> buffer
    ReplayBuffer(capacity=10, rows=10)
    >>> rows = buffer.sample(4)
    >>> rows.obs, rows.discount
    (array([ 8,  6,  5, 12]), array([0.5, 0.5, 0.5, 0.5], dtype=float32))
    >>> buffer[-3:].obs, buffer[0].obs
    (array([12, 13, 14]), np.int64(5))
    """

    _watches = False
    """Whether to call `_stored` and `_dropped`, which uniform sampling does not need."""
    _made: tuple[str, ...] = ("index", "generation")
    """Columns that sampling adds, without the `tracked` ones."""
    _linked = False
    """Whether rows record if an episode begins there."""
    _picks = False
    """Whether some rows are never drawn."""

    def __init__(
        self,
        capacity: int,
        *,
        capacity_bytes: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        store_next_obs: bool = True,
        frame_stack: int = 1,
        newest_frame_only: bool = False,
        track_uses: bool = False,
        max_uses: int | None = None,
        max_staleness: int | None = None,
        share_frames: bool = False,
        directory: str | Path | None = None,
        reuse: bool = False,
        limiter: RateLimiter | None = None,
        seed: int | None = None,
    ) -> None:
        _check(capacity, n_step, gamma, max_uses, max_staleness, limiter)
        if frame_stack < 1 or (newest_frame_only and frame_stack == 1):
            raise ValueError(f"frame_stack is {frame_stack}: an observation has at least 1 frame, a stack at least 2")
        super().__init__(limiter, seed)
        self.n_step = n_step
        self.gamma = gamma
        self.frame_stack = frame_stack
        self.newest_frame_only = newest_frame_only
        self.share_frames = share_frames and store_next_obs and frame_stack == 1
        self.track_uses = track_uses or max_uses is not None or max_staleness is not None
        self.tracked = ("uses", "staleness") if self.track_uses else ()
        self.in_order = n_step > 1 or frame_stack > 1 or self._picks
        in_order = ("fragments",) if n_step > 1 or frame_stack > 1 else ()
        columns = needed(n_step, frame_stack, max_staleness).values()
        self.requires = tuple(dict.fromkeys((*type(self).requires, *in_order, *chain(*columns))))
        self._rings = self._make_rings(
            capacity,
            capacity_bytes=capacity_bytes,
            store_next_obs=store_next_obs,
            linked=self._linked or n_step > 1 or frame_stack > 1,
            count_uses=self.track_uses,
            share_frames=self.share_frames,
            directory=directory,
        )
        limited = self._picks or max_uses is not None or max_staleness is not None
        self._limits = Eligibility(max_uses, max_staleness) if limited else None
        self._pool = Pool() if reuse else None
        self._samples = 0
        self._newest_version: int | None = None
        self._looked = (perf_counter(), 0, 0)

    @property
    def capacity(self) -> int:
        """The capacity in rows, over all rings; before the first row an upper bound, with `capacity_bytes`."""
        return self._rings.capacity

    @property
    def size(self) -> int:
        """Rows stored."""
        return self._rings.size

    @property
    def envs(self) -> int | None:
        """The environments side by side in the stored rows; None: they are flat, or there are none."""
        return None if self._rings.flat else self._rings.envs or None

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

    def rows_of(self, item: Any) -> int:
        """The number of rows of a batch that is added or was drawn, without padding (`mask` 0)."""
        if not isinstance(item, Batch):
            raise SchemaError(
                f"{type(self).__name__} stores batches, got a {type(item).__name__}; make it a Batch(...)"
            )
        return real_steps(item)

    def __repr__(self) -> str:
        steps = f", n_step={self.n_step}" if self.n_step > 1 else ""
        return f"{type(self).__name__}(capacity={self.capacity}, rows={self.size}{steps})"

    def _can_draw(self, batch_size: int) -> bool:
        return self._rings.drawable > 0 if self._limits is None else self._limits.can_draw(batch_size)

    def _why_not(self, batch_size: int) -> str:
        if not self.size:
            return super()._why_not(batch_size)
        if self._limits is None or not self._rings.drawable:
            return "waits for rows: the newest row of each environment is drawn when its successor is there"
        return f"waits for rows: {self._limits.why(batch_size)}"

    @property
    def made(self) -> list[str]:
        """Columns of samples that were not added."""
        return [*self._made, *self.tracked]

    # -- in

    def add(self, batch: Batch) -> None:
        """Add rows `[B, ...]` or a fragment `[T, N, ...]`, overwriting the oldest; 0 rows are nothing.

        Raises: SchemaError naming the column, the expected and the actual form, and for padded steps (`mask` 0);
            ValueError for more rows than the limiter's `insert_batch`; OSError if `directory` has no room.
        """
        if type(batch) is not Batch:
            self.rows_of(batch)  # raises with the reason
        if self.limiter is not None:
            self.limiter.check_insert(self._rings.rows(batch))
        if "mask" in batch and not np.all(batch["mask"]):
            raise SchemaError(f"the batch has padded steps (mask 0), {PADDED}")
        if self.newest_frame_only and not batch.is_empty:
            batch = newest_frames(batch, self.frame_stack)
        with self._lock:
            self._write(batch)

    def update(self, other: ReplayBuffer) -> None:
        """Add the rows of another buffer in the order of time; no episode continues across the seams (B3).

        Use it to resize a buffer: `larger.update(buffer)`. If `larger` was empty, later additions continue after the
        last row. The counts of uses are kept.

        Raises: SchemaError like `add`; ValueError for the buffer itself.
        """
        if not isinstance(other, ReplayBuffer):
            raise SchemaError(
                f"update() adds the rows of another ReplayBuffer, not a {type(other).__name__}; see add()"
            )
        if other is self:
            raise ValueError("a buffer cannot be updated with itself: its rows are there already")
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock:
            seam = self.size > 0 and other.size > 0
            for rows, begins, uses in other._rings.in_order():
                self._write(rows, begins, uses)
            self._rings.cut |= seam or other._rings.cut

    def take_over(self, state: dict[str, Any]) -> None:
        """Take over the rows of the saved state of another run's buffer, with their priorities and counts of uses.

        The episodes of rows that are added later begin there, sampling is in balance with the limiter, and the random
        stream stays that of this buffer.

        Raises: CheckpointError like `load_state_dict`; a capacity must be equal.
        """
        with self._lock:
            self.load_state_dict({**state, "generator": None})
            self._rings.cut = True
            limiter = self.limiter
            self._samples = 0 if limiter is None else int(limiter.ratio * max(0, self.inserts - limiter.min_size))

    def _write(self, batch: Batch, begins: Array | None = None, uses: Array | None = None) -> None:
        rings = self._rings
        if rings.columns is None:
            if batch.is_empty:
                return
            stalest = None if self._limits is None else self._limits.max_staleness
            check_first(batch, self.n_step, self.frame_stack, made=self.made, max_staleness=stalest)
        notices = self._watches or self._limits is not None
        steps = rings.written
        written, drawable = rings.write(batch, slots=notices, begins=begins, uses=uses)
        if self.track_uses and "policy_version" in batch and rings.written > steps:
            newest = int(batch["policy_version"].max())
            self._newest_version = max(newest, newest if self._newest_version is None else self._newest_version)
        if not notices:
            return
        stale = written[:0]
        if self._limits is not None:
            if not self._limits.slots:
                self._limits.reset(rings.length * rings.envs)
            counts = rings.uses(drawable) if rings.count_uses else None
            versions = rings.take(drawable, ["policy_version"])["policy_version"] if self._limits.of_versions else None
            drawable, stale = self._limits.stored(written, drawable, counts, versions, self._newest_version)
        if self._watches:
            self._stored(written, drawable)
            if len(stale):
                self._dropped(stale)

    # -- out

    def sample(self, batch_size: int) -> Batch:
        """Rows `[batch_size, ...]`, uniform with replacement, so possibly more than are stored (B7).

        Adds `index` (the slot of the row, int64), `generation` (how many times the slot has been written, int64)
        and, if `terminated` is stored and `discount` is not, `discount` (float32: γᵏ for the k steps of the
        transition, 0 if it terminated). With n_step > 1 reward is the window's return, and
        next_obs, terminated and truncated are those of its last step.

        Raises: ValueError if nothing may be drawn, if batch_size < 1 or above the limiter's `sample_batch`, and if
            neither a seed nor a run provides a generator.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: draw at least 1 row")
        if self.limiter is not None:
            self.limiter.check_sample(self.most_rows(batch_size))
        with self._lock:
            if not self.size:
                raise ValueError("sample() from an empty buffer: add rows first, or ask can_sample()")
            if not self._can_draw(batch_size):
                raise ValueError(f"sample({batch_size}) {self._why_not(batch_size)}; ask can_sample() before")
            index, more = self._drawn(batch_size)
            if self.track_uses:
                self._rings.used(index)
            beside = {"index": index, "generation": self._rings.generation(index), **more}
            if self.track_uses:
                beside["uses"] = self._rings.uses(index)
                if self._newest_version is not None:
                    version = self._rings.take(index, ["policy_version"])["policy_version"]
                    beside["staleness"] = self._newest_version - version.astype(np.int64)
            rows = self._rows(index, beside)
            self._samples += batch_size
            return rows

    def get(self, index: Any) -> Batch:
        """The rows in slots, as in the column `index` of samples: as stored, one step each.

        A slot keeps its number while the row is stored, whereas `buffer[...]` counts from the oldest row.

        Raises: IndexError for an empty slot.
        """
        with self._lock:
            slots = self._slots(index)
            flat = slots.reshape(-1)
            rows = transitions(self._rings, flat, flat, self.frame_stack, self._new)
            return rows if slots.ndim else rows[0]

    def next(self, index: Any) -> Index:
        """The slots of the next step of the same episode and environment.

        The slot itself where the episode ends, or its next step is not stored. Raises: see `get`.

        >>> buffer = ReplayBuffer(capacity=10, seed=0)
        >>> buffer.add(Batch(obs=np.arange(4), terminated=[False, True, False, False]))
        >>> buffer.next([0, 1, 2, 3]), buffer.prev([0, 1, 2, 3])
        (array([1, 1, 3, 3]), array([0, 0, 2, 2]))
        """
        with self._lock:
            slots = self._slots(index)
            return self._rings.next(slots.reshape(-1)).reshape(slots.shape) if slots.size else slots

    def prev(self, index: Any) -> Index:
        """The slots of the previous step of the same episode and environment.

        The slot itself where the episode begins, or its previous step is no longer stored. Raises: see `get`.
        """
        with self._lock:
            slots = self._slots(index)
            return self._rings.prev(slots.reshape(-1)).reshape(slots.shape) if slots.size else slots

    def _slots(self, index: Any) -> Index:
        slots = np.asarray(index)
        if slots.size and slots.dtype.kind not in "iu":
            raise IndexError(f"slots are whole numbers, got {slots.dtype}; masks, in order of time: buffer[mask]")
        slots = slots.astype(np.int64)
        if slots.size and not 0 <= slots.min() <= slots.max() < self.size:
            raise IndexError(f"there are rows in the slots 0 to {self.size - 1}, not in {slots.min()} to {slots.max()}")
        return slots

    def slots(self, key: int | slice | Array | list[int] | list[bool]) -> Index:
        """The slots of the rows `buffer[key]`."""
        with self._lock:
            numbers = np.arange(self.size)[key]
            return self._rings.chronological(numbers) if self.size else numbers

    def columns(self, *names: str) -> Batch:
        """These columns `[rows, ...]` of all rows, in the order of their slots."""
        with self._lock:
            return self._rings.take(np.arange(self.size), names)

    def __getitem__(self, key: int | slice | Array | list[int] | list[bool]) -> Batch:
        with self._lock:
            return self.get(self.slots(key)) if self.size else Batch()

    @property
    def _new(self) -> New:
        return np.empty if self._pool is None else self._pool.empty

    # -- for subclasses to override; called under the lock

    def _drawn(self, batch_size: int) -> tuple[Index, dict[str, Any]]:
        """The slots to draw `[B]`, and columns `[B, ...]` to add to the sample. Uniform here."""
        return self._within_limits(self._uniform, batch_size), {}

    def _rows(self, index: Index, beside: dict[str, Any]) -> Batch:
        """The sample for slots `[B]`, one step or n-step windows, with these further columns `[B, ...]`."""
        if self.n_step == 1:
            rows = one_step(self._rings, index, self.gamma, self.frame_stack, self._new)
        else:
            rows = windows(self._rings, index, self.n_step, self.gamma, self.frame_stack, self._new)
        rows.update(beside)
        return rows

    def _make_rings(self, capacity: int, **options: Any) -> Rings:
        return Rings(capacity, **options)

    def _stored(self, written: Index, drawable: Index) -> None:
        """Rows were written: the old rows in `written` are gone; those in `drawable` can be drawn from now on.

        They differ if next_obs is stored once: the newest row of a ring is drawable once its successor is stored.
        """

    def _dropped(self, slots: Index) -> None:
        """Stored rows can no longer be drawn: they are used up, or too stale."""

    def _within_limits(self, propose: Callable[[int], Index], batch_size: int) -> Index:
        """Slots `[batch_size]` from `propose(count)`, as if drawn one by one, without rows that are used up (B10)."""
        if self._limits is None:
            return propose(batch_size)
        drawn: list[Index] = []
        while (missing := batch_size - sum(map(len, drawn))) > 0:
            slots = propose(missing)
            accepted, used_up = self._limits.accept(slots)
            if len(used_up) and self._watches:
                self._dropped(used_up)
            drawn.append(slots[accepted])
        return np.concatenate(drawn)

    def _uniform(self, count: int) -> Index:
        if self._limits is not None:
            return self._limits.nth(self._generator.integers(self._limits.count, size=count))
        return self._rings.nth(self._generator.integers(self._rings.drawable, size=count))

    # -- statistics

    def statistics(self) -> dict[str, float]:
        """Statistics of contents and throughput; reads every row once.

        `rows`, `bytes` (allocated), `fill` (0 .. 1), `inserts`, `samples` (rows ever), `rows_in_per_second` and
        `rows_out_per_second` since the previous call, `episodes` (stored ends of episodes), `next_obs_aside`, and, if
        tracked, `mean_uses` and `mean_staleness` of the stored rows.
        """
        with self._lock:
            rings, now = self._rings, perf_counter()
            (then, inserts, samples), self._looked = self._looked, (now, self.inserts, self.samples)
            seconds = max(now - then, 1e-9)
            found: dict[str, float] = {
                "rows": self.size,
                "bytes": rings.bytes,
                "fill": self.size / self.capacity,
                "inserts": self.inserts,
                "samples": self.samples,
                "rows_in_per_second": (self.inserts - inserts) / seconds,
                "rows_out_per_second": (self.samples - samples) / seconds,
            }
            return found | content(rings, self._newest_version)

    # -- state

    def settings(self) -> dict[str, Any]:
        """The constructor arguments but for seed and directory, which `save` writes beside the state."""
        capacity, capacity_bytes = self._rings.declared
        return {
            "capacity": capacity,
            "capacity_bytes": capacity_bytes,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "store_next_obs": self._rings.store_next_obs,
            "frame_stack": self.frame_stack,
            "newest_frame_only": self.newest_frame_only,
            "share_frames": self.share_frames,
            "track_uses": self.track_uses,
            "max_uses": None if self._limits is None else self._limits.max_uses,
            "max_staleness": None if self._limits is None else self._limits.max_staleness,
            "reuse": self._pool is not None,
            "limiter": self.limiter,
        }

    def state_dict(self, *, copy_rows: bool = True) -> dict[str, Any]:
        """The state as plain data: after loading, the next sample is identical (B5).

        With `copy_rows=False` the columns are views, to be written before the buffer changes.
        """
        with self._lock:
            return {
                **self._rings.state_dict(copy=copy_rows),
                "samples": self._samples,
                "newest_version": self._newest_version,
                "limits": None if self._limits is None else self._limits.state_dict(),
                "generator": self._generator_state(),
            }

    def _load(self, saved: Saved) -> None:
        ours = self._limits or Eligibility(None, None)
        limits = Saved(saved.get("limits") or {}, f"{SAVED}, limits")
        must_equal(limits, {"max_uses": ours.max_uses, "max_staleness": ours.max_staleness})
        self._rings = rings = self._rings.loaded(saved)
        if rings.columns is not None:
            stored = rings.columns[:1, 0] if rings.flat else rings.columns[:1]
            stored = stored if rings.store_next_obs else stored.replace(next_obs=stored["obs"])
            check_first(stored, self.n_step, self.frame_stack, made=self.made, max_staleness=ours.max_staleness)
        self._samples = saved.count("samples")
        self._newest_version = saved.get("newest_version", int | None, least=-MOST, otherwise=None)
        if self._newest_version is not None and "policy_version" not in rings:
            saved.refuse("newest_version", "None, since no policy_version is stored")
        if self._limits is not None:
            self._limits = Eligibility.of(limits, rings.length * rings.envs, rings.drawable_slots())
        self._load_generator(saved)

    def save(self, path: str | Path) -> Path:
        """Write the buffer to a folder, atomically; see `load`.

        Raises: CheckpointError if it cannot be written, on a full disk for example; nothing of it remains.
        """
        with self._lock:
            return save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, trusted: bool = False, directory: str | Path | None = None) -> Self:
        """The buffer that `save` wrote; its next samples equal those of the saved one.

        Args:
            trusted: whether to unpickle objects, which runs code from the file. Columns of objects need it.
            directory: see the constructor.

        Raises: CheckpointError if the folder is damaged or holds something else, and for objects without `trusted`.
        """
        return load(cls, path, trusted, directory)


Buffer = TypeVar("Buffer", bound="ReplayBuffer")

_KIND = "replay buffer"
_LONGEST = 2**12
"""The most steps of a window, and frames of a stack, that a file may ask for."""


def save(buffer: ReplayBuffer, path: str | Path) -> Path:
    """See `ReplayBuffer.save`."""
    settings = buffer.settings()
    if settings["limiter"] is not None:
        settings["limiter"] = attrs.asdict(settings["limiter"], filter=lambda field, _: field.init)
    state = {"settings": settings, "state": buffer.state_dict(copy_rows=False)}
    try:
        return save_checkpoint(path, state, {_KIND: type(buffer).__name__})
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}; nothing of it is left there") from error


def load(kind: type[Buffer], path: str | Path, trusted: bool, directory: str | Path | None) -> Buffer:
    """See `ReplayBuffer.load`."""
    found = verify_checkpoint(path).get("about", {}).get(_KIND)
    if found != kind.__name__:
        what = "no replay buffer" if found is None else f"a {found}: use {found}.load"
        raise CheckpointError(f"{path} holds {what}, not a {kind.__name__}")
    parts = load_checkpoint(path, trusted=trusted)
    try:
        settings, saved = parts["settings"], Saved(parts["settings"], "the saved settings")
        for name in ("n_step", "frame_stack"):
            saved.get(name, int, least=1, most=_LONGEST, otherwise=1)
        if settings["limiter"] is not None:
            settings["limiter"] = RateLimiter(**settings["limiter"])
        buffer = kind(**settings, directory=directory)
        buffer.load_state_dict(parts["state"])
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    except Exception as error:  # whatever settings of a stranger make the constructor raise
        raise CheckpointError(f"{path} is damaged: it is no whole {kind.__name__}: {error!r}") from error
    return buffer


def _check(
    capacity: Any,
    n_step: int,
    gamma: float,
    max_uses: int | None,
    max_staleness: int | None,
    limiter: RateLimiter | None,
) -> None:
    """Raises: ValueError for a setting that no buffer can have."""
    if not isinstance(capacity, int | np.integer) or capacity < 1:
        raise ValueError(f"capacity is {capacity}: it is a whole number of rows, at least 1")
    if n_step < 1:
        raise ValueError(f"n_step is {n_step}: a transition spans at least 1 step")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}: a discount lies in 0 .. 1")
    if max_uses is not None and max_uses < 1:
        raise ValueError(f"max_uses is {max_uses}: a row is drawn at least once")
    if max_staleness is not None and max_staleness < 0:
        raise ValueError(f"max_staleness is {max_staleness}: a row is at least 0 versions old")
    if limiter is not None and max_uses is not None and max_uses < limiter.ratio:
        raise ValueError(
            f"max_uses is {max_uses}, but the limiter waits until every row added was drawn {limiter.ratio:g} times"
        )
