"""SharedFrames: wide observations whose frames are stored once, however often rows have them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flowrl.data.replay.memory import memory
from flowrl.data.replay.pool import are_referred_to
from flowrl.data.replay.tree import Leaf, Spec
from flowrl.data.types import Array, Index, Mask, New
from flowrl.errors import ConfigError
from flowrl.saved import Saved

log = logging.getLogger("flowrl")

_WIDE = 512
"""Bytes of an observation from which its frames are shared."""
_STACK = 32
"""The most frames of a stack."""
_AT_ONCE = 2**18
"""Bytes to compare at a time, which stay in the cache."""
COPIED_WHOLE = 2**22
"""Bytes of frames from which a state lends them."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


class SharedFrames:
    """Observations of one form as numbers of frames: equal frames have one number.

    Stacks of frames, and observations that are the next one's `obs` and this one's `next_obs`, repeat nearly all of
    their frames. Each frame that is put is looked up by a hash and compared byte by byte with the one found, so rows
    are taken as they were put, whatever wrappers, windows or episodes do: frames that are not equal are not shared. The
    lookup knows the newest frames only; an older one that comes again is stored again.

    Args:
        spec: of one observation. axis: of its frames, 0 or -1; None: the observation is one frame.
        rows: the rows that the buffer keeps. new: allocates arrays.

    State: the frames, the numbers that are free, the lookup.

    >>> frames = SharedFrames(Spec(np.dtype(np.int64), (2, 1)), 0, 10, np.empty)
    >>> numbers = frames.put(np.array([[[5], [5]], [[5], [6]], [[6], [7]]]))
    >>> numbers.tolist(), frames.count
    ([[0, 0], [0, 1], [1, 2]], 3)
    >>> frames.take(numbers[1:2], np.empty).tolist()
    [[[5], [6]]]
    """

    def __init__(self, spec: Spec, axis: int | None, rows: int, new: New) -> None:
        self.spec, self.axis = spec, axis
        shape = spec.shape if axis is None else spec.shape[1:] if axis == 0 else spec.shape[:-1]
        self.frame = Spec(spec.dtype, shape)
        self.numbers = Spec(np.dtype(np.int32), (1 if axis is None else spec.shape[axis],))
        """What a row holds in place of the observation."""
        self._rows, self._new = rows, new
        bits = min(20, max(12, (4 * rows).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._newest = np.full(2**bits, -1, np.int32)  # by hash
        words = self.frame.bytes // _unit(self.frame.bytes).itemsize
        self._weights = np.random.default_rng(0).integers(0, 2**64, words, np.uint64) | np.uint64(1)
        self._blocks: list[Array] = []
        self._ends: list[int] = []
        self._codes, self._uses = np.empty(0, np.uint64), np.empty(0, np.int32)
        self._free: list[int] = []
        self._high = 0  # numbers ever used

    @property
    def count(self) -> int:
        """Frames stored."""
        return self._high - len(self._free)

    @property
    def bytes(self) -> int:
        """Bytes in use; the system gives no memory for the rest."""
        return self._high * (self.frame.bytes + 12) + self._newest.nbytes

    def __str__(self) -> str:
        """The form of an observation, and of what is stored of it.

        >>> print(SharedFrames(Spec(np.dtype(np.uint8), (4, 84, 84)), 0, 10, np.empty))
        4 x 84 x 84 as 84 x 84
        """
        whole, frame = (" x ".join(map(str, spec.shape)) for spec in (self.spec, self.frame))
        return whole if self.axis is None else f"{whole} as {frame}"

    # -- rows in and out

    def put(self, rows: Array) -> Array:
        """The numbers `[*lead, k]` of the frames of observations `[*lead, *shape]`, each of which is used once more."""
        lead = rows.shape[: rows.ndim - len(self.spec.shape)]
        if self.axis == -1:
            rows = np.moveaxis(rows, -1, len(lead))
        frames = np.ascontiguousarray(rows).reshape(-1, *self.frame.shape)
        words = _words(frames)
        codes = self._hashed(words)
        firsts: dict[int, int] = {}
        like = np.array([firsts.setdefault(code, at) for at, code in enumerate(codes.tolist())], np.int64)
        if len(firsts) < len(like):
            twins = np.flatnonzero(like != np.arange(len(like)))
            other = twins[~_equal(words, twins, words, like[twins])]
            like[other] = other
        own = np.flatnonzero(like == np.arange(len(like)))
        slots = self._slots(codes[own])
        number = np.empty(len(like), np.int64)
        number[own] = self._found(words[own] if len(own) < len(words) else words, codes[own], slots)
        fresh = own[number[own] < 0]
        if len(fresh):
            number[fresh] = places = self._places(len(fresh))
            for block, start, mine in self._parts(places):
                block[places[mine] - start] = frames[fresh[mine]]
            self._codes[places] = codes[fresh]
        self._newest[slots] = number[own]
        number = number[like]
        np.add.at(self._uses, number, np.int32(1))
        return number.astype(np.int32).reshape(*lead, *self.numbers.shape)

    def take(self, numbers: Array, new: New) -> Array:
        """Copies of the observations `[*lead, *shape]` with these frames `[*lead, k]`."""
        lead, flat = numbers.shape[:-1], numbers.reshape(-1)
        rows = new((*lead, *self.spec.shape), self.spec.dtype)
        stacked = rows if self.axis != -1 else np.empty((*numbers.shape, *self.frame.shape), self.spec.dtype)
        frames = stacked.reshape(-1, *self.frame.shape)
        if len(self._blocks) == 1:
            self._blocks[0].take(flat, axis=0, out=frames, mode="clip")
        else:
            for block, start, mine in self._parts(flat):
                frames[mine] = block[flat[mine] - start]
        if self.axis == -1:
            rows[...] = np.moveaxis(stacked, len(lead), -1)
        return rows

    def drop(self, numbers: Array) -> None:
        """Use these frames once less each; those that nothing uses any more make room."""
        numbers = numbers.reshape(-1)
        np.subtract.at(self._uses, numbers, np.int32(1))
        self._free.extend(sorted(set(numbers[self._uses[numbers] == 0].tolist()), reverse=True))

    def _found(self, words: Array, codes: Array, slots: Index) -> Index:
        """The numbers of the frames that equal these, -1 where there is none."""
        found = self._newest[slots].astype(np.int64)
        maybe = (self._uses[found] > 0) & (self._codes[found] == codes) & (found >= 0) if self._blocks else found >= 0
        found[~maybe] = -1
        for block, start, mine in self._parts(found):
            at = np.flatnonzero(mine)
            found[at[~_equal(words, at, _words(block), found[at] - start)]] = -1
        return found

    def _hashed(self, words: Array) -> Array:
        codes: Array = np.dot(words.astype(np.uint64, copy=False), self._weights)
        return codes

    def _slots(self, codes: Array) -> Index:
        slots: Index = ((codes ^ codes >> np.uint64(32)) * _MIX >> self._shift).astype(np.int64)
        return slots

    def _parts(self, numbers: Index) -> Iterator[tuple[Array, int, Mask]]:
        """Each block with frames of these numbers, its first number, and which of them it has."""
        start = 0
        for block, end in zip(self._blocks, self._ends):
            mine = (numbers >= start) & (numbers < end)
            if mine.any():
                yield block, start, mine
            start = end

    def _places(self, count: int) -> Index:
        """Numbers for new frames. Those of a state that somebody still writes stay as they are."""
        reused = 0 if are_referred_to(self._blocks) else min(count, len(self._free))
        left = len(self._free) - reused
        places = self._free[left:][::-1]
        while self._high + count - reused > len(self._uses):
            self._grow()
        del self._free[left:]
        places += range(self._high, self._high + count - reused)
        self._high += count - reused
        return np.array(places, np.int64)

    def _grow(self, least: int = 0) -> None:
        """A block for one frame a row and some more; larger ones where rows share less."""
        room = len(self._uses)
        size = max(least, room // 2 if room else self._rows + self._rows // 8) + 64
        if room:
            most = None if self._new is not np.empty else memory()
            size = size if most is None else min(size, most // self.frame.bytes - room)
            if size <= 0:
                raise ConfigError(
                    f"observations {self} have few frames in common: {self._rows} rows take more than all memory; take "
                    "a smaller capacity, or directory= for rows in files"
                )
            whole = (self._rows + 64) * self.spec.bytes // self.frame.bytes
            if max([0, *self._ends[:-1]]) <= whole < room:
                log.warning("observations %s have few frames in common, so that rows take more memory", self)
        self._blocks.append(self._new((size, *self.frame.shape), self.frame.dtype))
        self._ends.append(room + size)
        self._codes = np.concatenate([self._codes, np.zeros(size, np.uint64)])
        self._uses = np.concatenate([self._uses, np.zeros(size, np.int32)])

    # -- state

    def state_dict(self, *, copy: bool) -> dict[str, Any]:
        """The state. Many frames are not copied even so: while somebody holds them, no number is used again."""
        starts = [0, *self._ends]
        frames = [block[: max(0, self._high - start)] for block, start in zip(self._blocks, starts)]
        for block in frames:
            block.flags.writeable = False
        if copy and self._high * self.frame.bytes < COPIED_WHOLE:
            frames = [block.copy() for block in frames]
        return {
            "axis": self.axis,
            "shape": list(self.spec.shape),
            "frames": {str(at): block for at, block in enumerate(frames) if len(block)},
            "free": np.array(self._free, np.int64),
            "newest": self._newest.copy(),
        }

    @staticmethod
    def form(saved: Saved) -> tuple[Spec, int | None]:
        """The form of the observations of a saved state, and the axis of their frames."""
        axis, shape = saved.get("axis", int | None), tuple(saved.get("shape", list[int]))
        blocks = [block for block in saved.inside("frames").state.values() if isinstance(block, np.ndarray)]
        if axis not in (0, -1, None) or not blocks or min(shape, default=1) < 1 or (axis is not None and not shape):
            saved.refuse("shape", "the shape of an observation, with frames along its first or its last axis")
        return Spec(blocks[0].dtype, shape), axis

    def load(self, saved: Saved, numbers: list[Array]) -> None:
        """Restore a saved state, in which rows have these numbers."""
        kept = saved.inside("frames")
        blocks = [kept.array(str(at), self.spec.dtype, (None, *self.frame.shape)) for at in range(len(kept.state))]
        count = sum(map(len, blocks))
        for part in numbers:
            of_rows = part.dtype == np.int32 and part.shape[2:] == self.numbers.shape
            if self.spec.dtype.hasobject or not of_rows or not 0 <= part.min() <= part.max() < count:
                saved.refuse("of", f"columns of numbers of its {count} frames")
        self._grow(count)
        self._high = count
        np.concatenate(blocks, out=self._blocks[0][:count])
        for part in numbers:
            np.add.at(self._uses, part.reshape(-1), np.int32(1))
        for start in range(0, count, 2**12):
            stop = min(count, start + 2**12)
            self._codes[start:stop] = self._hashed(_words(self._blocks[0][start:stop]))
        free = saved.array("free", np.int64, (None,))
        if not np.array_equal(np.sort(free), np.flatnonzero(self._uses[:count] == 0)):
            saved.refuse("free", "the numbers of frames that no row has")
        self._free = free.tolist()
        self._newest = saved.array("newest", np.int32, self._newest.shape, least=-1, most=count - 1).copy()


def shared_axes(parts: Mapping[Leaf, Array], lead: int) -> dict[Spec, int | None]:
    """The forms of wide observations in a batch with so many leading axes, and the axis of their frames.

    A first axis that may be one of frames is taken: planes of one observation are stored alike. A last one may be of
    colors, whose planes only take longer; it is taken if most planes of the batch are equal.
    """
    found: dict[Spec, int | None] = {}
    for leaf, part in parts.items():
        spec = Spec(part.dtype, part.shape[lead:])
        if leaf[0] == "obs" and _is_wide(spec):
            found[spec] = 0 if _may_stack(spec, 0) else None
            if found[spec] is None and _may_stack(spec, -1):
                alike = [rows for rows in parts.values() if Spec(rows.dtype, rows.shape[lead:]) == spec]
                found[spec] = _last(spec, [rows.reshape(-1, *spec.shape)[:64] for rows in alike])
    return found


def told_form(spec: Spec) -> str:
    """What is stored of observations of a form, as far as known before any is seen; "" if they are not shared.

    >>> told_form(Spec(np.dtype(np.uint8), (84, 84, 4)))
    '84 x 84 x 4, also as 84 x 84 if the first rows are stacks'
    """
    if not _is_wide(spec):
        return ""
    if _may_stack(spec, 0):
        return str(SharedFrames(spec, 0, 1, np.empty))
    whole = str(SharedFrames(spec, None, 1, np.empty))
    last = " x ".join(map(str, spec.shape[:-1]))
    return f"{whole}, also as {last} if the first rows are stacks" if _may_stack(spec, -1) else whole


def _is_wide(spec: Spec) -> bool:
    return spec.bytes >= _WIDE and not spec.dtype.hasobject


def _may_stack(spec: Spec, axis: int) -> bool:
    """Whether an axis is short beside the others, as one of frames is."""
    length = spec.shape[axis] if len(spec.shape) > 1 else 0
    return 1 < length <= _STACK and 16 * length**2 <= math.prod(spec.shape)


def _last(spec: Spec, rows: list[Array]) -> int | None:
    """The last axis, if its planes in these rows take less than the whole observations."""
    most = sum(map(len, rows)) * spec.shape[-1]
    whole, planes = (SharedFrames(spec, axis, most, np.empty) for axis in (None, -1))
    for part in rows:
        whole.put(part)
        planes.put(part)
    return -1 if 4 * planes.count * planes.frame.bytes < 3 * whole.count * spec.bytes else None


def _unit(size: int) -> np.dtype[Any]:
    """The widest numbers of which frames of this size consist."""
    return np.dtype(next(f"u{width}" for width in (8, 4, 2, 1) if size % width == 0))


def _words(frames: Array) -> Array:
    """Frames `[n, ...]` as numbers `[n, words]`."""
    content = frames.reshape(len(frames), -1).view(np.uint8)
    return content.view(_unit(content.shape[1]))


def _equal(left: Array, at: Index, right: Array, to: Index) -> Mask:
    """Whether the rows of `left` at some indices equal those of `right` at others."""
    equal, step = np.empty(len(at), np.bool_), max(1, _AT_ONCE // left[:1].nbytes)
    for start in range(0, len(at), step):
        part = slice(start, start + step)
        equal[part] = (left[at[part]] == right[to[part]]).all(axis=1)
    return equal
