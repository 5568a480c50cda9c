"""Steps in batches: distinguishing fragments from rows, flattening, counting and joining them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.data import columns as cols
from flowrl.data.batch import Batch
from flowrl.errors import SchemaError

#: Columns of one number per step.
PER_STEP = ("reward", "terminated", "truncated", "mask", "t", "env_id", "episode_id", "policy_version")


def is_fragment(batch: Batch) -> bool:
    """Whether the columns are `[T, N, ...]`, in the order of time, and not rows `[B, ...]`.

    A column of one number per step decides, `reward` first; without one the axes that all columns share.

    Raises: SchemaError if there are several rewards per step.
    """
    if (rewards := batch.get("reward")) is None:
        told = next((name for name in PER_STEP if name in batch), None)
        return len(batch.shape if told is None else batch[told].shape) >= 2
    if len(reward := rewards.shape) < 2:
        return False
    flags = batch["terminated"].shape if "terminated" in batch else ()
    if 0 < len(flags) < len(reward):
        raise SchemaError(
            f"reward has the shape {list(reward)}, terminated {list(flags)}: expected one reward per step; weigh them "
            "first, as in .for_each(lambda batch: batch.replace(reward=batch.reward @ weights))"
        )
    return len(reward) >= 2


def tells_fragments(batch: Batch) -> bool:
    """Whether a column of one number per step tells fragments from rows, and not only the axes that columns share."""
    return not batch.keys().isdisjoint(PER_STEP)


def real_steps(batch: Batch) -> int:
    """The number of steps in a batch, without padding (`mask` 0, N6).

    >>> real_steps(Batch(reward=np.ones((3, 2)), mask=[[1, 1], [1, 0], [1, 0]]))
    4
    """
    columns = batch.keys()
    if "mask" in columns:
        return int((batch["mask"] != 0).sum())
    if "reward" in columns:  # it decides, and the other columns need not be looked at
        shape = batch["reward"].shape
        return shape[0] if len(shape) == 1 else math.prod(shape[: 1 + is_fragment(batch)])
    return math.prod(batch.shape[: 1 + is_fragment(batch)]) if columns else 0


def real_rows(batch: Batch, *, fragment: bool | None = None) -> Batch:
    """The steps of a batch as rows `[B, ...]`, those of fragments time-major, without padded ones (`mask` 0, N6).

    `fragment` states whether the batch is one if its columns do not show it: see `is_fragment`.

    >>> real_rows(Batch(reward=np.ones((2, 2)), t=[[0, 0], [1, 1]], mask=[[1, 1], [1, 0]])).t
    array([0, 0, 1])
    """
    rows = batch.flat() if (is_fragment(batch) if fragment is None else fragment) else batch
    return rows[np.flatnonzero(rows["mask"])] if "mask" in rows and not np.all(rows["mask"]) else rows


def discounts(batch: Batch, gamma: float) -> Any:
    """The discount of each step: the column `step_discount` of a game that has it (M10), else the number `gamma`."""
    return batch.get(cols.STEP_DISCOUNT, gamma)


def one_step_windows(batch: Batch, gamma: float) -> Batch:
    """The rows of a batch, with `discount = gamma · (1 − terminated)` unless an adder made n-step windows (T6).

    gamma is that of the step, see `discounts`.

    >>> one_step_windows(Batch(reward=np.ones(2), terminated=[True, False], truncated=[True, True]), 0.5).discount
    array([0. , 0.5], dtype=float32)
    """
    if "discount" not in batch:
        batch = batch.replace(discount=discounts(batch, gamma) * (1.0 - batch["terminated"].astype(np.float32)))
    return real_rows(batch)


def check_joinable(first: Batch, batch: Batch, what: str) -> None:
    """Raise a SchemaError, beginning with `what`, if two batches cannot be joined; it names reason and remedy."""
    cols.check_names(dict(first.items()), batch, f"{what}: a batch beside others")
    if is_fragment(first) != is_fragment(batch):
        raise SchemaError(
            f"{what} got fragments [T, N, ...] and rows [B, ...]: {first!r}, then {batch!r}; "
            "make rows of the fragments first, with .for_each(Batch.flat), or leave all of them fragments"
        )
    if is_fragment(first) and len(first) != len(batch) and not ("mask" in first and "mask" in batch):
        raise SchemaError(
            f"{what} got fragments of {len(first)} steps and of {len(batch)}, which do not fit side by side; "
            "give all of them the same `steps`, or make rows of them first, with .for_each(Batch.flat)"
        )


def joined(batches: Sequence[Batch]) -> Batch:
    """Join fragments along N, so that each keeps its own columns (G1), or rows along B.

    Fragments with a `mask`, such as whole episodes, are padded to the longest (N6).

    >>> joined([Batch(reward=np.ones((3, 2))), Batch(reward=np.ones((3, 1)))]).shape
    (3, 3)
    """
    if len(batches) == 1:
        return batches[0]
    if not is_fragment(batches[0]):
        return Batch.cat(batches)
    if "mask" in batches[0]:
        most = max(len(batch) for batch in batches)
        batches = [_padded(batch, most) for batch in batches if len(batch) or not most]
    return Batch.cat(batches, axis=1)


def _padded(batch: Batch, length: int) -> Batch:
    """A fragment with padding at its end, up to `length` rows, see `pad`."""
    if len(batch) == length:
        return batch
    padded: Batch = batch[np.minimum(np.arange(length), len(batch) - 1)]
    pad(padded, np.broadcast_to(np.arange(length)[:, None] < len(batch), padded.shape))
    return padded


def pad(batch: Batch, real: Any) -> None:
    """Make padding of the rows `[T, N]` that are not `real`, each after the real ones of its column (N6, R7).

    Of `obs`, `next_obs` and `action` it repeats the last real row, since 0 may be no member of their spaces; other
    columns are 0.
    """
    padding, count = ~real, real.sum(0)
    last, column = count - 1, np.arange(len(count))
    if not count.all() and count.any():  # a column without real rows repeats one of another
        some = int(np.argmax(count > 0))
        last, column = np.where(count > 0, last, 0), np.where(count > 0, column, some)
    of = np.nonzero(padding)[1]
    for name in batch:
        values = batch[name]
        copied = name in ("obs", "next_obs", "action") and bool(count.any())
        values[padding] = values[last[of], column[of]] if copied else 0
