"""Spaces as arrays: an observation is an array, or a nested Batch of arrays if its space is a Dict or Tuple.

A Tuple counts as a Dict with the keys "0", "1" and so on.

A *store* holds the observations of N environments: an array `[N, ...]` or a nested Batch of arrays. Both support
`store[env_id] = row` and `store[mask] = rows`, so little code outside this file distinguishes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from flowrl.data.batch import Batch
from flowrl.data.columns import check_names
from flowrl.data.finite import EXPECTED, first_unusable
from flowrl.envs.hybrid import HybridActions
from flowrl.errors import ConfigError, SchemaError
from flowrl.saved import shown

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, HybridActions)

#: The way out for environments with several rewards.
ONE_REWARD = "gymnasium.wrappers.TransformReward makes one number of several"

Observations: TypeAlias = Any
"""An array `[N, ...]`; a nested `Batch` of such arrays where the observation space is a Dict."""

RowShape: TypeAlias = Any
"""The shape of one observation, or a nested dict of shapes."""


def start_of(space: Any) -> Any:
    """The number of the first choice, of each where there are several; 0 where a space, or an old version, has none."""
    return getattr(space, "start", 0)


def array_form(space: gymnasium.Space[Any], role: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one observation or action.

    Raises: ConfigError if the members of the space are not arrays of one shape; names the remedy.
    """
    if isinstance(space, ARRAY_SPACES) and space.shape is not None and space.dtype is not None:
        if role in ("action", "observation") and not math.prod(space.shape):
            raise ConfigError(f"the {role} space {space} holds no number: it needs at least one, if only a constant")
        # By its name: that of a copied space is equal to numpy's own dtype, but another object, which is slow to tell.
        return space.shape, np.dtype(np.dtype(space.dtype).str)
    if not isinstance(space, gymnasium.Space):
        raise ConfigError(f"the {role} space is {space!r}, expected a space: set {role}_space in the environment")
    raise ConfigError(f"the {role} space {space} is not one array: {_way_out(space, role)}")


def _way_out(space: gymnasium.Space[Any], role: str) -> str:
    if role == "action":
        served = ", ".join(kind.__name__ for kind in ARRAY_SPACES[:-1])
        return f"expected one of {served}, or a Tuple or Dict of these; gymnasium.wrappers.TransformAction makes it one"
    wrapper = "FlattenObservation" if _flattens(space) else "TransformObservation"
    return f"make it a Box or a Dict with gymnasium.wrappers.{wrapper}"


def _flattens(space: gymnasium.Space[Any]) -> bool:
    try:
        return space.is_np_flattenable
    except NotImplementedError:  # a library's own kind of space need not say
        return False


def check_observations(space: gymnasium.Space[Any]) -> None:
    """Refuse observations that are not arrays, nor Dicts or Tuples of them.

    Raises: ConfigError that names the member at fault, and the wrappers that help.

    >>> check_observations(spaces.Dict(image=spaces.Box(0, 1, (2,)), graph=spaces.Graph(spaces.Discrete(2), None)))
    Traceback (most recent call last):
    flowrl.errors.ConfigError: the observation['graph'] space Graph is not one array: leave it out with the wrapper \
FilterObservation(['image']), or make it a Box or a Dict with gymnasium.wrappers.TransformObservation
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        array_form(space, "observation")
        return
    at_fault = {key: found for key, part in _members(space) if (found := _no_array(part, f"[{str(key)!r}]"))}
    if not at_fault:
        return
    path, part = next(iter(at_fault.values()))
    kept = [key for key, _ in _members(space) if key not in at_fault]
    leave = f"leave it out with the wrapper FilterObservation({kept}), or " if kept else ""
    kind = type(part).__name__
    raise ConfigError(f"the observation{path} space {kind} is not one array: {leave}{_way_out(space, 'observation')}")


def _no_array(space: gymnasium.Space[Any], path: str) -> tuple[str, gymnasium.Space[Any]] | None:
    """The path and the space of the first part that is not an array; None if all are."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return next(filter(None, (_no_array(part, f"{path}[{str(key)!r}]") for key, part in _members(space))), None)
    return None if isinstance(space, ARRAY_SPACES) else (path, space)


def _members(space: Any) -> list[tuple[Any, gymnasium.Space[Any]]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def dict_form(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space with a Dict in place of every Tuple.

    >>> dict_form(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]))
    Dict('0': Discrete(2), '1': Discrete(3))
    """
    if isinstance(space, spaces.Tuple):
        return spaces.Dict({str(at): dict_form(part) for at, part in enumerate(space.spaces)})
    if isinstance(space, spaces.Dict):
        parts = {key: dict_form(part) for key, part in space.spaces.items()}
        return space if all(parts[key] is space.spaces[key] for key in parts) else spaces.Dict(parts)
    return space


def make_store(
    space: gymnasium.Space[Any], num_envs: int, role: str = "observation", zeros: Callable[..., Any] = np.zeros
) -> Observations:
    """Zeros `[N, ...]` for the observations of N environments, in the dtypes of the space; `zeros` allocates them.

    Raises: ConfigError for a space that is neither an array nor a nested Dict of arrays.
    """
    if not isinstance(space, spaces.Dict):
        shape, dtype = array_form(space, role)
        return zeros((num_envs, *shape), dtype)
    if not space.spaces:
        raise ConfigError(f"the {role} space {space} is empty: a Dict of observations needs at least one entry")
    if unnamed := [key for key in space.spaces if not isinstance(key, str)]:
        raise ConfigError(f"the {role} space has the key {unnamed[0]!r}: a column is named by a string")
    return Batch({key: make_store(part, num_envs, f"{role}[{key!r}]", zeros) for key, part in space.spaces.items()})


def first_members(space: gymnasium.Space[Any], count: int) -> Any:
    """Observations `[count, ...]` that are in their space (R7): zeros, and the first of choices, wherever they start.

    >>> first_members(spaces.Dict(at=spaces.Discrete(3, start=4)), 2)
    {'at': array([4, 4])}
    """
    if isinstance(space, spaces.Dict):
        return {key: first_members(part, count) for key, part in space.spaces.items()}
    zeros: Any = create_empty_array(space, count, np.zeros)
    choices = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    return (zeros + start_of(space)).astype(zeros.dtype) if choices else zeros


def row_shape(store: Observations) -> RowShape:
    """The shape of one row of a store."""
    if isinstance(store, Batch):
        return {name: row_shape(column) for name, column in store.items()}
    return store.shape[1:]


def are_alike(one: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> bool:
    """Whether two spaces have the same kind, keys, shapes, dtypes and numbers of actions."""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(are_alike(one[key], other[key]) for key in one.spaces)
    if isinstance(one, spaces.Discrete | spaces.MultiDiscrete):
        return bool(one == other)
    return type(one) is type(other) and (one.shape, one.dtype) == (other.shape, other.dtype)


def check_alike(ours: Sequence[Any], theirs: Sequence[Any], env_id: int, first_id: int = 0) -> None:
    """Raises: ConfigError if the spaces of an environment differ from those of the first."""
    for role, first, other in zip(("observation", "action"), ours, theirs):
        if not are_alike(dict_form(first), dict_form(other)):
            raise ConfigError(f"environment {env_id} has the {role} space {other}, environment {first_id} has {first}")


def check_copies(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    """Raises: ConfigError if environments differ in their spaces, or one object is there twice."""
    if len({id(env) for env in envs}) < len(envs):
        raise ConfigError("one environment object was passed twice: make a new one for each")
    first, *others = ((env.observation_space, env.action_space) for env in envs)
    for env_id, other in enumerate(others, 1):
        check_alike(first, other, env_id)


def checked_row(obs: object, shape: RowShape, what: str = "observation") -> Any:
    """One observation in the form of a store. Raises: SchemaError, naming the key, if its shape is wrong."""
    if type(shape) is tuple:
        row = np.asarray(obs)
        if row.shape != shape:
            raise SchemaError(f"the {what} has shape {row.shape}, but its space says {shape}")
        return row
    entries = _entries(obs, shape, what)
    ndarray, rows = np.ndarray, {}
    for key, part in shape.items():
        value = entries[key]
        if type(value) is not ndarray or value.shape != part:
            value = checked_row(value, part, f"{what}[{key!r}]")
        rows[key] = value
    return rows


def no_reward(reward: Any) -> SchemaError:
    """The error for a reward that is not one number, or an integer beyond floats."""
    if isinstance(reward, int):
        return SchemaError(f"the reward is {shown(reward)}, {EXPECTED}")
    return SchemaError(f"the reward is {reward!r}, expected a number; {ONE_REWARD}")


def fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether a dtype may be stored as another one: the same kind of number, or a narrower kind."""
    return given == wanted or np.can_cast(given, wanted, "same_kind")


def check_dtypes(row: Any, store: Observations, what: str = "observation") -> None:
    """Raises: SchemaError if a checked row has another kind of number than its store, or integers beyond it."""
    if isinstance(store, Batch):
        for key, column in store.items():
            check_dtypes(row[key], column, f"{what}[{key!r}]")
    elif not fits(row.dtype, store.dtype):
        raise SchemaError(f"the {what} is {row.dtype}, but its space says {store.dtype}")
    else:
        _check_range(row, store.dtype, what)


def _check_range(given: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    if given.dtype.kind in "iu" and dtype.kind in "iu" and not np.can_cast(given.dtype, dtype):
        held = np.iinfo(dtype)  # numpy would wrap what is beyond
        if beyond := [each for each in (given.min(), given.max()) if not held.min <= each <= held.max]:
            raise SchemaError(f"{beyond[0]} in the {what}: {dtype}, as its space says, holds {held.min} to {held.max}")


def find_unusable(store: Observations, what: str = "observation") -> tuple[int, str] | None:
    """The row of a store `[N, ...]` with a number that nothing can be learned from, and which it is (X2)."""
    if isinstance(store, Batch):
        for key, part in store.items():
            usable = type(part) is not Batch and first_unusable(part) is None  # without writing its name
            if not usable and (found := find_unusable(part, f"{what}[{key!r}]")):
                return found
        return None
    first = first_unusable(store)
    if first is None:
        return None
    flat = store.reshape(-1)
    return first // (flat.size // len(store)), f"the {what} is {flat[first]}, {EXPECTED}"


def write_row(obs: object, store: Observations, at: int, shape: RowShape) -> None:
    """Write one observation into a store, whose rows have this shape, in the store's dtype.

    Raises: SchemaError, naming the key, if its shape or kind of number is wrong.
    """
    if type(store) is Batch:
        if _write_arrays(obs, store, at, shape):
            return
    elif type(obs) is np.ndarray and obs.dtype is store.dtype and obs.shape == shape:
        store[at] = obs
        return
    row = checked_row(obs, shape)
    check_dtypes(row, store)
    with np.errstate(over="ignore"):  # too large for the store's dtype becomes infinite, which `find_unusable` finds
        store[at] = row


def _write_arrays(obs: object, store: Batch, at: int, shape: RowShape) -> bool:
    """Write dictionaries of arrays that fit, at a fraction of the cost; returns whether they did."""
    if type(obs) is not dict or len(obs) != len(shape):
        return False
    for key, column in store.items():
        part = obs.get(key)
        if type(column) is Batch:
            if not _write_arrays(part, column, at, shape[key]):
                return False
        elif type(part) is np.ndarray and part.dtype is column.dtype and part.shape == shape[key]:
            column[at] = part
        else:
            return False
    return True


def write_rows(what: str, values: Any, into: Observations, only: npt.NDArray[np.bool_] | None = None) -> None:
    """Copies the observations of all environments, or of those in a mask `[N]`, into a store.

    Raises: SchemaError, naming the key, if a shape or kind of number is wrong.
    """
    if type(into) is not np.ndarray:
        entries = _entries(values, into, what)
        for key, column in into.items():
            write_rows(f"{what}[{key!r}]", entries[key], column, only)
        return
    given = np.asarray(values)
    if given.shape != into.shape:
        raise SchemaError(f"{what} have shape {given.shape}, expected {into.shape}: environments first")
    if not fits(given.dtype, into.dtype):
        raise SchemaError(f"{what} are {given.dtype}, expected {into.dtype}")
    if given.dtype != into.dtype:
        _check_range(given, into.dtype, what)
        with np.errstate(over="ignore"):  # as in `write_row`
            given = given.astype(into.dtype)
    if only is None:
        into[:] = given
    else:
        into[only] = given[only]


def row_of(values: Any, env_id: int) -> Any:
    """The observation of one environment, from an array of any kind or a dictionary of arrays."""
    if isinstance(values, Mapping):
        return {key: row_of(column, env_id) for key, column in values.items()}
    if isinstance(values, tuple):
        return tuple(row_of(column, env_id) for column in values)
    return values[env_id]


def shared_memory(row: Any, other: Any, what: str = "observation") -> str:
    """The entry of one observation that shares memory with the other; "" if there is none.

    The other observation may lack entries that a wrapper added or split.
    """
    row, other = keyed(row), keyed(other)
    if not isinstance(row, Mapping):
        return what if np.may_share_memory(np.asarray(row), np.asarray(other)) else ""
    if row is other:
        return what
    others = other if isinstance(other, Mapping) else dict.fromkeys(row, other)
    parts = (shared_memory(part, others.get(key, ()), f"{what}[{key!r}]") for key, part in row.items())
    return next(filter(None, parts), "")


def same_form(one: Observations, other: Observations) -> bool:
    """Whether two stores have the same keys, shapes and dtypes."""
    if isinstance(one, Batch) and isinstance(other, Batch):
        return one.keys() == other.keys() and all(same_form(one[name], other[name]) for name in one)
    if isinstance(one, Batch) or isinstance(other, Batch):
        return False
    return bool(one.shape == other.shape and one.dtype == other.dtype)


def plain_copy(store: Observations) -> Any:
    """A copy of a store as plain data: an array, or nested dicts of arrays."""
    return store.map(np.copy).to_dict() if isinstance(store, Batch) else store.copy()


def keyed(value: Any) -> Any:
    """A tuple, or a list in its place, as a dictionary; anything else unchanged."""
    return {str(at): part for at, part in enumerate(value)} if isinstance(value, tuple | list) else value


def _entries(value: Any, expected: Mapping[str, Any] | Batch, what: str) -> Mapping[str, Any]:
    value = keyed(value)
    if type(value) is not dict and not isinstance(value, Mapping):
        keys = ", ".join(map(repr, expected))
        raise SchemaError(f"{what}: got {type(value).__name__}, but its space says a dictionary of {keys}")
    if value.keys() != expected.keys():
        check_names(dict(expected.items()), value, what)
    return value
