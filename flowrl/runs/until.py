"""When `Trainer.train` ends: lower bounds of entries of results, or a predicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from flowrl.errors import ConfigError, did_you_mean

Result = dict[str, Any]
#: When to end training: lower bounds for entries of a result, or a predicate of a result.
Until = Mapping[str, float] | Callable[[Result], bool]

#: Counters that appear in results once learning has begun.
LEARNING = frozenset({"sampled", "trained", "updates"})
#: Entries of which a run without any would do nothing.
COUNTS = LEARNING | {"env_steps", "episodes", "seconds"}


def lower_bounds(until: Until | None, **counts: float | None) -> dict[str, float]:
    """The bounds of `until`, and of counts that are not None; a predicate has none.

    Raises: ConfigError for what is no bound.
    """
    bounds = {} if until is None or callable(until) else _checked(until)
    given = {name: bound for name, bound in counts.items() if bound is not None}
    return bounds | (_checked(given) if given else {})


def _checked(until: Any) -> dict[str, float]:
    if not isinstance(until, Mapping) or not until:
        raise ConfigError(f"until={until!r}: expected lower bounds like {{'env_steps': 50_000}}, or a function")
    for name, bound in until.items():
        least, expected = (0, "a number above 0") if name in COUNTS else (-math.inf, "a number")
        number = isinstance(bound, int | float | np.integer | np.floating) and not isinstance(bound, bool)
        if not number or not least < bound < math.inf:
            raise ConfigError(f"until: the bound of {name!r} is {bound!r}, expected {expected}")
    return dict(until)


def reaches(bounds: Mapping[str, float], goal: Mapping[str, float]) -> Callable[[Result], bool]:
    """Whether a result reaches one of the bounds, or all of the goal."""
    from flowrl.operators import StopWhen

    stop = StopWhen(dict(bounds), goal=dict(goal))

    def reached(result: Result) -> bool:
        stop(result)
        return stop.done

    return reached


def evaluation_in(result: Mapping[str, Any]) -> Result:
    """The entries of a result that come from an evaluation, and from the confirmation of a goal, without their times.

    >>> evaluation_in({"env_steps": 100, "eval_return": 5.0, "eval_return/left": 2.0, "best_eval_return": 5.0})
    {'eval_return': 5.0, 'eval_return/left': 2.0, 'best_eval_return': 5.0}
    """
    from flowrl.operators import Confirm, Evaluate
    from flowrl.operators.metrics import CLOCK_KEYS

    names = {*Evaluate.provides, *Confirm.provides} - {*CLOCK_KEYS}
    return {name: value for name, value in result.items() if name.partition("/")[0] in names}


def check_names(bounds: Mapping[str, float], seen: Collection[str], evaluated: Collection[str], trainer: str) -> None:
    """Reject bounds that can never be reached, at the first result and again once learning has begun.

    Args:
        seen: Entries of all results so far.
        evaluated: Entries that evaluation in the plan adds to some results.
        trainer: The name of the class, for the error.

    Raises: ConfigError for a name that no result has.
    """
    from flowrl.operators import Evaluate

    coming = frozenset() if "updates" in seen else LEARNING
    for name in {*bounds} - {*seen} - coming - {*evaluated}:
        if name in Evaluate.provides:
            raise ConfigError(
                f"until: no result has {name!r}, since the plan does not evaluate: set eval_every=N, the env steps "
                f"between evaluations, as in {trainer}(..., eval_every=5_000)"
            )
        raise ConfigError(
            f"until: no result has {name!r}; {did_you_mean(name, seen)}. For an entry that appears later, pass a "
            f"function: until=lambda result: result.get({name!r}, 0) >= {bounds[name]:g}"
        )
