"""What is wrong with one step's answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from flowrl.cli.doctor.findings import Level
from flowrl.cli.doctor.patient import Step
from flowrl.envs.spaces import RowShape, checked_row, fits
from flowrl.errors import SchemaError

Flaw = tuple[str, Level, str]


def flaws(step: Step, space: gymnasium.Space[Any], shape: RowShape) -> Iterator[Flaw]:
    """About what, how bad, and in words; each of them is told once."""
    try:
        row = checked_row(step.obs, shape)
    except (SchemaError, ValueError) as error:
        yield "observations", "problem", str(error)
    else:
        yield from _observation(row, space, "observation")
    if step.t:
        yield from _reward(step.reward)
        for name in ("terminated", "truncated"):
            flag = getattr(step, name)
            if not isinstance(flag, bool | np.bool_):
                yield f"flags: {name}", "problem", f"{name} is {flag!r} ({type(flag).__name__}), expected a bool"
    if not isinstance(step.info, dict):
        yield "info", "problem", f"info is a {type(step.info).__name__}, expected a dict"


def _observation(row: Any, space: Any, what: str) -> Iterator[Flaw]:
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _observation(row[key], part, f"{what}[{key!r}]")
        return
    given = np.asarray(row)
    if given.dtype != space.dtype:
        converts = fits(given.dtype, space.dtype)
        level: Level = "note" if converts else "problem"
        then = ": it is converted at every step" if converts else ""
        yield f"dtypes: {what}", level, f"the {what} is {given.dtype}, but its space says {space.dtype}{then}"
        if not converts:
            return
    if given.dtype.kind == "f" and np.isnan(given).any():
        yield f"NaN: {what}", "problem", f"the {what} is NaN"
    elif not space.contains(given.astype(space.dtype)):
        yield f"bounds: {what}", "problem", f"the {what} is {_short(given)}, which is not in its space {space}"


def _reward(reward: Any) -> Iterator[Flaw]:
    if np.ndim(reward) or not isinstance(reward, int | float | np.number | np.bool_ | np.ndarray):
        text = f"the reward is a {type(reward).__name__} of shape {np.shape(reward)}, expected a number"
        yield "rewards", "problem", text
    elif np.isnan(reward):
        yield "rewards: NaN", "problem", "the reward is NaN"
    elif np.isinf(reward):
        yield "rewards: infinite", "problem", f"the reward is {reward}: no mean or estimate survives that"


def _short(values: Any) -> str:
    return np.array2string(values, threshold=8, precision=4).replace("\n", " ")
