"""Schedules: settings whose value changes with a count, such as the env steps of the run."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, overload

import attrs

from flowrl.errors import ConfigError, did_you_mean

#: A number, or a function of a count: of env steps unless stated otherwise (Q7).
Schedule = float | Callable[[int], float]

#: A schedule in a configuration: a number, a text, or points (count, value). See `schedule`.
NumberOrSchedule = float | str | list[list[float]]


def value_at(schedule: Schedule, count: int) -> float:
    """The value of a schedule at a count."""
    return schedule(count) if callable(schedule) else schedule


@attrs.frozen
class linear_schedule:
    """Linear from `start` to `end` over `steps`, then constant; constant throughout if `end` is None.

    With `steps` None it lasts as long as the run: it is constant until `end_schedules` says how long that is.

    >>> epsilon = linear_schedule(1.0, 0.1, 100)
    >>> [round(epsilon(step), 2) for step in (0, 50, 100, 1000)]
    [1.0, 0.55, 0.1, 0.1]
    """

    start: float
    end: float | None
    steps: int | None

    @property
    def is_open(self) -> bool:
        """Whether it waits to hear how long the run is."""
        return self.steps is None and self.end not in (None, self.start)

    def __call__(self, count: int) -> float:
        if self.end is None or self.steps is None:
            return self.start
        return self.start + (self.end - self.start) * _share(count, self.steps)


@attrs.frozen
class exponential_schedule:
    """Exponential from `start` to `end` over `steps`, then constant.

    >>> [round(exponential_schedule(1.0, 0.01, 100)(step), 4) for step in (0, 50, 100, 200)]
    [1.0, 0.1, 0.01, 0.01]
    """

    start: float = attrs.field(validator=attrs.validators.gt(0))
    end: float = attrs.field(validator=attrs.validators.gt(0))
    steps: int

    def __call__(self, count: int) -> float:
        return float(self.start * (self.end / self.start) ** _share(count, self.steps))


@attrs.frozen
class cosine_schedule:
    """From `start` to `end` over `steps` along half a cosine, then constant.

    Source: Loshchilov & Hutter 2017, "SGDR", eq. 5, without restarts.

    >>> [round(cosine_schedule(1.0, 0.0, 100)(step), 4) for step in (0, 25, 50, 100, 200)]
    [1.0, 0.8536, 0.5, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __call__(self, count: int) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * _share(count, self.steps))) / 2


@attrs.frozen(init=False)
class piecewise_schedule:
    """Linear between points (count, value), sorted by count; constant before the first and after the last.

    >>> rate = piecewise_schedule((0, 1.0), (100, 0.5), (100, 0.1), (200, 0.0))
    >>> [round(rate(step), 3) for step in (0, 50, 99, 100, 150, 500)]
    [1.0, 0.75, 0.505, 0.1, 0.05, 0.0]
    """

    points: tuple[tuple[float, float], ...]

    def __init__(self, *points: tuple[float, float]) -> None:
        if not points or any(len(point) != 2 for point in points) or list(points) != sorted(points, key=lambda p: p[0]):
            raise ValueError(f"expected points (count, value) sorted by count, got {list(points)}")
        self.__attrs_init__(tuple((float(at), float(value)) for at, value in points))

    def __call__(self, count: int) -> float:
        before = [point for point in self.points if point[0] <= count]
        if not before:
            return self.points[0][1]
        (at, value), after = before[-1], self.points[len(before) :]
        if not after:
            return value
        return value + (after[0][1] - value) * (count - at) / (after[0][0] - at)


def _share(count: int, steps: int) -> float:
    return min(1.0, count / max(1, steps))


#: Schedules by their name in a text.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": lambda value: linear_schedule(float(value), None, 1),
    "linear": linear_schedule,
    "exponential": exponential_schedule,
    "cosine": cosine_schedule,
    "piecewise": piecewise_schedule,
}


@overload
def schedule(setting: NumberOrSchedule | Schedule, end: float | None = None, steps: int | None = 1) -> Schedule: ...
@overload
def schedule(setting: None) -> None: ...
def schedule(
    setting: NumberOrSchedule | Schedule | None, end: float | None = None, steps: int | None = 1
) -> Schedule | None:
    """The schedule that a configuration describes.

    A number is constant, or goes linearly to `end` over `steps`; None: over the run. A text calls one of `SCHEDULES`,
    as in "linear(1e-3, 0, 100_000)"; a list holds the points of a `piecewise_schedule`. A function is a schedule
    already, and None stays None.

    Raises:
        ConfigError: the text is no schedule, or the schedule rejects its numbers.

    >>> schedule(1.0), schedule(1.0, 0.0, 10), schedule("cosine(1e-3, 0, 5_000)")
    (1.0, linear_schedule(start=1.0, end=0.0, steps=10), cosine_schedule(start=0.001, end=0, steps=5000))
    >>> schedule([[0, 1e-3], [100, 1e-4]])(50)
    0.00055
    """
    if isinstance(setting, str):
        return _parsed(setting)
    if isinstance(setting, list | tuple):
        return _made(f"{setting}", piecewise_schedule, *setting)
    return setting if setting is None or end is None or callable(setting) else linear_schedule(setting, end, steps)


def lines_of(holder: object) -> dict[str, linear_schedule]:
    """The attributes of a policy or a buffer that are linear schedules."""
    try:
        fields = vars(holder)
    except TypeError:  # an object with slots; no policy and no buffer is one
        return {}
    return {name: each for name, each in fields.items() if isinstance(each, linear_schedule)}


def open_schedules(holder: object) -> dict[str, linear_schedule]:
    """The attributes of a policy or a buffer that are schedules as long as the run, whose length they do not know."""
    return {name: each for name, each in lines_of(holder).items() if each.is_open}


def end_schedules(holder: object, steps: int) -> None:
    """Let the `open_schedules` of a policy or a buffer reach their end after so many steps.

    >>> from types import SimpleNamespace
    >>> policy = SimpleNamespace(rate=linear_schedule(1.0, 0.0, None), clip=linear_schedule(1.0, 0.0, 10))
    >>> policy.rate(50), list(open_schedules(policy))
    (1.0, ['rate'])
    >>> end_schedules(policy, 100)
    >>> policy.rate(50), policy.clip(50), list(open_schedules(policy))
    (0.5, 0.0, [])
    """
    for name, each in open_schedules(holder).items():
        setattr(holder, name, attrs.evolve(each, steps=steps))


def _parsed(text: str) -> Schedule:
    """The schedule that a text calls; the text is parsed, never evaluated."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ConfigError(f"{text!r} is no schedule: expected a number, or a text such as 'linear(1e-3, 0, 100_000)'")
    if call.func.id not in SCHEDULES:
        raise ConfigError(f"there is no schedule {call.func.id!r}; {did_you_mean(call.func.id, SCHEDULES)}")
    try:
        given = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError as error:
        raise ConfigError(f"the schedule {text!r}: its arguments are numbers") from error
    return _made(text, SCHEDULES[call.func.id], *given, **named)


def not_finite(value: Any) -> list[float]:
    """The numbers in a value, nested in lists or not, that are not finite.

    >>> not_finite([[0, 1.0], [10, float("inf")]]), not_finite("inf")
    ([inf], [])
    """
    if isinstance(value, list | tuple):
        return [number for each in value for number in not_finite(each)]
    return [value] if isinstance(value, float) and not math.isfinite(value) else []


def _made(text: str, make: Callable[..., Schedule], *given: Any, **named: Any) -> Schedule:
    if wrong := not_finite([*given, *named.values()]):
        raise ConfigError(f"the schedule {text!r}: expected finite numbers, got {wrong[0]}")
    try:
        made = make(*given, **named)
        float(value_at(made, 0))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the schedule {text!r}: {error.args[0] if error.args else error}") from error
    return made
