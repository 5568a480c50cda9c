"""Whether a dataset fits the spaces that somebody is to learn from it in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data import Batch, Dataset
from flowrl.envs.spaces import dict_form, fits, make_store
from flowrl.errors import DatasetError, did_you_mean
from flowrl.schema import Column, schema_of

if TYPE_CHECKING:
    from flowrl.data.minari import MinariEpisodes


def check_dataset(
    data: Dataset | MinariEpisodes,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    needs: Iterable[str] = ("obs", "action"),
) -> None:
    """Compare a dataset with the spaces that somebody is to learn from it in.

    Raises:
        DatasetError: it has nothing in it, or not the columns in `needs`, or observations or actions of another shape
            or kind, or discrete actions that there are not.
    """
    if not data.rows:
        raise DatasetError(f"{data.path} has nothing in it: record some episodes first, with `flowrl record`")
    found = data.schema()
    there = {name.partition(".")[0] for name in found.columns}
    if missing := [name for name in needs if name not in there]:
        raise DatasetError(f"{data.path} has no column {missing[0]!r}, which is learned from: it has {_listed(there)}")
    of_spaces = {"obs": observation_space, "action": action_space, "next_obs": observation_space}
    for name in needs:
        if name in of_spaces:
            _check_column(data, name, of_spaces[name])
    if isinstance(action_space, spaces.Discrete) and "action" in needs:
        _check_choices(data, action_space)


def _check_column(data: Dataset | MinariEpisodes, name: str, space: gymnasium.Space[Any]) -> None:
    found, role = data.schema(), "action" if name == "action" else "observation"
    axes = 2 if "fragments" in found.words else 1
    there = {key: Column(each.dtype, each.shape[axes:]) for key, each in found.columns.items()}
    wanted = schema_of(Batch({name: make_store(dict_form(space), 1, role)})).columns
    for key, column in wanted.items():
        if key not in there:
            ours = [other for other in there if other.partition(".")[0] == name]
            raise DatasetError(
                f"{data.path} has no column {key!r}, but the {role} space is {space}: it has {_listed(ours)}"
            )
        shape = column.shape[1:]
        if there[key].shape != shape or not fits(np.dtype(there[key].dtype), np.dtype(column.dtype)):
            raise DatasetError(
                f"{data.path} does not fit: its column {key!r} is {there[key]}, but the {role} space is {space}"
            )


def _check_choices(data: Dataset | MinariEpisodes, space: spaces.Discrete) -> None:
    actions = data.take(data.real_rows())["action"]
    wrong = (actions < space.start) | (actions >= space.start + space.n)
    if wrong.any():
        raise DatasetError(f"{data.path} has the action {actions[wrong][0]}, but the action space is {space}")


def _listed(names: Iterable[str]) -> str:
    return did_you_mean("", names).removeprefix("there are: ")
