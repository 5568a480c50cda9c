"""MixedReplay: batches with fixed fractions from several buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.replay.base import Seeds, Store
from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.data.replay.episodes import EpisodeReplayBuffer
from flowrl.data.replay.prioritized import PrioritizedReplayBuffer
from flowrl.data.replay.segments import SpanReplayBuffer
from flowrl.data.types import Floats, Index
from flowrl.engine.schema import UNKNOWN, ColumnSchema, Schema
from flowrl.errors import CheckpointError, SchemaError
from flowrl.saved import Saved, shown


class MixedReplay(Store):
    """Draws batches with a fixed fraction of rows from each of several buffers, up to one row.

    A batch of B rows has ⌊B f⌋ or ⌈B f⌉ rows of a part with fraction f. Later batches make up for the remainder, so the
    ratio is exact in the long run. The same holds for sequences.

    It only draws: rows are stored in the parts, each of which keeps its rows, limiter, generator and priorities.
    Samples have a column `part` (int64, the index of the part), by which `update_priorities` finds the part, and those
    columns that all parts have. Nothing can be drawn until every part can. If some parts have priorities, all rows have
    a `weight`, 1 for the other parts. Weights correct for the sampling within a part, not for the fractions, which are
    intended.

    Args:
        parts: By name, a buffer and its fraction; the fractions add up to 1. All are buffers of rows, or all of
            sequences of equal length.

    Blocks when: the limiter of a part does not allow its share.
    State: the remainder owed to each part. The parts are separate resources.
    Raises: ValueError for buffers that cannot be mixed, and invalid fractions.

    >>> fresh, demonstrations = (ReplayBuffer(10, seed=seed) for seed in (0, 1))
    >>> mixture = MixedReplay(fresh=(fresh, 0.7), demonstrations=(demonstrations, 0.3))
    >>> fresh.add(Batch(obs=[1, 2, 3]))
    >>> demonstrations.add(Batch(obs=[10, 20]))
    >>> [(drawn.obs.tolist(), drawn.part.tolist()) for drawn in (mixture.sample(4), mixture.sample(4))]
    [([3, 2, 2, 10], [0, 0, 0, 1]), ([1, 1, 1, 20], [0, 0, 0, 1])]
    """

    def __init__(self, **parts: tuple[Store, float]) -> None:
        super().__init__(None, None)
        self.names = tuple(parts)
        self.parts = tuple(part for part, _ in parts.values())
        _check_parts(self.names, self.parts)
        self.fractions = _exact(self.names, [fraction for _, fraction in parts.values()])
        self.by_priority = any(part.by_priority for part in self.parts)
        self.tracked = tuple(dict.fromkeys(name for part in self.parts for name in part.tracked))
        # Remainders are whole numbers of units, so rounding does not accumulate.
        self._unit = math.lcm(*(fraction.denominator for fraction in self.fractions))
        self._owed = [0] * len(parts)

    def __repr__(self) -> str:
        shown = (f"{name}={float(fraction):g}" for name, fraction in zip(self.names, self.fractions))
        return f"MixedReplay({', '.join(shown)})"

    @property
    def resources(self) -> tuple[Store, ...]:
        """The parts, which a checkpoint holds separately."""
        return self.parts

    # -- counts: those of the parts

    @property
    def capacity(self) -> int:
        """The capacity of all parts, in rows."""
        return sum(part.capacity for part in self.parts)

    @property
    def inserts(self) -> int:
        """Rows ever added to a part."""
        return sum(part.inserts for part in self.parts)

    @property
    def samples(self) -> int:
        """Rows ever drawn from a part, also directly."""
        return sum(part.samples for part in self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def rows_of(self, item: Any) -> int:
        """See `Store.rows_of`."""
        return self.parts[0].rows_of(item)

    def declared_rows(self, batch_size: int) -> int:
        """See `Store.declared_rows`."""
        return self.parts[0].declared_rows(batch_size)

    # -- what can be said before

    @property
    def holds_items(self) -> bool:
        """Whether every part can be drawn from before a plan adds items."""
        return all(part.holds_items for part in self.parts)

    def schema(self, given: Schema, *others: Schema) -> Schema:
        """The schema of samples, from the schemas of the items added to the parts, in their order."""
        drawn = [part.schema(each) for part, each in zip(self.parts, (given, *others))]
        if UNKNOWN in drawn:
            return UNKNOWN
        first, columns = drawn[0], dict[str, ColumnSchema]()
        for name, column in first.columns.items():
            all_of_it = [each.columns[name] for each in drawn if name in each.columns]
            if len(all_of_it) < len(drawn):
                continue
            if wrong := [each for each in all_of_it if each.shape != column.shape]:
                raise SchemaError(f"column {name!r} is {column} in {self.names[0]!r}, but {wrong[0]} in another part")
            columns[name] = ColumnSchema(str(np.result_type(*(each.dtype for each in all_of_it))), column.shape)
        place = first.columns["index"]
        beside = {"part": str(place)} | ({"weight": f"float32{str(place)[5:]}"} if self.by_priority else {})
        # An operator before one part has had its effect, such as gathering statistics.
        words = frozenset().union(*(each.words for each in drawn))
        return Schema(columns, words, any(each.open for each in drawn)).having(**beside)

    def drawn_from(self, batch_size: int) -> list[tuple[Store, int]]:
        """See `Store.drawn_from`."""
        return [(part, math.ceil(batch_size * fraction)) for part, fraction in zip(self.parts, self.fractions)]

    # -- in

    def add(self, item: Any, /) -> None:
        """Raises SchemaError: add rows to a part."""
        raise SchemaError(f"{self!r} is drawn from only: store into one of its parts, {' or '.join(self.names)}")

    def update_priorities(self, index: Index, generation: Index, priority: Floats, part: Index) -> int:
        """Give every part the priorities of its rows `[B]`; parts without priorities need none.

        See `PrioritizedReplayBuffer.update_priorities`, and what it returns and raises.
        """
        part = np.asarray(part)
        if part.shape != np.shape(index) or (part.size and not 0 <= part.min() <= part.max() < len(self.parts)):
            raise ValueError(f"part must be numbers of parts, 0 .. {len(self.parts) - 1}, one for each index")
        outdated = 0
        for number, buffer in enumerate(self.parts):
            if isinstance(buffer, PrioritizedReplayBuffer):
                of = part == number
                outdated += buffer.update_priorities(*(np.asarray(each)[of] for each in (index, generation, priority)))
        return outdated

    # -- out

    def can_sample(self, batch_size: int) -> bool:
        """Whether every part can provide its share of the next batch now."""
        each = zip(self.parts, self.shares(batch_size))
        return all(part.can_sample(share) if share else len(part) > 0 for part, share in each)

    def why_sample(self, batch_size: int) -> str:
        """The reason why the next batch cannot be drawn now, in one sentence; "" if it can."""
        each = zip(self.names, self.parts, self.shares(batch_size))
        needed = [(name, part, share or 1) for name, part, share in each if share or not len(part)]
        return "; ".join(f"{name}: {why}" for name, part, rows in needed if (why := part.why_sample(rows)))

    def shares(self, batch_size: int) -> list[int]:
        """Rows of each part in the next batch: the whole ones, then one each for the largest remainders."""
        exact = [int(fraction * self._unit) * batch_size for fraction in self.fractions]
        whole, left = [rows // self._unit for rows in exact], [rows % self._unit for rows in exact]
        due = [owed + rest for owed, rest in zip(self._owed, left)]
        order = sorted((i for i, rest in enumerate(left) if rest), key=lambda i: -due[i])
        for i in order[: batch_size - sum(whole)]:
            whole[i] += 1
        return whole

    def sample(self, batch_size: int, /) -> Batch:
        """Rows `[batch_size, ...]`, or sequences `[T, batch_size, ...]`: the parts' shares side by side, in order.

        Raises: ValueError if a part cannot be drawn from; SchemaError if columns do not match.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: draw at least 1 row")
        with self._lock:
            shares = self.shares(batch_size)
            if not self.can_sample(batch_size):
                raise ValueError(f"sample({batch_size}): {self.why_sample(batch_size)}; ask can_sample() before")
            drawn = {i: self.parts[i].sample(share) for i, share in enumerate(shares) if share}
            self._owed = [
                owed + int(fraction * self._unit) * batch_size - share * self._unit
                for owed, fraction, share in zip(self._owed, self.fractions, shares)
            ]
            return self._joined(drawn)

    def _joined(self, drawn: dict[int, Batch]) -> Batch:
        """Join the samples of the parts, by index, into one batch of the columns that all parts have."""
        for number, rows in drawn.items():
            place = rows["index"].shape
            rows["part"] = np.full(place, number)
            if self.by_priority and "weight" not in rows:
                rows["weight"] = np.ones(place, np.float32)
        first = next(iter(drawn.values()))
        given = [self._gives(part) if i not in drawn else set(drawn[i]) for i, part in enumerate(self.parts)]
        names = [name for name in first if all(name in each for each in given)]
        return Batch.cat([rows.select(names) for rows in drawn.values()], axis=first["index"].ndim - 1)

    def _gives(self, part: Any) -> set[str]:
        """The columns that a part's sample would have: stored ones and added ones."""
        names = {*part[:1], *part.made, "part", "weight"}
        if isinstance(part, SpanReplayBuffer):
            names.add("mask")
        elif "terminated" in names:
            names.add("discount")
        return names

    # -- state

    def start(self, context: Seeds) -> None:
        """Does nothing: it has no generator."""

    def state_dict(self) -> dict[str, Any]:
        """The remainders, in fractions of a row; the parts have their own states."""
        return {"parts": self._described(), "owed": list(self._owed)}

    def _load(self, saved: Saved) -> None:
        if (found := saved.get("parts", dict[str, str])) != (mine := self._described()):
            raise CheckpointError(f"the saved mixture is {shown(found)}, this one {mine}; it must be equal")
        owed = saved.get("owed", list[int])
        if len(owed) != len(self.parts) or sum(owed):
            saved.refuse("owed", f"{len(self.parts)} remainders, which add up to 0")
        self._owed = list(owed)

    def _described(self) -> dict[str, str]:
        return {name: str(fraction) for name, fraction in zip(self.names, self.fractions)}


def _exact(names: Sequence[str], given: Sequence[float]) -> tuple[Fraction, ...]:
    """Fractions that add up to 1, from numbers that nearly do."""
    said = ", ".join(f"{name}={fraction}" for name, fraction in zip(names, given))
    if any(not 0 < fraction <= 1 for fraction in given) or abs(sum(given) - 1) > 1e-6:
        raise ValueError(f"{said}: the parts of a batch are fractions above 0 that add up to 1")
    meant = [max(Fraction(fraction).limit_denominator(10**6), Fraction(1, 10**6)) for fraction in given]
    return tuple(fraction / sum(meant) for fraction in meant)


def _check_parts(names: Sequence[str], parts: Sequence[Store]) -> None:
    if not parts:
        raise ValueError("MixedReplay needs parts: MixedReplay(fresh=(buffer, 0.75), demonstrations=(other, 0.25))")
    for name, part in zip(names, parts):
        if not isinstance(part, ReplayBuffer) or isinstance(part, EpisodeReplayBuffer):
            raise ValueError(f"{name} is {part!r}: what is mixed are ReplayBuffers of rows, or of sequences")
        if any(part is other for other in parts[: names.index(name)]):
            raise ValueError(f"{name} is {part!r}, and so is another part: give each part a buffer of its own")
        if (steps := part.declared_rows(1)) != (of_first := parts[0].declared_rows(1)):
            raise ValueError(f"{name} gives out {steps} steps each, {names[0]} {of_first}: they do not fit together")
