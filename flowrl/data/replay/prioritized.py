"""PrioritizedReplayBuffer: rows sampled in proportion to their priority."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.data.replay.ring_storage import must_equal
from flowrl.data.replay.sum_tree import SumTree
from flowrl.data.types import Floats, Index
from flowrl.engine.schema import Schema
from flowrl.errors import CheckpointError
from flowrl.saved import Saved
from flowrl.schedules import Schedule, value_at

_LARGEST = 1e290
"""Masses below can be added up."""


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that draws row i with probability P(i) = pᵢ^α / Σⱼ pⱼ^α, over the rows that can be drawn (P2).

    A new row has the largest priority in the buffer (P1), or 1 in an empty one, so that it is drawn soon;
    `update_priorities` then sets it, plus `eps`. Rows of another buffer (`update`) enter as new rows. Samples have a
    column `weight` (float32), wᵢ = (N · P(i))^−β for N rows that can be drawn, divided by the largest weight.

    Sampling is stratified: the k-th row of a batch of B comes from the k-th of B equal parts of the total. The expected
    frequency of each row equals that of independent draws, but batches vary less.

    Args:
        alpha: 0 draws uniformly, 1 in proportion to priority.
        beta: 1 corrects fully for non-uniform sampling, 0 not at all; a number, or a function of `inserts`, the rows
            ever added, which equal env steps if each step is stored (P6).
        eps: added to every priority, so that every row can be drawn again.
        normalise: divide by the largest weight of the "batch", or of all rows in the "buffer"; None: do not divide, to
            compare rows of several buffers.
        compiled: see `SumTree`; changes no result.

    The other arguments are those of `ReplayBuffer`.

    Source: Schaul et al. 2016, "Prioritized Experience Replay", section 3.

    >>> from flowrl.data import Batch
    >>> buffer = PrioritizedReplayBuffer(capacity=4, alpha=1.0, beta=1.0, compiled=False, seed=0)
    >>> buffer.add(Batch(obs=np.arange(3)))
    >>> drawn = buffer.sample(3)
    >>> drawn.obs, drawn.weight
    (array([0, 1, 2]), array([1., 1., 1.], dtype=float32))
    >>> buffer.update_priorities(drawn.index, drawn.generation, np.array([6.0, 1.0, 1.0]))
    0
    >>> drawn = buffer.sample(4)
    >>> drawn.obs, drawn.weight.round(2)
    (array([0, 0, 0, 2]), array([0.17, 0.17, 0.17, 1.  ], dtype=float32))
    """

    by_priority = True
    _watches = True
    _made = (*ReplayBuffer._made, "weight")

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: Schedule = 0.4,
        eps: float = 1e-6,
        normalise: Literal["batch", "buffer"] | None = "batch",
        compiled: bool | None = None,
        **others: Any,
    ) -> None:
        if not 0 <= alpha < np.inf:
            raise ValueError(f"alpha is {alpha}: it must be at least 0; 0 draws uniformly, 1 in proportion to priority")
        if not callable(beta) and not 0 <= beta <= 1:
            raise ValueError(f"beta is {beta}: it lies in 0 .. 1")
        if not 0 < eps < np.inf:
            raise ValueError(f"eps is {eps}: with nothing added, a row of priority 0 would never be drawn again")
        if normalise not in ("batch", "buffer", None):
            raise ValueError(f"normalise is {normalise!r}: it is 'batch', 'buffer' or None")
        super().__init__(capacity, **others)
        self.alpha, self.beta, self.eps, self.normalise = alpha, beta, eps, normalise
        self._tree = SumTree(capacity, compiled=compiled)
        # The slots that can be drawn, and their number; the tree holds their p^α.
        self._live, self._count = np.zeros(capacity, bool), 0
        self._outdated = 0

    def __repr__(self) -> str:
        how = "compiled" if self._tree.compiled else "numpy"
        return f"{super().__repr__()[:-1]}, alpha={self.alpha}, {how})"

    @property
    def outdated(self) -> int:
        """Priorities ever dropped because their row could no longer be drawn (P4)."""
        return self._outdated

    def update_priorities(self, index: Index, generation: Index, priority: Floats) -> int:
        """Set new priorities ≥ 0 `[B]` of drawn rows, by their `index` and `generation`.

        For a repeated row the last priority counts. Priorities of rows that were overwritten since, or can no longer be
        drawn, are dropped (P4).

        Returns: the number of dropped priorities.

        Raises: ValueError for invalid slots, shapes that differ, and priorities that are not finite or < 0.
        """
        index, generation, priority = np.asarray(index), np.asarray(generation), np.asarray(priority, np.float64)
        if index.ndim != 1 or not index.shape == generation.shape == priority.shape:
            raise ValueError(
                f"index, generation and priority must be alike [B], got {index.shape}, {generation.shape} and "
                f"{priority.shape}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            mass = (priority + self.eps) ** self.alpha
        right = (priority >= 0) & (priority < np.inf) & (mass < _LARGEST)
        if not right.all():
            first = int(right.argmin())
            raise ValueError(
                f"the priority of slot {index[first]} is {priority[first]}: priorities are finite and at least 0, also "
                f"to the power of alpha={self.alpha}; give |TD error|"
            )
        with self._lock:
            if not len(index):
                return 0
            if index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= self.size:
                raise ValueError(f"index must hold slots in use, 0 .. {self.size - 1}, as sample() gives, got {index}")
            there = self._live[index] & (self._rings.generation(index) == generation)
            dropped = len(index) - int(np.count_nonzero(there))
            if dropped:
                index, mass = index[there], mass[there]
            self._tree[index] = mass
            self._outdated += dropped
            return dropped

    def _drawn(self, batch_size: int) -> tuple[Index, dict[str, Any]]:
        # N and the total cancel in normalized weights: (N · P)^−β becomes (least mass / mass)^β.
        reference = None
        if self.normalise is None:
            reference = self._tree.total / self._count
        elif self.normalise == "buffer":
            reference = self._tree.smallest
        # Masses are looked up when slots are proposed: a row that this draw uses up has none afterwards.
        proposed: list[tuple[Index, Floats]] = []

        def propose(count: int) -> Index:
            slots = self._by_priority(count)
            proposed.append((slots, self._tree[slots]))
            return slots

        slots = self._within_limits(propose, batch_size)
        mass = proposed[0][1] if slots is proposed[0][0] else _looked_up(slots, proposed)
        weight = ((mass.min() if reference is None else reference) / mass) ** value_at(self.beta, self.inserts)
        return slots, {"weight": weight.astype(np.float32)}

    def _beside(self, given: Schema) -> dict[str, str]:
        return super()._beside(given) | {"weight": "float32"}

    def _by_priority(self, count: int) -> Index:
        return self._tree.find((np.arange(count) + self._generator.random(count)) / count)

    def _stored(self, written: Index, drawable: Index) -> None:
        largest = self._tree.largest or 1.0
        if drawable is not written:
            self._dropped(written)
        self._give(drawable, largest)

    def _dropped(self, slots: Index) -> None:
        self._give(slots, 0.0)

    def _give(self, slots: Index, mass: float) -> None:
        """Make slots drawable with a mass above 0, or not drawable with 0."""
        self._count += len(slots) * (mass > 0) - int(np.count_nonzero(self._live[slots]))
        self._live[slots] = mass > 0
        self._tree[slots] = mass

    # -- state

    def state_dict(self, *, copy_rows: bool = True) -> dict[str, Any]:
        """See `ReplayBuffer.state_dict`."""
        with self._lock:
            return {
                **super().state_dict(copy_rows=copy_rows),
                "alpha": self.alpha,
                "masses": self._tree.masses[: self.size].copy(),
                "live": self._live[: self.size].copy(),
                "outdated": self._outdated,
            }

    def _load(self, saved: Saved) -> None:
        if "alpha" not in saved:
            raise CheckpointError(
                f"the saved buffer has no priorities, this one alpha {self.alpha}; load it into a buffer without"
            )
        must_equal(saved, {"alpha": self.alpha})
        super()._load(saved)
        masses, live = np.zeros(len(self._live)), np.zeros(len(self._live), bool)
        masses[: self.size] = saved.array("masses", np.float64, (self.size,), least=0, most=_LARGEST)
        live[: self.size] = saved.array("live", bool, (self.size,))
        drawable = self._rings.drawable_slots()
        if self._limits is not None:
            drawable[:] = False
            drawable[self._limits.members] = True
        if (live[: self.size] != drawable).any():
            saved.refuse("live", "True for all rows that can be drawn")
        if ((masses > 0) != live).any():
            saved.refuse("masses", "more than 0 for all rows that can be drawn, else 0")
        self._tree = SumTree(self._tree.capacity, compiled=self._tree.compiled)
        self._tree.fill(masses)
        self._live, self._count = live, int(np.count_nonzero(live))
        self._outdated = saved.count("outdated")

    def settings(self) -> dict[str, Any]:
        """See `ReplayBuffer.settings`."""
        own = {"alpha": self.alpha, "beta": self.beta, "eps": self.eps, "normalise": self.normalise}
        return super().settings() | own


def _looked_up(slots: Index, proposed: list[tuple[Index, Floats]]) -> Floats:
    """The masses of slots, each of which was proposed at least once."""
    known, first = np.unique(np.concatenate([part for part, _ in proposed]), return_index=True)
    masses: Floats = np.concatenate([mass for _, mass in proposed])[first[known.searchsorted(slots)]]
    return masses
