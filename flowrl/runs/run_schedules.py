"""How settings fit the length of a run: schedules that no budget ends, or that end before it; a late first update."""

from __future__ import annotations

from flowrl.engine.plan import Plan
from flowrl.engine.run import resources_of
from flowrl.runs.config import Configuration
from flowrl.schedules import lines_of, open_schedules

#: Steps before the first update that somebody may not have meant.
LATE = 1_000_000


def constant_schedules(plan: Plan, config: Configuration) -> str:
    """Which schedules of a run without a budget stay constant since they would last as long as the run; "" for none."""
    names = sorted({name for resource in resources_of(plan).values() for name in open_schedules(resource)})
    if not names:
        return ""
    unit, stay = config.clock.replace("_", " "), "stays" if len(names) == 1 else "stay"
    return f"{' and '.join(names)} {stay} constant, since the run has no budget in {unit}"


def late_start(config: Configuration, budget: int | None = None) -> str:
    """Which setting lets a run act beyond its budget, or `LATE` steps without one, before it learns; "" for none."""
    waits = {name: config.get(name) for name in ("train_batch_size", "learning_starts")}
    late = [name for name, steps in waits.items() if isinstance(steps, int) and steps > (budget or LATE)]
    if config.clock != "env_steps" or not late:
        return ""
    beyond = "" if budget is None else f", beyond the budget of {budget:,} env steps"
    return f"{late[0]}={waits[late[0]]}: learning from what is collected waits for {waits[late[0]]:,} steps{beyond}"


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
