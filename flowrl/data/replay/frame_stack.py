"""Frame stacks: observations stored as one frame per row, and stacked when drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import ACTION_MASK
from flowrl.data.replay.ring_storage import Rings
from flowrl.data.replay.tree import leaves, nested
from flowrl.data.types import Array, Index, New
from flowrl.engine.schema import Schema
from flowrl.errors import SchemaError

_STACKED = ("obs", "next_obs")


def stack_slots(rings: Rings, slots: Index, k: int) -> Index:
    """The slots of the last k frames up to each slot, oldest first, `[B]` -> `[B, k]`.

    At the start of an episode, or at its oldest stored row, the first frame repeats (B1, B9).
    """
    back, _ = rings.preceding(slots, k)
    inside = ~np.logical_or.accumulate(rings.begins(back[:-1]))
    steps = np.concatenate([np.zeros((1, len(slots)), np.int64), np.cumsum(inside, axis=0)])
    frames: Index = back[steps, np.arange(len(slots))].T[:, ::-1]
    return frames


def with_stacks(rows: Batch, rings: Rings, slots: Index, last: Index, k: int, new: New) -> None:
    """Set `obs`, and `next_obs` if present, to stacks `[B, k, ...]`: those at `slots`, and those after `last`.

    Action masks are not stacked: they are those of the newest frame.
    """
    frames = stack_slots(rings, slots, k)
    stacks = rings.take(frames, ["obs"], new)["obs"]
    if "next_obs" in rows:
        before = stacks if last is slots else rings.take(stack_slots(rings, last, k), ["obs"], new)["obs"]
        rows["next_obs"] = _with_newest_mask(_shifted(before, rows["next_obs"], new))
    rows["obs"] = _with_newest_mask(stacks)


def newest_frames(batch: Batch, k: int) -> Batch:
    """The batch with only the newest frame of its stacked `obs` and `next_obs`, `[..., k, *frame]` -> `[..., *frame]`.

    An action mask has no frames.

    Raises: SchemaError for observations without a stack of k.
    """
    lead = len(batch.shape)

    def newest(column: Array) -> Array:
        if column.ndim <= lead or column.shape[lead] != k:
            raise SchemaError(
                f"newest_frame_only=True needs observations of {k} frames, got {list(column.shape[lead:])} a row"
            )
        frame: Array = column[:, -1] if lead == 1 else column[:, :, -1]
        return frame

    kept = {
        leaf: newest(column) if leaf[0] in _STACKED and leaf[1:] != (ACTION_MASK,) else column
        for leaf, column in leaves(batch).items()
    }
    return nested(kept)


def stacked_schema(given: Schema, k: int, lead: int) -> Schema:
    """The schema of rows with `lead` leading axes whose observations become stacks of k frames; the same for k = 1."""
    stacks = {
        name: str(column._replace(shape=(*column.shape[:lead], k, *column.shape[lead:])))
        for name, column in given.columns.items()
        if k > 1 and (path := name.split("."))[0] in _STACKED and path[1:] != [ACTION_MASK]
    }
    return given.having(**stacks)


def _with_newest_mask(stacks: Any) -> Any:
    if isinstance(stacks, Batch) and ACTION_MASK in stacks:
        return stacks.replace(**{ACTION_MASK: stacks[ACTION_MASK][:, -1]})
    return stacks


def _shifted(stacks: Any, newest: Any, new: New) -> Any:
    """Stacks one frame later."""
    if isinstance(stacks, Batch):
        return Batch({name: _shifted(column, newest[name], new) for name, column in stacks.items()})
    shifted = new(stacks.shape, stacks.dtype)
    shifted[:, :-1] = stacks[:, 1:]
    shifted[:, -1] = newest
    return shifted
