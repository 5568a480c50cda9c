"""Learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from flowrl.context import Context
from flowrl.data import Batch
from flowrl.errors import PlanError
from flowrl.operator import context, operator, state

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet


@operator
class TrainOneStep:
    """One optimiser step of the workers' policy on each batch `[B, ...]`; emits the learner's scalars, a dict.

    Counts: trained (rows through an optimiser step), updates (optimiser steps).
    """

    workers: WorkerSet
    context: Context = context()

    def __call__(self, batch: Batch) -> dict[str, float]:
        learn = self.workers.policy.learn_mode
        scalars = learn.update(learn.prepare(batch))
        self.context.count("trained", batch.rows)
        self.context.count("updates")
        return scalars


def _has_target(op: Any, attribute: Any, workers: WorkerSet) -> None:
    if not hasattr(workers.policy, "update_target"):
        raise PlanError(f"UpdateTargetNetwork: {type(workers.policy).__name__} has no target network")


@operator
class UpdateTargetNetwork:
    """Moves the target network towards the online one every so often, and passes items on (Q2).

    Args:
        every: How often, counted in `unit`.
        unit: "updates" of the policy or "env_steps" of the run.
        tau: target ← tau · online + (1 − tau) · target; 1 copies.

    State: the count at the last move.
    """

    workers: WorkerSet = attrs.field(validator=_has_target)
    every: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    unit: Literal["updates", "env_steps"] = attrs.field(
        default="updates", validator=attrs.validators.in_(("updates", "env_steps"))
    )
    tau: float = 1.0
    last: int = state(default=0)
    context: Context = context()

    def __call__(self, item: Any) -> Any:
        policy: Any = self.workers.policy
        now = policy.version if self.unit == "updates" else self.context.counters.get("env_steps", 0)
        if now - self.last >= self.every:
            policy.update_target(self.tau)
            self.last = now
        return item
