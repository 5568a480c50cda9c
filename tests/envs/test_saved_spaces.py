"""Spaces as JSON: what is read is what was written, to the last bit of every bound."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs.dataset_spaces import space_from_json, space_to_json
from flowrl.envs.hybrid import HybridActions
from flowrl.errors import SchemaError

THIRD = np.float32(1) / 3


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-THIRD, THIRD, (2, 3), np.float32),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([np.pi, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(-1.0, 1.0, (), np.float32),
        spaces.Box(-(2**40), 2**40, (1,), np.int64),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4], start=[1, 0]),
        spaces.MultiDiscrete([[3, 4], [2, 2]]),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 3)),
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.MultiBinary(2))]),
        HybridActions(spaces.Tuple([spaces.Discrete(2), spaces.Dict(at=spaces.Box(0, 1, (2,)))])),
        spaces.Dict(goal=spaces.Dict(at=spaces.Box(0, 1, (2,))), action_mask=spaces.MultiBinary(3)),
    ],
    ids=str,
)
def test_a_space_survives(space: Any) -> None:
    read = space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert read == space
    assert (read.dtype, read.shape) == (space.dtype, space.shape)
    if isinstance(space, spaces.Dict):
        assert list(read) == list(space), "whoever joins the parts does so in their order"
    if isinstance(space, spaces.Box):
        assert (read.low.tobytes(), read.high.tobytes()) == (space.low.tobytes(), space.high.tobytes())


def test_others_are_refused_by_name() -> None:
    with pytest.raises(SchemaError, match=r"Text\(.*cannot be written as JSON"):
        space_to_json(spaces.Dict(word=spaces.Text(3)))
    with pytest.raises(SchemaError, match="has the unknown kind 'Graph'"):
        space_from_json({"kind": "Graph"})
    for broken in ({}, {"kind": "Box", "dtype": "float32"}, {"kind": "Discrete", "n": "x", "start": 0, "dtype": "int"}):
        with pytest.raises(SchemaError, match="malformed"):
            space_from_json(broken)
