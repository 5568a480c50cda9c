"""The samples for slots: stored rows as transitions of one or n steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import ENDS, OF_LAST, STEP_DISCOUNT, describe, numeric
from flowrl.data.replay.frame_stack import with_stacks
from flowrl.data.replay.ring_storage import Rings
from flowrl.data.steps import discounts
from flowrl.data.types import Index, New
from flowrl.errors import SchemaError, did_you_mean
from flowrl.returns import n_step as n_step_windows


def transitions(
    rings: Rings, index: Index, last: Index, frame_stack: int = 1, new: New = np.empty, without: tuple[str, ...] = ()
) -> Batch:
    """The rows in slots `[B]`, with the ends and next observations of the rows in `last`.

    Args:
        frame_stack: frames per observation. new: allocates the arrays of wide columns. without: columns to leave out.
    """
    single, stacked = last is index, frame_stack > 1
    if single and not stacked and rings.store_next_obs and not without:
        return rings.take(index, None, new)
    left_out = without + (() if single else OF_LAST) + (("obs",) if stacked else ())
    rows = rings.take(index, [name for name in rings.names if name not in left_out], new)
    if not single:
        rows.update(rings.take(last, [name for name in ENDS if name in rings]))
    if not rings.store_next_obs or (not single and "next_obs" in rings):
        rows["next_obs"] = rings.next_obs(last, new)
    if stacked:
        with_stacks(rows, rings, index, last, frame_stack, new)
    return rows


def one_step(rings: Rings, index: Index, gamma: float, frame_stack: int = 1, new: New = np.empty) -> Batch:
    """Transitions of one step, with `discount` if `terminated` is stored and `discount` is not."""
    rows = transitions(rings, index, index, frame_stack, new)
    if "discount" not in rows and "terminated" in rows:
        rows["discount"] = (rows["terminated"] == 0) * np.float32(discounts(rows, gamma))
    return rows


def windows(rings: Rings, index: Index, n: int, gamma: float, frame_stack: int = 1, new: New = np.empty) -> Batch:
    """Transitions of n steps, or fewer up to the end of the episode or the newest row (N1-N4)."""
    n = min(n, rings.length)  # no window is longer than a ring
    window, ended = rings.following(index, n)
    ended[:-1] |= rings.begins(window[1:])
    steps = rings.take(window, ["reward", *ENDS, *([STEP_DISCOUNT] if STEP_DISCOUNT in rings else [])])
    ended |= steps["truncated"] != 0
    total, length, discount = n_step_windows(
        steps["reward"], steps["terminated"], ended, gamma=discounts(steps, gamma), n=n
    )
    rows = transitions(rings, index, window[length[0] - 1, np.arange(len(index))], frame_stack, new)
    rows.update(reward=total[0], discount=discount[0].astype(np.float32))
    return rows


def check_first(batch: Batch, n_step: int, frame_stack: int, *, made: Sequence[str], max_staleness: int | None) -> None:
    """Raise a SchemaError unless batches like this one can form transitions.

    Args:
        made: the columns that sampling adds. max_staleness: the limit for rows, by their `policy_version`.
    """
    if len(batch.shape) > 2:
        raise SchemaError(f"cannot tell rows from features, no column has one number per row: {batch!r}")
    if found := [name for name in made if name in batch]:
        raise SchemaError(f"the column {found[0]!r} is made by sample(): drop it before adding")
    for name, steps in (("n_step", n_step), ("frame_stack", frame_stack)):
        if steps > 1 and len(batch.shape) == 1:
            raise SchemaError(f"{name}={steps} needs fragments [T, N, ...] in order of time, not {batch!r}")
    if n_step > 1 and "discount" in batch:
        raise SchemaError(f"n_step={n_step} makes the column 'discount', which the batch has already")
    for what, names in needed(n_step, frame_stack, max_staleness).items():
        for name in names:
            if name not in batch:
                raise SchemaError(f"{what} needs the column {name!r}: {did_you_mean(name, batch)}")
    for name in (*ENDS, "reward", "policy_version"):
        if name in batch and not (numeric(batch[name]) and (name == "reward" or batch[name].shape == batch.shape)):
            raise SchemaError(f"the column {name!r} is {describe(batch[name])}, expected numbers, one of each row")


def needed(n_step: int, frame_stack: int, max_staleness: int | None) -> dict[str, tuple[str, ...]]:
    """The columns that each of these settings needs, for `plan.check()` and `check_first`."""
    found = {"max_staleness": ("policy_version",) if max_staleness is not None else ()}
    found |= {f"frame_stack={frame_stack}": ("obs",) if frame_stack > 1 else ()}
    return found | {f"n_step={n_step}": ("reward", *OF_LAST) if n_step > 1 else ()}


def content(rings: Rings, newest_version: int | None) -> dict[str, float]:
    """Statistics from the stored columns: see `ReplayBuffer.statistics`."""
    found: dict[str, float] = {}
    if not rings.size:
        return found
    stored = np.arange(rings.size)
    ends = [rings.take(stored, [name])[name] != 0 for name in ENDS if name in rings]
    if ends:
        found["episodes"] = int(np.count_nonzero(np.logical_or.reduce(ends)))
    if not rings.store_next_obs:
        found["next_obs_aside"] = rings.num_final_obs
    if rings.count_uses:
        found["mean_uses"] = float(rings.uses(stored).mean())
    if newest_version is not None:
        versions = rings.take(stored, ["policy_version"])["policy_version"]
        found["mean_staleness"] = float(newest_version - versions.mean())
    return found
