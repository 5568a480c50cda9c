"""Kinds of numbers that options of the command take."""

from __future__ import annotations

import math
from typing import Any

import click


class Count(click.ParamType[int]):
    """A positive whole number; 5e4 and 50_000 are ways to write one."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
            if number == int(number) and number >= 1:
                return int(number)
        except (ValueError, OverflowError):
            pass
        self.fail(f"{value!r} is not a whole number of at least 1.", param, ctx)


class Number(click.ParamType[float]):
    """A finite number above a bound."""

    name = "number"

    def __init__(self, above: float = -math.inf) -> None:
        self.above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            if self.above < float(value) < math.inf:
                return float(value)
        except ValueError:
            pass
        self.fail(
            f"{value!r} is not a finite number" + (f" above {self.above:g}." if self.above == 0 else "."), param, ctx
        )
