"""Checks that a dataset fits the spaces of the policy that learns from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.data import Batch, Dataset
from flowrl.data.columns import ACTION_MASK
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.data.datasets.open import ROWS, parts_of
from flowrl.data.finite import EXPECTED, first_unusable
from flowrl.data.types import Array
from flowrl.engine.schema import ColumnSchema, schema_of
from flowrl.envs.hybrid import HybridActions
from flowrl.envs.masks import choices_of
from flowrl.envs.pictures import ATTRIBUTE, NETWORK, asks_for_nature, declaration_of, declared, picture_of
from flowrl.envs.spaces import dict_form, fits, make_store, start_of
from flowrl.envs.spec import importable
from flowrl.errors import ConfigError, DatasetError, SchemaError, did_you_mean
from flowrl.settings import NATURE

if TYPE_CHECKING:
    from flowrl.envs import Environments


#: The most numbers of a space in a file.
LARGEST = 2**26
#: The keys of a manifest for spaces and environment.
SPACES = ("observation_space", "action_space")
PLACE = ("env", "env_args", "wrappers", "env_manager", "env_manager_args")


@attrs.frozen
class RecordedEnvironment:
    """The description of a dataset without its rows, kept by a run; the dataset itself may be gone."""

    path: str
    about: Mapping[str, Any] = attrs.field(repr=False)


#: Sources that describe where they were recorded.
Source: TypeAlias = Dataset | MinariEpisodes | RecordedEnvironment


def check_dataset(
    data: Dataset | MinariEpisodes,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    needs: Iterable[str] = ("obs", "action"),
) -> None:
    """Compare a dataset with the spaces of the policy that learns from it.

    Raises:
        DatasetError: the dataset is empty, lacks a column of `needs`, or has observations or actions of another shape
            or kind; or its rows are unusable: see `flowrl.envs.dataset_spaces.check_rows`.
    """
    if not data.rows:
        raise DatasetError(f"{data.path} is empty: record some episodes first, with `flowrl record`")
    found = data.schema()
    there = {name.partition(".")[0] for name in found.columns}
    if missing := [name for name in needs if name not in there]:
        raise DatasetError(f"{data.path} has no column {missing[0]!r}, which learning needs: it has {_listed(there)}")
    of_spaces = {"obs": observation_space, "action": action_space, "next_obs": observation_space}
    for name in needs:
        if name in of_spaces:
            _check_column(data, name, of_spaces[name])
    check_rows(data, action_space, needs)


def spaces_of(data: Source) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None:
    """The observation and action space in the manifest of a dataset; None if it has none.

    Raises: DatasetError if they are malformed.
    """
    if not isinstance(data, MinariEpisodes):
        if any(data.about.get(name) is None for name in SPACES):
            return None
        try:
            return space_from_json(data.about[SPACES[0]]), space_from_json(data.about[SPACES[1]])
        except SchemaError as error:
            raise DatasetError(f"{data.path} is damaged: its manifest has malformed spaces: {error}") from error
    return dict_form(data.dataset.observation_space), data.dataset.action_space


def environment_of(data: Source) -> dict[str, Any] | None:
    """The environment in the manifest of a dataset, as settings of `Configuration`; None if it has none.

    Datasets of an earlier version do not mention `wrappers`.
    """
    if not isinstance(data, MinariEpisodes):
        return {name: data.about[name] for name in PLACE if name in data.about} if data.about.get("env") else None
    if getattr(data.dataset, "env_spec", None) is None:
        return None
    return {"env": partial(data.dataset.recover_environment, eval_env=True)}


def origin(environments: Environments, *of: gymnasium.Space[Any]) -> dict[str, Any]:
    """The manifest entries about where a dataset was recorded, as JSON: see `spaces_of`, `environment_of`.

    `env` is null if no other process can import the environment, such as a function in a script.

    Args:
        environments: The environments of the recording.
        of: The observation and action space.
    """
    there: dict[str, Any] = {"env": importable(environments.spec)}
    wrappers = [importable(each) for each in environments.wrappers]
    args = dict(environments.env_args)
    if there["env"] is None or None in wrappers or not _is_json(args):
        there["env"] = None
    else:
        there |= {"env_args": args, "wrappers": wrappers}
        if environments.kind == "vector":  # has vector wrappers
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
    there = {key: ColumnSchema(each.dtype, each.shape[axes:]) for key, each in found.columns.items()}
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


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as plain values, from which `space_from_json` makes an equal one.

    Raises: SchemaError for a space that is not a Box, Discrete, MultiDiscrete or MultiBinary, a Dict or Tuple of these,
        or `HybridActions`.

    >>> space_to_json(spaces.Box(np.array([0.0, -np.inf]), 1.0, (2,), np.float64))
    {'kind': 'Box', 'dtype': 'float64', 'low': [0.0, '-inf'], 'high': 1.0, 'shape': [2]}
    >>> space_from_json(space_to_json(spaces.Dict(at=spaces.Discrete(3, start=1), on=spaces.MultiBinary(2))))
    Dict('at': Discrete(3, start=1), 'on': MultiBinary(2))
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Box):
        bounds = {"low": _plain(space.low), "high": _plain(space.high)}
        return {"kind": "Box", "dtype": str(space.dtype), **bounds, "shape": list(space.shape), **_axes(space)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "dtype": str(space.dtype), "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"kind": "MultiDiscrete", "dtype": str(space.dtype), "nvec": nvec, "start": start}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape), **_axes(space)}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, HybridActions):
        return {"kind": "HybridActions", "space": space_to_json(space.space)}
    raise SchemaError(
        f"{space} cannot be written as JSON: expected a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple "
        "of these"
    )


def space_from_json(found: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The inverse of `space_to_json`. Raises: SchemaError if the values are malformed."""
    try:
        kind = found["kind"]
        if kind == "Dict":
            return spaces.Dict([(key, space_from_json(part)) for key, part in found["spaces"].items()])  # in order
        if kind == "Box":
            dtype = np.dtype(found["dtype"])
            low, high = (np.array(_numbers(found[name]), dtype) for name in ("low", "high"))
            shape = tuple(found.get("shape", low.shape))  # which earlier versions did not write
            if math.prod(shape) > LARGEST:
                raise ValueError(f"a space of more than {LARGEST:,} numbers")
            made = declared(
                spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type),
                found.get(ATTRIBUTE, _axes_then(shape, dtype)),
            )
            if found.get(NETWORK) == NATURE:
                setattr(made, NETWORK, NATURE)
            return made
        if kind == "Discrete":
            dtype = np.dtype(found["dtype"]).type
            kept = {} if dtype is np.int64 else {"dtype": dtype}  # gymnasium below 1.3 takes no dtype
            return spaces.Discrete(found["n"], start=found["start"], **kept)
        if kind == "MultiDiscrete":
            return spaces.MultiDiscrete(found["nvec"], np.dtype(found["dtype"]).type, start=found["start"])
        if kind == "MultiBinary":
            return declared(spaces.MultiBinary(found["n"]), found.get(ATTRIBUTE))
        if kind == "Tuple":
            return spaces.Tuple([space_from_json(part) for part in found["spaces"]])
        if kind == "HybridActions":
            return HybridActions(space_from_json(found["space"]))  # type: ignore[arg-type]
    except (
        *(KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError),
        ConfigError,  # of axes that do not fit
    ) as error:
        raise SchemaError(f"a space is malformed: {error!r}") from error
    raise SchemaError(f"a space has the unknown kind {kind!r}")


def _axes(space: gymnasium.Space[Any]) -> dict[str, str]:
    """The order of the axes of a picture, declared or guessed: what was learned by a guess keeps it."""
    picture = picture_of(space)
    axes = declaration_of(space) if picture is None else picture.axes
    network = {NETWORK: NATURE} if asks_for_nature(space) else {}
    return network if axes is None else {ATTRIBUTE: axes, **network}


def _axes_then(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """The order of the axes of a cube in files without it: the first was taken for the channels."""
    return "CHW" if len(shape) == 3 and len(set(shape)) == 1 and dtype in (np.uint8, np.bool_) else None


def _plain(bound: np.ndarray[Any, Any]) -> Any:
    """Nested lists of numbers, or the one that all are, with infinities as text, which JSON lacks."""
    same = bound.size > 0 and bool((bound == bound.flat[0]).all())
    # 64-bit floats hold narrower ones exactly, and JSON writes all their bits.
    values = bound.flat[0].item() if same else bound.tolist()
    return _each(values, lambda value: str(value) if isinstance(value, float) and math.isinf(value) else value)


def _numbers(values: Any) -> Any:
    return _each(values, lambda value: float(value) if isinstance(value, str) else value)


def _each(values: Any, change: Any) -> Any:
    return [_each(value, change) for value in values] if isinstance(values, list) else change(values)


#: Columns that identify a row in messages.
_PLACE = {"episode_id": "episode", "t": "step"}


def check_rows(
    data: Dataset | MinariEpisodes, action_space: gymnasium.Space[Any], names: Iterable[str], rows: int = ROWS
) -> None:
    """Check these columns, `rows` rows at a time; padded steps (`mask` 0) do not count.

    Raises:
        DatasetError: a number is not finite or overflows float32 (X3), or an action is not in the space, or the
            `action_mask` of its observation forbids it. The message names the row.
    """
    names = list(names)
    for numbers, part in parts_of(data, names, rows):
        for name, column in part.leaves():
            _check_usable(data, numbers, name, np.asarray(column))
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
    """Compare the continuous actions of a dataset with the bounds of the action space, up to rounding.

    Raises: DatasetError if some exceed them.
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


def _check_usable(data: Dataset | MinariEpisodes, numbers: Array, name: str, column: Array) -> None:
    if (first := first_unusable(column)) is not None:
        row = first // (column.size // len(column))
        raise DatasetError(
            f"{data.path}: its column {name!r} has {column.flat[first]} in {_row(data, numbers[row])}, {EXPECTED}: "
            "leave out such episodes, or record them again with a wrapper that makes numbers finite"
        )


def _check_valid(data: Dataset | MinariEpisodes, numbers: Array, part: Batch, places: Array) -> None:
    """Check that the masks `[B, A]` allow the actions at these indices `[B, k]`."""
    mask = part["obs"][ACTION_MASK]
    valid = (np.take_along_axis(mask, places, 1) != 0).all(1)
    for i in np.flatnonzero(~valid):
        raise DatasetError(
            f"{data.path}: {_row(data, numbers[i])} has the action {part['action'][i]}, which the action_mask of its "
            f"observation forbids, {mask[i]}: a mask belongs to the observation before the action; leave out such "
            "rows, or record them again"
        )


def _chosen(action: Array, space: Any) -> Array:
    """Discrete actions `[B, k]`, counted from 0."""
    counted: Array = (action.astype(np.int64) - start_of(space)).reshape(len(action), -1)
    return counted


def _row(data: Dataset | MinariEpisodes, number: int) -> str:
    there = [name for name in _PLACE if name in data.schema().columns]
    place = data.take([number], there)
    words = [f"{_PLACE[name]} {place[name][0]}" for name in there]
    return f"row {number}" + (f" ({', '.join(words)})" if words else "")
