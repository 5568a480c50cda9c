"""Rings: the storage of replay buffers, one ring of rows per environment with one write cursor for all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import ENDS, PROVENANCE, check_names, describe, episode_breaks
from flowrl.data.replay.base import SAVED
from flowrl.data.replay.columnar import FinalObservations, RecordColumns
from flowrl.data.replay.memory import in_directory, memory
from flowrl.data.replay.pool import are_referred_to
from flowrl.data.replay.shared_frames import SharedFrames, shared_axes
from flowrl.data.replay.tree import Leaf, Spec, leaves, nested, under
from flowrl.data.types import Array, Index, Mask, New
from flowrl.errors import CheckpointError, ConfigError, SchemaError, did_you_mean
from flowrl.saved import Saved, shown

_PIECE = 2**24
"""Bytes of rows to read at a time."""

COPIED_WHOLE = 2**22
"""Bytes of rows from which the last copy of a state is kept, to be brought up to date."""

_PUT = 256
"""Rows whose frames are put at a time."""

_NONE: Index = np.empty(0, np.int64)


class Rings:
    """Preallocated columns `[L, N, ...]`: N rings of L = capacity // N steps each, oldest overwritten first.

    Time-major, so that a fragment `[T, N, ...]` is one block copy; flat rows `[B, ...]` are a ring with N = 1.
    Slots are numbered time-major too, `time * N + environment`. Rings fill from slot 0 on, so the first
    `size` slots are those in use.

    Args:
        capacity: rows, over all rings. capacity_bytes: bytes of the columns; the smaller limit counts.
        store_next_obs: False takes `next_obs` from the next row, and keeps it separately by slot where the next row
            lacks it: at the ends of episodes, and for the newest row of each ring (B2, T6).
        linked: whether to record where episodes begin: `begins`.
        count_uses: whether to count how often rows are drawn: `uses`.
        share_frames: whether to store frames of wide observations once, see `SharedFrames`; needs `store_next_obs`.
        directory: a folder for the columns, if they do not fit into memory.
    """

    def __init__(
        self,
        capacity: int,
        *,
        capacity_bytes: int | None = None,
        store_next_obs: bool = True,
        linked: bool = False,
        count_uses: bool = False,
        share_frames: bool = False,
        directory: str | Path | None = None,
    ) -> None:
        self.declared = (capacity, capacity_bytes)
        self.store_next_obs = store_next_obs
        self.linked = linked
        self.count_uses = count_uses
        self.share_frames = share_frames
        self.directory = directory
        self._clear()

    def _clear(self) -> None:
        self.capacity = self.declared[0]
        """The capacity in rows; with `capacity_bytes` known from the first write on."""
        self.columns: Batch | None = None
        """The stored columns, as views `[L, N, ...]`."""
        self.length = self.envs = 0
        """The capacity of each ring in steps, and the number of rings; 0 before the first write."""
        self.flat = False
        self.written = 0
        """Steps ever written to each ring; the cursor is this modulo L."""
        self.cut = False
        """Whether the next write does not continue the stored rows."""
        self._stored: RecordColumns | None = None
        self._final_obs = FinalObservations({})
        self._leaves: tuple[Leaf, ...] = ()
        self._like: BatchSignature | None = None
        self._given: tuple[Leaf, ...] = ()
        self._targets: list[Array | None] = []  # in that order, by step; None is not stored
        self._any_begins = False
        self._shared: list[SharedFrames] = []
        self._last_copy: dict[Leaf, Array] = {}  # of the columns, by step, as they were ...
        self._copied = 0  # ... when so many steps were written
        self._flat_notes: dict[str, Array] = {}  # `begins`, `uses`, and where next_obs is aside or -1, by slot
        self._notes: dict[str, Array] = {}  # the same by step

    @property
    def size(self) -> int:
        """Rows stored."""
        return min(self.written, self.length) * self.envs

    @property
    def inserts(self) -> int:
        """Rows ever written."""
        return self.written * self.envs

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return (
            (0 if self._stored is None else self._stored.bytes)
            + sum(frames.bytes for frames in self._shared)
            + self._final_obs.bytes
            + sum(note.nbytes for note in self._flat_notes.values())
        )

    @property
    def num_final_obs(self) -> int:
        """The number of next observations stored separately."""
        return self._final_obs.count

    def rows(self, batch: Batch) -> int:
        """The rows of a batch with the usual columns, counted quickly."""
        column = None if self._stored is None else batch.get(self._leaves[0][0])
        return batch.rows if column is None else len(column) * self.envs

    # -- which rows

    @property
    def drawable(self) -> int:
        """The number of drawable rows: those whose next observation is stored (B2)."""
        return self.size if self.store_next_obs else max(0, self.size - self.envs)

    def nth(self, number: Index) -> Index:
        """The slots of drawable rows by index, 0 .. drawable − 1: `nth(generator.integers(drawable))`."""
        return number if self.store_next_obs else self.chronological(number)

    def drawable_slots(self) -> Mask:
        """Whether each slot in use, `[size]`, can be drawn."""
        drawable = np.ones(self.size, np.bool_)
        if self.size and not self.store_next_obs:
            drawable[self._newest] = False
        return drawable

    def chronological(self, number: Index) -> Index:
        """The slots of the rows from the oldest step on, environments side by side: 0 .. size − 1."""
        oldest = self._oldest * self.envs
        return (number + oldest) % (self.length * self.envs) if oldest else number

    def generation(self, slot: Index) -> Index:
        """How many times each slot has been written."""
        laps, newest = divmod(self.written - 1, self.length)
        return laps + (slot < (newest + 1) * self.envs)

    def following(self, slot: Index, n: int) -> tuple[Index, Mask]:
        """The slots of n steps of one ring from each slot on, `[n, B]`, and where the newest step is reached.

        Beyond the newest step, the write cursor, its slot is repeated.
        """
        to_newest = min(self.written, self.length) - 1 - self._age(slot)
        ahead = np.minimum(np.arange(n)[:, None], to_newest)
        return self._moved(slot, ahead), ahead == to_newest

    def preceding(self, slot: Index, n: int) -> tuple[Index, Mask]:
        """The slots of n steps of one ring from each slot back, `[n, B]`, and where the oldest step is reached.

        Before the oldest step its slot is repeated.
        """
        to_oldest = self._age(slot)
        back = np.minimum(np.arange(n)[:, None], to_oldest)
        return self._moved(slot, -back), back == to_oldest

    def next(self, slot: Index) -> Index:
        """The slot of the next step of each slot's episode; the same slot at its end, and for the newest step."""
        ahead, newest = self.following(slot, 2)
        return np.where(newest[0] | self._apart(slot, ahead[1]), slot, ahead[1])

    def prev(self, slot: Index) -> Index:
        """The slot of the previous step of each slot's episode; the same slot at its start, and for the oldest step."""
        back, oldest = self.preceding(slot, 2)
        return np.where(oldest[0] | self._apart(back[1], slot), slot, back[1])

    def _apart(self, slot: Index, following: Index) -> Mask:
        """Whether an episode ends between two neighbors of one ring."""
        names = [name for name in (*ENDS, *PROVENANCE) if name in self]
        steps = self.take(np.stack([slot, following]), names)
        apart: Mask = self.begins(following) | np.any(episode_breaks(steps), axis=0)
        for name in ENDS:
            if name in steps:
                apart |= steps[name][0] != 0
        return apart

    @property
    def _oldest(self) -> int:
        return self.written % self.length if self.written > self.length else 0

    def _age(self, slot: Index) -> Index:
        """The age of each slot in steps after the oldest of its ring."""
        return (slot // self.envs - self._oldest) % self.length

    def _moved(self, slot: Index, steps: Index | int) -> Index:
        return (slot + steps * self.envs) % (self.length * self.envs)

    # -- out

    @property
    def names(self) -> list[str]:
        """The stored columns."""
        return list(dict.fromkeys(leaf[0] for leaf in self._leaves))

    def __contains__(self, name: str) -> bool:
        return any(True for _ in under(name, self._leaves))

    def take(self, slot: Index, names: Iterable[str] | None = None, new: New = np.empty) -> Batch:
        """Copies of the rows at slots of any shape, `[*slot.shape, ...]`: the named columns, or all."""
        chosen: Iterable[Leaf] = self._leaves
        if names is not None:
            chosen = [leaf for name in names for leaf in under(name, self._leaves)]
        return nested(self._in_use.take(slot, tuple(chosen), new))

    def replace(self, slot: Index, columns: Batch) -> None:
        """Replace columns `[B, ...]` of the rows in slots. Raises: SchemaError for those that are not stored so."""
        for name, column in columns.items():
            stored = self._in_use.arrays.get((name,))
            if stored is None or (name,) in self._in_use.shared or stored.shape[1:] != column.shape[1:]:
                held = "there is none" if stored is None else f"it has {list(stored.shape[1:])} for each row"
                raise SchemaError(f"cannot replace the column {name!r} by {describe(column)}: {held}")
            stored[slot] = column

    def next_obs(self, slot: Index, new: New = np.empty) -> Any:
        """The observation that each slot's step arrived in."""
        if self.store_next_obs:
            return self.take(slot, ["next_obs"], new)["next_obs"]
        found = self._in_use.take(self._moved(slot, 1), tuple(under("obs", self._leaves)), new)
        places = self._flat_notes["aside"][slot]
        kept = places >= 0
        if kept.any():
            for leaf, rows in self._final_obs.take(places[kept]).items():
                found[leaf][kept] = rows
        return nested(found)["obs"]

    def begins(self, slot: Index) -> Mask:
        """Whether each slot's step does not continue the step before it in its ring."""
        return self._flat_notes["begins"].take(slot, mode="clip")

    def uses(self, slot: Index) -> Index:
        """How often each slot's row has been drawn."""
        return self._flat_notes["uses"].take(slot, mode="clip").astype(np.int64)

    def used(self, slot: Index) -> None:
        """Count one use of each slot's row; repeated slots count several times."""
        np.add.at(self._flat_notes["uses"], slot, np.int32(1))

    def in_order(self) -> Iterator[tuple[Batch, Array, Array | None]]:
        """All rows from the oldest on, in pieces, with `begins`, True for the oldest ones, and `uses` if counted."""
        steps, piece = min(self.written, self.length), max(1, _PIECE * self.length // max(1, self.bytes))
        for start in range(0, steps, piece):
            stop = min(steps, start + piece)
            slots = self.chronological(np.arange(start * self.envs, stop * self.envs))
            if not self.flat:
                slots = slots.reshape(-1, self.envs)
            rows, begins = self.take(slots), self.begins(slots)
            if not self.store_next_obs:
                rows["next_obs"] = self.next_obs(slots)
            if start == 0:
                begins[0] = True
            yield rows, begins, self.uses(slots) if self.count_uses else None

    @property
    def _in_use(self) -> RecordColumns:
        assert self._stored is not None, "nothing was written yet"
        return self._stored

    # -- in

    def write(
        self, batch: Batch, *, slots: bool = False, begins: Array | None = None, uses: Array | None = None
    ) -> tuple[Index, Index]:
        """Copy rows `[B, ...]` or a fragment `[T, N, ...]` in.

        Args:
            batch: names, dtypes and shapes must match the first write.
            slots: whether to return slots.
            begins, uses: of rows from another buffer.

        Returns: the written slots, in order of time, and those that became drawable; nothing unless `slots`.
        Raises: SchemaError if names, dtypes or shapes differ from the first write; ValueError if N environments do
            not fit into the capacity; ConfigError if the capacity exceeds the machine's memory; OSError if files do not
            fit on the disk.
        """
        if self._like is None and not batch.is_empty:
            self._allocate_for(batch)
        if self._like is None or not (parts := self._like.quickly(batch) or self._like.parts(batch)):
            return _NONE, _NONE
        # A fragment longer than the ring keeps its end, in the slots where it would have ended up.
        steps, targets = len(parts[0]), self._targets
        first = steps - self.length if steps > self.length else 0
        start = (self.written + first) % self.length
        kept, at_end = steps - first, self.length - start
        if self.linked or begins is not None or self._any_begins or self.cut:
            targets, parts = [*targets, self._notes["begins"]], [*parts, self._breaks(parts, begins)]
        if self.count_uses:
            uses = np.zeros(parts[0].shape[: self._axes], np.int32) if uses is None else uses
            targets, parts = [*targets, self._notes["uses"]], [*parts, uses]
        if not self.store_next_obs:
            targets, parts = [*targets, self._notes["aside"]], [*parts, self._put_final_obs(parts, first, start)]
        if self._shared:
            parts = [*self._numbered(parts, first), *parts[len(self._given) :]]
            if self.written + steps > self.length:
                self._drop_shared(start, kept)
        if steps <= at_end:
            _copy(parts, targets, start)
        else:
            _copy([part[first : first + at_end] for part in parts], targets, start)
            if kept > at_end:
                _copy([part[first + at_end :] for part in parts], targets, 0)
        before, self.written = self.written, self.written + steps
        if not slots:
            return _NONE, _NONE
        written = np.arange(start * self.envs, (start + kept) * self.envs) % (self.length * self.envs)
        if self.store_next_obs:
            return written, written
        newest = (before - 1) % self.length * self.envs + np.arange(self.envs) if before else _NONE
        settled = np.concatenate([newest, written])[: -self.envs]
        return written, settled[-max(0, self.drawable) :] if self.drawable else _NONE

    def _allocate_for(self, batch: Batch) -> None:
        parts = leaves(batch)
        shape = batch.shape
        if len(shape) not in (1, 2):
            raise SchemaError(f"cannot tell rows from features, no column has one number per row: {batch!r}")
        specs = {leaf: Spec(part.dtype, part.shape[len(shape) :]) for leaf, part in parts.items()}
        axes = shared_axes(parts, len(shape)) if self.share_frames else {}
        self._allocate(specs, 1 if len(shape) == 1 else shape[1], flat=len(shape) == 1, axes=axes)

    def _allocate(self, specs: Mapping[Leaf, Spec], envs: int, *, flat: bool, axes: Mapping[Spec, int | None]) -> None:
        stored: dict[Leaf, Spec] = dict(specs)
        notes: dict[str, np.dtype[Any]] = {"begins": np.dtype(np.bool_)}
        observed = {leaf: spec for leaf, spec in specs.items() if leaf[0] == "obs"}
        if not self.store_next_obs:
            arrived = {("obs", *leaf[1:]): stored.pop(leaf) for leaf in under("next_obs", specs)}
            if arrived != observed or not observed:
                raise SchemaError(
                    "store_next_obs=False needs the columns 'obs' and 'next_obs', which must be alike, to see where "
                    f"the next row does not hold next_obs: {did_you_mean('next_obs', [leaf[0] for leaf in specs])}"
                )
            notes["aside"] = np.dtype(np.int32)
        if self.count_uses:
            notes["uses"] = np.dtype(np.int32)
        capacity, limit = self.declared
        row = sum(spec.bytes for spec in stored.values()) + sum(dtype.itemsize for dtype in notes.values())
        if limit is not None:
            capacity = min(capacity, limit // row)
        length = capacity // envs
        least = 1 if self.store_next_obs else 2
        if length < least:
            why = "" if limit is None or capacity == self.declared[0] else f" (what {limit} bytes hold)"
            raise ValueError(
                f"capacity is {capacity}{why}: {envs} environments need at least {least} "
                f"{'row each' if least == 1 else 'rows each, as the newest one cannot be drawn yet'}"
            )
        new = np.empty if self.directory is None else in_directory(self.directory)
        shared = {spec: SharedFrames(spec, axis, length * envs, new) for spec, axis in axes.items()}
        of_leaf = {leaf: shared[spec] for leaf, spec in stored.items() if spec in shared}
        row += sum(frames.frame.bytes for frames in shared.values())
        row -= sum(frames.spec.bytes - frames.numbers.bytes for frames in of_leaf.values())
        # More than there is in all: the system gives memory only as rows fill it, and would kill the process then.
        size = length * envs * row
        if self.directory is None and (most := memory()) is not None and size > most:
            raise ConfigError(
                f"capacity={capacity}: so many rows of {row} bytes are {size / 1e9:.3g} GB, but there are only "
                f"{most / 1e9:.3g} GB of memory; take a capacity below {most // row}, or directory= for rows in files"
            )
        columns = RecordColumns(stored, length * envs, new, of_leaf)
        self._shared = list(shared.values())
        self._stored, self.capacity, self.length, self.envs, self.flat = columns, capacity, length, envs, flat
        self._final_obs = FinalObservations({} if self.store_next_obs else observed)
        self._leaves = tuple(stored)
        steps = (length,) if flat else (length, envs)
        by_step = {leaf: array.reshape(*steps, *array.shape[1:]) for leaf, array in columns.arrays.items()}
        self._targets = [by_step.get(leaf) for leaf in specs]
        self._flat_notes = {name: np.zeros(length * envs, dtype) for name, dtype in notes.items()}
        self._notes = {name: note.reshape(steps) for name, note in self._flat_notes.items()}
        self._given = tuple(specs)
        self._like = BatchSignature(specs, None if flat else envs)
        self._any_begins = False
        self.columns = nested(
            {leaf: array.reshape(length, envs, *array.shape[1:]) for leaf, array in columns.arrays.items()}
        )

    @property
    def _axes(self) -> int:
        """The leading axes of written columns."""
        return 1 if self.flat else 2

    @property
    def _newest(self) -> Index:
        """The slots of the newest step."""
        return (self.written - 1) % self.length * self.envs + np.arange(self.envs)

    def _breaks(self, parts: list[Array], given: Array | None) -> Array:
        """Where a step does not continue the step before it, in this write or stored earlier."""
        self._any_begins = True
        begins = np.zeros(parts[0].shape[: self._axes], np.bool_) if given is None else given.copy()
        begins[0] |= self.cut
        self.cut = False
        if not self.linked:
            return begins
        columns = {leaf[0]: (part, column) for leaf, part, column in zip(self._given, parts, self._targets)}

        def with_newest(name: str) -> Array:
            part, column = columns[name]
            newest = part[0] if column is None or not self.written else column[(self.written - 1) % self.length]
            return np.concatenate([newest[None], part])

        for name in ENDS:
            if name in columns:
                begins |= with_newest(name)[:-1] != 0
        begins |= episode_breaks({name: with_newest(name) for name in PROVENANCE if name in columns})
        begins[0] |= not self.written
        return begins

    def _put_final_obs(self, written: list[Array], first: int, start: int) -> Array:
        """Store `next_obs` separately where the next row lacks it, for now those of the newest rows; places, or −1."""
        axes = self._axes
        places, parts = self._notes["aside"], dict(zip(self._given, written))
        pairs = {leaf: (parts[leaf], parts["next_obs", *leaf[1:]]) for leaf in under("obs", self._leaves)}
        differ = np.ones(next(iter(pairs.values()))[0].shape[:axes], np.bool_)
        differ[:-1] = False
        for obs, next_obs in pairs.values():
            differ[:-1] |= _any(next_obs[:-1] != obs[1:], axes)
        if self.written:
            newest = self._newest
            slots, wrong = self._flat_notes["aside"], np.zeros(self.envs, np.bool_)
            for leaf, rows in self._final_obs.take(slots[newest]).items():
                wrong |= _any(rows != pairs[leaf][0][0].reshape(rows.shape), 1)
            self._final_obs.free(slots[newest[~wrong]])
            slots[newest[~wrong]] = -1
        over = np.arange(start, start + len(differ) - first) % self.length
        over = over[over < min(self.written, self.length)]
        overwritten = places[over]
        self._final_obs.free(overwritten[overwritten >= 0])
        found = np.full(differ.shape, -1, np.int32)
        differ[:first] = False
        found[differ] = self._final_obs.put({leaf: next_obs[differ] for leaf, (_, next_obs) in pairs.items()})
        return found

    def _numbered(self, parts: list[Array], first: int) -> list[Array]:
        """The written columns from the step `first` on, with numbers of frames in place of what they share."""
        numbered = []
        for leaf, part in zip(self._given, parts):
            if frames := self._in_use.shared.get(leaf):
                numbers = np.zeros((*part.shape[: self._axes], *frames.numbers.shape), frames.numbers.dtype)
                numbers[first:] = frames.put(part[first:])
                part = numbers
            numbered.append(part)
        return numbered

    def _drop_shared(self, start: int, steps: int) -> None:
        """Give up the frames of rows that these steps are about to overwrite."""
        over = np.arange(start * self.envs, (start + steps) * self.envs) % (self.length * self.envs)
        over = over[over < self.size]
        for leaf, frames in self._in_use.shared.items():
            frames.drop(self._in_use.arrays[leaf][over])

    # -- state

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The state as plain data, copied unless written at once; a copy of large columns is read-only."""
        state: dict[str, Any] = {
            "capacity": self.declared[0],
            "capacity_bytes": self.declared[1],
            "columns": None,
            "flat": self.flat,
            "linked": self.linked,
            "written": self.written,
            "cut": self.cut,
        }
        if self._stored is None or self.columns is None:
            return state
        steps = min(self.written, self.length)
        columns = self._snapshot() if copy else self.columns
        state["columns"] = columns[:steps].to_dict()
        state["notes"] = {name: note[: self.size].copy() for name, note in self._flat_notes.items() if name != "aside"}
        if not self.store_next_obs:
            places = self._flat_notes["aside"][: self.size]
            slots = np.flatnonzero(places >= 0)
            state["aside"] = {"slots": slots, "rows": nested(self._final_obs.take(places[slots])).to_dict()}
        if self._shared:
            of: dict[int, list[list[str]]] = {id(frames): [] for frames in self._shared}
            for leaf, frames in self._in_use.shared.items():
                of[id(frames)].append(list(leaf))
            state["shared"] = [{"of": of[id(each)], **each.state_dict(copy=copy)} for each in self._shared]
        return state

    def _snapshot(self) -> Batch:
        """The columns `[L, N, ...]` up to the written steps, as they are now, for one who does not change them.

        Of large ones in memory the rings keep the last copy. If nobody refers to it any more, only the steps that were
        written since are copied, so that a checkpoint delays a run by what is new.
        """
        assert self.columns is not None
        steps, columns = min(self.written, self.length), leaves(self.columns)
        if self.directory is not None or self.size * self._in_use.bytes < COPIED_WHOLE * self.capacity:
            return nested({leaf: column[:steps].copy() for leaf, column in columns.items()})
        new = self.written - self._copied
        if not self._last_copy or are_referred_to(self._last_copy.values()):
            self._last_copy = {leaf: np.empty(column.shape, column.dtype) for leaf, column in columns.items()}
            new = self.length
        end, new = self.written % self.length, min(new, self.length)
        for start, stop in ((max(0, end - new), end), (self.length + min(0, end - new), steps)):
            for leaf, column in columns.items():
                self._last_copy[leaf][start:stop] = column[start:stop]
        self._copied = self.written
        views = {leaf: array[:] for leaf, array in self._last_copy.items()}
        for view in views.values():
            view.flags.writeable = False
        return nested(views)

    def loaded(self, saved: Saved) -> Self:
        """Rings of the same settings with a saved state.

        Raises: CheckpointError if its capacity or storage settings differ, and for one that is malformed.
        """
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made._clear()
        made._load(saved)
        return made

    def _load(self, saved: Saved) -> None:
        """Restore a saved state in empty rings."""
        must_equal(saved, dict(zip(("capacity", "capacity_bytes"), self.declared)))
        written, cut = saved.count("written"), saved.get("cut", bool)
        if saved.get("columns", dict | None) is None:
            if written:
                saved.refuse("written", "0, since it has no columns")
            return
        if ("aside" in saved) == self.store_next_obs:
            raise CheckpointError(
                f"the saved buffer has store_next_obs={not self.store_next_obs}, this one {self.store_next_obs}; "
                "it must be equal"
            )
        if self.linked and not saved.get("linked", bool):
            raise CheckpointError(
                "the saved buffer does not know where episodes begin, as this one must for its n_step, frame stacks or "
                "sequences; load it into a buffer like the saved one, and update() this one with that"
            )
        block = leaves(Batch(saved.get("columns")))
        shapes = {column.shape[:2] for column in block.values()}
        steps, envs = next(iter(shapes)) if len(shapes) == 1 and len(min(shapes)) == 2 else (0, 0)
        flat = saved.get("flat", bool)
        if not steps or not envs or (flat and envs > 1):
            saved.refuse("columns", "arrays of the same steps and environments [T, N, ...]")
        specs = {leaf: Spec(column.dtype, column.shape[2:]) for leaf, column in block.items()}
        if not self.store_next_obs:
            specs |= {("next_obs", *leaf[1:]): specs[leaf] for leaf in under("obs", block)}
        shared = _saved_frames(saved, specs)
        forms = [SharedFrames.form(each) for each, _ in shared]
        specs |= {leaf: spec for (_, those), (spec, _) in zip(shared, forms) for leaf in those}
        axes = dict(forms)
        if len(axes) != len(shared):
            saved.refuse("shared", "frames of different forms")
        if self.share_frames and not shared:  # of before frames were shared
            axes = shared_axes({leaf: column.reshape(-1, *column.shape[2:]) for leaf, column in block.items()}, 1)
        self._allocate(specs, envs, flat=flat, axes=axes)
        if steps != min(written, self.length):
            saved.refuse("written", f"the number of steps ever written, of which it holds {steps}")
        self.written, self.cut = written, cut
        for each, those in shared:
            self._in_use.shared[those[0]].load(each, [block[leaf] for leaf in those])
        for leaf, column in block.items():
            rows, stored = column.reshape(self.size, *column.shape[2:]), self._in_use.arrays[leaf]
            if shared or (frames := self._in_use.shared.get(leaf)) is None:
                stored[: self.size] = rows
            else:
                for start in range(0, self.size, _PUT):
                    stored[start : start + _PUT][: self.size - start] = frames.put(rows[start : start + _PUT])
        notes = saved.inside("notes")
        begins = notes.array("begins", bool, (self.size,))
        self._any_begins = bool(begins.any())
        self._flat_notes["begins"][: self.size] = begins
        if self.count_uses:
            counted = "uses" in notes  # not so before a setting asked for it
            self._flat_notes["uses"][: self.size] = (
                notes.array("uses", np.int32, (self.size,), least=0) if counted else 0
            )
        if not self.store_next_obs:
            self._load_final_obs(saved.inside("aside"))

    def _load_final_obs(self, saved: Saved) -> None:
        """Restore the next observations that no next row holds: at least those of the newest rows."""
        slots = saved.array("slots", np.int64, (None,), least=0, most=self.size - 1)
        if (np.diff(slots) <= 0).any() or not np.isin(self._newest, slots).all():
            saved.refuse("slots", "slots in ascending order, the newest ones among them")
        rows = leaves(Batch({"obs": saved.inside("rows").get("obs")}))
        specs = {leaf: Spec(column.dtype, column.shape[1:]) for leaf, column in rows.items()}
        stored = {leaf: Spec(self._in_use.arrays[leaf].dtype, self._in_use.arrays[leaf].shape[1:]) for leaf in specs}
        if specs != stored or any(len(column) != len(slots) for column in rows.values()):
            saved.refuse("rows", f"observations like the stored ones, for {len(slots)} slots")
        self._flat_notes["aside"][: self.size] = -1
        self._flat_notes["aside"][slots] = self._final_obs.put(rows)

    def __getstate__(self) -> dict[str, Any]:
        made = {
            name: self.__dict__[name]
            for name in ("declared", "store_next_obs", "linked", "count_uses", "share_frames", "directory")
        }
        return {**made, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored = state.pop("state")
        self.__dict__.update(state)
        self._clear()
        self._load(Saved(stored, SAVED))


def must_equal(saved: Saved, mine: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless the saved buffer has these settings."""
    for name, value in mine.items():
        if (found := saved.get(name, otherwise=None)) != value or type(found) is bool:
            raise CheckpointError(f"the saved buffer has {name} {shown(found)}, this one {value}; it must be equal")


def _copy(parts: list[Array], columns: list[Array | None], start: int) -> None:
    """Copy steps into columns, from `start` on; not where the column is None."""
    to = slice(start, start + len(parts[0]))
    for part, column in zip(parts, columns):
        if column is not None:
            column[to] = part


def _any(differ: Array, axes: int) -> Mask:
    """Whether any entry of a row differs."""
    return np.asarray(differ.any(axis=tuple(range(axes, differ.ndim))))


#: What columns must have in common with the first ones. Mapped and compared as lists, it costs less than a loop.
_FORM = attrgetter("shape", "dtype")


class BatchSignature:
    """Extracts the arrays of batches that match the first one, with a few comparisons.

    Args:
        specs: the columns of one row. envs: environments of a fragment; None for rows `[B, ...]`.
    """

    def __init__(self, specs: Mapping[Leaf, Spec], envs: int | None) -> None:
        self._flat, self._envs = envs is None, envs
        self._leaves = list(specs)
        self._nested = any(len(leaf) > 1 for leaf in specs)
        self._names = self._leaves if self._nested else [leaf[0] for leaf in specs]
        self._features = [Spec(dtype, shape if envs is None else (envs, *shape)) for dtype, shape in specs.values()]
        self._steps, self._forms = 0, list[tuple[tuple[int, ...], np.dtype[Any]]]()  # of columns of so many steps

    def parts(self, batch: Batch) -> list[Array]:
        """The arrays of a batch in the order of the first one's; none if it has no rows.

        Raises: SchemaError naming the column, the expected and the actual form.
        """
        if batch.is_empty:
            return []
        found = leaves(batch)
        known = {leaf: found[leaf] for leaf in self._leaves if leaf in found}  # in the order of the first batch
        if (parts := self.quickly(nested(known | found))) is not None:
            return parts
        if not batch.shape:
            raise SchemaError(f"the columns are not of one length: {batch!r}")
        if len(batch.shape) != (1 if self._flat else 2):
            raise SchemaError(
                f"the buffer was filled with {_layout(self._flat)}, got {_layout(not self._flat)}: {batch!r}"
            )
        if not self._flat and batch.shape[1] != self._envs:
            raise SchemaError(
                f"the buffer keeps a ring for each of {self._envs} environments, got the steps of {batch.shape[1]}: "
                "give these a buffer of their own; MixedReplay draws from several"
            )
        example = nested(
            {leaf: np.empty((1, *shape), dtype) for leaf, (dtype, shape) in zip(self._leaves, self._features)}
        )
        batch = batch.to_numpy()
        _check(example[:, None] if self._flat else example, batch[:, None] if self._flat else batch)
        raise AssertionError("a batch that does not fit, for no reason")

    def quickly(self, batch: Batch) -> list[Array] | None:
        """The arrays of a batch that is exactly like the first one; None: see `parts`."""
        columns: Any = leaves(batch) if self._nested else batch._columns  # sooner than by keys() and values()
        if [*columns] != self._names:
            return None
        parts: list[Array] = [*columns.values()]
        try:
            if (steps := len(parts[0])) != self._steps:
                self._steps = steps
                self._forms = [((steps, *shape), dtype) for dtype, shape in self._features]
            if [*map(_FORM, parts)] != self._forms:
                return None
        except (AttributeError, TypeError):  # a nested batch has no dtype, a tensor another kind, a number no length
            return None
        return parts if steps else None


def _layout(flat: bool) -> str:
    return "rows [B, ...]" if flat else "fragments [T, N, ...]"


def _check(columns: Batch, block: Batch, path: str = "") -> None:
    """Raise a SchemaError unless the block has the names, dtypes and shapes (time aside) of the storage."""
    if block.keys() != columns.keys():
        check_names(dict(columns), block, f"column {path!r} of the batch" if path else "the batch")
    for name, column in columns.items():
        part, where = block[name], f"{path}.{name}" if path else name
        if isinstance(column, Batch) and isinstance(part, Batch):
            _check(column, part, where)
        elif (
            isinstance(column, Batch)
            or isinstance(part, Batch)
            or part.dtype != column.dtype
            or part.shape[1:] != column.shape[1:]
        ):
            raise SchemaError(
                f"column {where!r}: the buffer stores {describe(column[0])} per step, got {describe(part[0])}"
            )


def _saved_frames(saved: Saved, columns: Container[Leaf]) -> list[tuple[Saved, list[Leaf]]]:
    """The frames that a state has apart, each with the columns whose pictures they are."""
    shared = [Saved(each, f"{SAVED}, shared") for each in saved.get("shared", list, otherwise=[])]
    users: list[list[Leaf]] = [[tuple(leaf) for leaf in each.get("of", list[list[str]])] for each in shared]
    of_all = [leaf for those in users for leaf in those]
    if len(of_all) != len(set(of_all)) or not all(leaf in columns for leaf in of_all) or not all(users):
        saved.refuse("shared", "frames of columns that it has, each in one place")
    return list(zip(shared, users))
