"""What the results of a plan go through last: evaluation, the confirmation of a goal, the test whether to stop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.trainer.config import Configuration

if TYPE_CHECKING:
    from flowrl.rollout import BaseWorkers


def with_end(
    plan: Plan,
    workers: BaseWorkers,
    config: Configuration,
    site: str,
    *,
    save: Path | None = None,
    goal: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
) -> Plan:
    """The plan with the operators that are asked for at its end; without any, the plan itself.

    Args:
        workers: Whose policy is evaluated, every `config.eval_every` steps of its clock; None: never.
        site: What asks for them, said in the place of a line of somebody's file.
        save: Where the best policy is kept, if it has weights.
        goal: Mean return of an evaluation that ends the plan once it is confirmed; it needs `save`.
        steps, seconds: End the plan too.
    """
    from flowrl.operators import Confirm, Evaluate, StopWhen
    from flowrl.policies.protocols import HasWeights

    def added(op: Any, option: str = "") -> Plan:
        return attrs.evolve(plan.for_each(op), site=site + option)

    if config.eval_every is not None:
        kept = save if isinstance(workers.policy, HasWeights) else None
        plan = added(Evaluate(workers, every=config.eval_every, save=kept, **config.evaluation))
    bounds: dict[str, float] = {}
    if goal is not None:
        assert save is not None, "a policy is confirmed as it was saved"
        confirm = Confirm(workers, goal=goal, path=save, within=steps or math.inf, **config.evaluation)
        plan = added(confirm, " --stop-return")
        bounds["confirmed_return"] = goal
    if steps is not None:
        bounds[config.clock] = steps
    if bounds or seconds is not None:
        plan = added(StopWhen(bounds, seconds=seconds), " --stop-...")
    return plan
