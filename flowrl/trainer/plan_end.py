"""The end of a plan: evaluation, confirmation of a goal, and the test whether to stop."""

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
    """Append evaluation and stopping operators to a plan, as far as the arguments ask for them.

    Args:
        workers: Their policy is evaluated every `config.eval_every` steps of the plan's clock; None: never.
        site: Shown as the operators' origin in messages, in place of a file and line.
        save: File for the best policy, if the policy has weights.
        goal: Mean return of an evaluation that ends the plan once it is confirmed; it needs `save`.
        steps, seconds: Budgets that end the plan too.
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
        assert save is not None, "a goal is confirmed with the saved policy"
        confirm = Confirm(workers, goal=goal, path=save, within=steps or math.inf, **config.evaluation)
        plan = added(confirm, " --stop-return")
        bounds["confirmed_return"] = goal
    if steps is not None:
        bounds[config.clock] = steps
    if bounds or seconds is not None:
        plan = added(StopWhen(bounds, seconds=seconds), " --stop-...")
    return plan
