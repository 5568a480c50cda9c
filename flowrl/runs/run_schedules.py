"""Schedules that last as long as the run: those that no budget ends, and those that end before it."""

from __future__ import annotations

from flowrl.engine.plan import Plan
from flowrl.engine.run import resources_of
from flowrl.runs.config import Configuration
from flowrl.schedules import lines_of, open_schedules


def constant_schedules(plan: Plan, config: Configuration) -> str:
    """Which schedules of a run without a budget stay constant since they would last as long as the run; "" for none."""
    names = sorted({name for resource in resources_of(plan).values() for name in open_schedules(resource)})
    if not names:
        return ""
    unit, stay = config.clock.replace("_", " "), "stays" if len(names) == 1 else "stay"
    return f"{' and '.join(names)} {stay} constant, since the run has no budget in {unit}"


def spent_rate(plan: Plan, config: Configuration, budget: int | None) -> tuple[str, str] | None:
    """Why a run that goes on to `budget` learns nothing at its end, and the setting that changes this; None if it does.

    In words; the setting as in "schedule_steps=200000".
    """
    if budget is None or isinstance(config.get("learning_rate"), str | list):  # whose length is no setting
        return None
    rates = [lines_of(resource).get("learning_rate") for resource in resources_of(plan).values()]
    ends = {rate.steps for rate in rates if rate is not None and rate.end == 0}
    for name, steps in config.spans.items():
        if steps is not None and steps in ends and steps < budget:
            place = f"after {steps:,} {config.clock.replace('_', ' ')}, so from there to {budget:,}"
            words = f"the learning rate ends at 0 {place} the policy learns nothing; to learn on, give"
            return words, f"{name}={budget}"
    return None
