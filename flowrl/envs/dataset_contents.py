"""Whether what stands in the rows of a dataset can be learned from: numbers, and actions that there were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data import Batch, Dataset
from flowrl.data.arrays import Array
from flowrl.data.columns import ACTION_MASK
from flowrl.data.sources import ROWS, parts_of
from flowrl.envs.masks import choices_of
from flowrl.errors import DatasetError

if TYPE_CHECKING:
    from flowrl.data.minari import MinariEpisodes

#: What tells people which row it is.
_PLACE = {"episode_id": "episode", "t": "step"}


def check_rows(
    data: Dataset | MinariEpisodes, action_space: gymnasium.Space[Any], names: Iterable[str], rows: int = ROWS
) -> None:
    """Look through these columns, so many rows at a time; padded steps (`mask` 0) do not count.

    Raises:
        DatasetError: a number in them is not finite, or an action is none of the space, or one that the `action_mask`
            of its own observation forbids. It says in which row.
    """
    names = list(names)
    for numbers, part in parts_of(data, names, rows):
        for name, column in part.leaves():
            if np.asarray(column).dtype.kind == "f":
                _check_finite(data, numbers, name, np.asarray(column))
        if "action" in names and (choices := choices_of(action_space)):
            chosen = _chosen(part["action"], action_space)
            outside = (chosen < 0) | (chosen >= np.array(choices))
            for i in np.flatnonzero(outside.any(1)):
                action = part["action"][i]
                raise DatasetError(
                    f"{data.path} has the action {action} in {_row(data, numbers[i])}, but the action space is "
                    f"{action_space}: actions must be as the environment gets them"
                )
            if isinstance(part.get("obs"), Batch) and ACTION_MASK in part["obs"]:
                _check_valid(data, numbers, part, chosen + np.cumsum([0, *choices[:-1]]))


def check_bounds(data: Dataset | MinariEpisodes, space: gymnasium.Space[Any], rows: int = ROWS) -> None:
    """Compare the continuous actions of a dataset with the bounds of the action space; rounding is forgiven.

    Raises: DatasetError where some are beyond.
    """
    if not isinstance(space, spaces.Box):
        return
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    some = 1e-4 * np.where(np.isfinite(high - low), high - low, 1)
    for numbers, part in parts_of(data, ["action"], rows):
        actions = part["action"].astype(np.float64)
        wrong = ((actions < low - some) | (actions > high + some)).reshape(len(actions), -1).any(1)
        for i in np.flatnonzero(wrong):
            raise DatasetError(
                f"{data.path} has the action {actions[i]} in {_row(data, numbers[i])}, beyond the bounds of the action "
                f"space {space}: actions must be as the environment gets them, which is how `flowrl record` writes them"
            )


def _check_finite(data: Dataset | MinariEpisodes, numbers: Array, name: str, column: Array) -> None:
    finite = np.isfinite(column).reshape(len(column), -1)
    for i in np.flatnonzero(~finite.all(1)):
        number = column[i].ravel()[~finite[i]][0]
        raise DatasetError(
            f"{data.path}: its column {name!r} has {number} in {_row(data, numbers[i])}, from which nothing can be "
            "learned: leave such episodes out, or record them again with a wrapper that has finite numbers"
        )


def _check_valid(data: Dataset | MinariEpisodes, numbers: Array, part: Batch, places: Array) -> None:
    """That the places of the actions `[B, k]` are valid in the masks `[B, A]`."""
    mask = part["obs"][ACTION_MASK]
    valid = (np.take_along_axis(mask, places, 1) != 0).all(1)
    for i in np.flatnonzero(~valid):
        raise DatasetError(
            f"{data.path}: {_row(data, numbers[i])} has the action {part['action'][i]}, which the action_mask of its "
            f"observation forbids, {mask[i]}: a mask is that of the observation which was acted from; leave such "
            "rows out, or record them again"
        )


def _chosen(action: Array, space: Any) -> Array:
    """Choices `[B, k]`, counted from 0."""
    start = getattr(space, "start", 0)
    counted: Array = (action.astype(np.int64) - start).reshape(len(action), -1)
    return counted


def _row(data: Dataset | MinariEpisodes, number: int) -> str:
    there = [name for name in _PLACE if name in data.schema().columns]
    place = data.take([number], there)
    words = [f"{_PLACE[name]} {place[name][0]}" for name in there]
    return f"row {number}" + (f" ({', '.join(words)})" if words else "")
