"""Whether a dataset fits the spaces that somebody is to learn from it in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data import Batch, Dataset
from flowrl.envs.saved_spaces import space_from_json
from flowrl.envs.spaces import dict_form, fits, make_store
from flowrl.errors import DatasetError, SchemaError, did_you_mean
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


def spaces_of(data: Dataset | MinariEpisodes) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None:
    """The spaces of observations and actions that a dataset knows of itself; None where it does not.

    Raises: DatasetError where what it says is malformed.
    """
    if isinstance(data, Dataset):
        if "observation_space" not in data.about or "action_space" not in data.about:
            return None
        try:
            return space_from_json(data.about["observation_space"]), space_from_json(data.about["action_space"])
        except SchemaError as error:
            raise DatasetError(
                f"{data.path} is damaged: what its manifest says of its spaces is no good: {error}"
            ) from error
    return dict_form(data.dataset.observation_space), data.dataset.action_space


def environment_of(data: Dataset | MinariEpisodes) -> tuple[Any, dict[str, Any]] | None:
    """What makes the environment that a dataset says it was recorded in, and its arguments; None where it does not."""
    if isinstance(data, Dataset):
        env = data.about.get("env")
        return None if env is None else (str(env), dict(data.about.get("env_args", {})))
    if getattr(data.dataset, "env_spec", None) is None:
        return None
    return partial(data.dataset.recover_environment, eval_env=True), {}


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
    actions = data.take(data.real_rows(), ["action"])["action"]
    wrong = (actions < space.start) | (actions >= space.start + space.n)
    if wrong.any():
        raise DatasetError(f"{data.path} has the action {actions[wrong][0]}, but the action space is {space}")


def check_bounds(data: Dataset | MinariEpisodes, space: gymnasium.Space[Any]) -> None:
    """Compare the continuous actions of a dataset with the bounds of the action space; rounding is forgiven.

    Raises: DatasetError where some are no numbers, or beyond.
    """
    if not isinstance(space, spaces.Box):
        return
    actions = data.take(data.real_rows(), ["action"])["action"].astype(np.float64)
    if not np.isfinite(actions).all():
        raise DatasetError(f"{data.path} has actions that are no numbers")
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    some = 1e-4 * np.where(np.isfinite(high - low), high - low, 1)
    if (wrong := (actions < low - some) | (actions > high + some)).any():
        raise DatasetError(
            f"{data.path} has the action {actions[wrong][0]:g}, beyond the bounds of the action space {space}: "
            "actions must be as the environment gets them, which is how `flowrl record` writes them"
        )


def _listed(names: Iterable[str]) -> str:
    return did_you_mean("", names).removeprefix("there are: ")
