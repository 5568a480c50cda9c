"""Whether a dataset fits the spaces that somebody is to learn from it in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import gymnasium
import numpy as np

from flowrl.data import Batch, Dataset
from flowrl.data.minari import MinariEpisodes
from flowrl.envs.dataset_contents import check_rows
from flowrl.envs.names import importable
from flowrl.envs.saved_spaces import space_from_json, space_to_json
from flowrl.envs.spaces import dict_form, fits, make_store
from flowrl.errors import DatasetError, SchemaError, did_you_mean
from flowrl.schema import Column, schema_of

if TYPE_CHECKING:
    from flowrl.envs import Environments

#: What a manifest says of spaces, and of the environment.
SPACES = ("observation_space", "action_space")
PLACE = ("env", "env_args", "wrappers", "env_manager", "env_manager_args")


@attrs.frozen
class Remembered:
    """What a dataset said of itself to whoever learned from it, without its rows: it need not be there any more."""

    path: str
    about: Mapping[str, Any] = attrs.field(repr=False)


#: What says of itself where it was recorded.
Source: TypeAlias = Dataset | MinariEpisodes | Remembered


def check_dataset(
    data: Dataset | MinariEpisodes,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    needs: Iterable[str] = ("obs", "action"),
) -> None:
    """Compare a dataset with the spaces that somebody is to learn from it in.

    Raises:
        DatasetError: it has nothing in it, or not the columns in `needs`, or observations or actions of another shape
            or kind; or what stands there is nothing to learn from: see `flowrl.envs.dataset_contents.check_rows`.
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
    check_rows(data, action_space, needs)


def spaces_of(data: Source) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None:
    """The spaces of observations and actions that a dataset knows of itself; None where it does not.

    Raises: DatasetError where what it says is malformed.
    """
    if not isinstance(data, MinariEpisodes):
        if any(data.about.get(name) is None for name in SPACES):
            return None
        try:
            return space_from_json(data.about[SPACES[0]]), space_from_json(data.about[SPACES[1]])
        except SchemaError as error:
            raise DatasetError(
                f"{data.path} is damaged: what its manifest says of its spaces is no good: {error}"
            ) from error
    return dict_form(data.dataset.observation_space), data.dataset.action_space


def environment_of(data: Source) -> dict[str, Any] | None:
    """The environment that a dataset says it was recorded in, by settings of `Configuration`; None where it does not.

    Datasets that an earlier version wrote say nothing of `wrappers`.
    """
    if not isinstance(data, MinariEpisodes):
        return {name: data.about[name] for name in PLACE if name in data.about} if data.about.get("env") else None
    if getattr(data.dataset, "env_spec", None) is None:
        return None
    return {"env": partial(data.dataset.recover_environment, eval_env=True)}


def origin(environments: Environments, *of: gymnasium.Space[Any]) -> dict[str, Any]:
    """What the manifest of a dataset says of where it was recorded, as JSON has it: see `spaces_of`, `environment_of`.

    Of an environment that has no name by which another process could make it, as a function in a script has none,
    `env` is null.

    Args:
        environments: Those that were acted in.
        of: The spaces of observations and actions.
    """
    there: dict[str, Any] = {"env": importable(environments.spec)}
    wrappers = [importable(each) for each in environments.wrappers]
    args = dict(environments.env_args)
    if there["env"] is None or None in wrappers or not _is_json(args):
        there["env"] = None
    else:
        there |= {"env_args": args, "wrappers": wrappers}
        if environments.kind == "vector":  # whose wrappers are others
            there |= {"env_manager": environments.kind, "env_manager_args": dict(environments.options)}
    return {**there, **dict(zip(SPACES, map(space_to_json, of)))}


def _is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value))
    except (TypeError, ValueError):
        return False


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


def _listed(names: Iterable[str]) -> str:
    return did_you_mean("", names).removeprefix("there are: ")
