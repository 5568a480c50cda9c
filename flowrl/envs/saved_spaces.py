"""Spaces as JSON has them, so that a dataset knows its own: without pickle, bounds to the last bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flowrl.errors import SchemaError


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as plain values: `space_from_json` makes an equal one of them.

    Raises: SchemaError for a space that is no Box, Discrete, MultiDiscrete, MultiBinary or Dict of these.

    >>> space_to_json(spaces.Box(np.array([0.0, -np.inf]), 1.0, (2,), np.float64))
    {'kind': 'Box', 'dtype': 'float64', 'low': [0.0, '-inf'], 'high': [1.0, 1.0]}
    >>> space_from_json(space_to_json(spaces.Dict(at=spaces.Discrete(3, start=1), on=spaces.MultiBinary(2))))
    Dict('at': Discrete(3, start=1), 'on': MultiBinary(2))
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Box):
        low, high = _plain(space.low), _plain(space.high)
        return {"kind": "Box", "dtype": str(space.dtype), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "dtype": str(space.dtype), "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"kind": "MultiDiscrete", "dtype": str(space.dtype), "nvec": nvec, "start": start}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    raise SchemaError(
        f"{space} cannot be written as JSON: expected a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these"
    )


def space_from_json(found: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The space that `space_to_json` was given. Raises: SchemaError where it is malformed."""
    try:
        kind = found["kind"]
        if kind == "Dict":
            return spaces.Dict([(key, space_from_json(part)) for key, part in found["spaces"].items()])  # in this order
        if kind == "Box":
            dtype = np.dtype(found["dtype"])
            low, high = (np.array(_numbers(found[name]), dtype) for name in ("low", "high"))
            return spaces.Box(low, high, low.shape, dtype.type)
        if kind == "Discrete":
            return spaces.Discrete(found["n"], start=found["start"], dtype=np.dtype(found["dtype"]).type)
        if kind == "MultiDiscrete":
            return spaces.MultiDiscrete(found["nvec"], np.dtype(found["dtype"]).type, start=found["start"])
        if kind == "MultiBinary":
            return spaces.MultiBinary(found["n"])
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise SchemaError(f"a space is malformed: {error!r}") from error
    raise SchemaError(f"a space of kind {kind!r} is not known here")


def _plain(bound: np.ndarray[Any, Any]) -> Any:
    """Nested lists of numbers; JSON has no infinities, so these are text."""
    values = bound.tolist()  # floats of 64 bits hold those of fewer exactly, and JSON writes them to the last bit
    return _each(values, lambda value: str(value) if isinstance(value, float) and math.isinf(value) else value)


def _numbers(values: Any) -> Any:
    return _each(values, lambda value: float(value) if isinstance(value, str) else value)


def _each(values: Any, change: Any) -> Any:
    return [_each(value, change) for value in values] if isinstance(values, list) else change(values)
