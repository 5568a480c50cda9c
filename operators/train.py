"""Learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from flowrl.context import Context
from flowrl.data import Batch
from flowrl.errors import PlanError
from flowrl.operator import context, operator, state
from flowrl.schema import Schema

if TYPE_CHECKING:
    from flowrl.policies.policy import Gradients
    from flowrl.rollout import WorkerSet


def _has_policy(op: Any, attribute: Any, workers: WorkerSet) -> None:
    if not hasattr(workers, "policy"):
        raise PlanError(f"{type(op).__name__} needs the workers whose policy learns, got {workers!r}")


Required = tuple[str, ...] | Mapping[str, str]


def _learned_from(workers: WorkerSet) -> Required:
    """The words that the policy's loss needs, if it says so."""
    required: Required = getattr(getattr(workers.policy, "learn_mode", None), "requires", ())
    return required


def _has_target(op: Any, attribute: Any, workers: WorkerSet) -> None:
    _has_policy(op, attribute, workers)
    if not hasattr(workers.policy, "update_target"):
        raise PlanError(f"UpdateTargetNetwork: {type(workers.policy).__name__} has no target network")


@operator
class TrainOneStep:
    """One optimiser step of the workers' policy on each batch `[B, ...]`; emits the learner's scalars, a dict.

    Counts: trained (rows through an optimiser step), updates (optimiser steps).
    """

    provides = ("scalars",)
    workers: WorkerSet = attrs.field(validator=_has_policy)
    context: Context = context()

    @property
    def requires(self) -> Required:
        return _learned_from(self.workers)

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, batch: Batch) -> dict[str, float]:
        learn = self.workers.policy.learn_mode
        scalars = learn.update(learn.prepare(batch))
        self.context.count("trained", batch.rows)
        self.context.count("updates")
        return scalars


@operator
class ComputeGradients:
    """Gradients of the loss on each batch `[B, ...]`, without a step of the optimiser: a `Gradients` item.

    The rows are prepared as `TrainOneStep` does.
    """

    provides = ("gradients",)
    workers: WorkerSet = attrs.field(validator=_has_policy)

    @property
    def requires(self) -> Required:
        return _learned_from(self.workers)

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, batch: Batch) -> Gradients:
        learn = self.workers.policy.learn_mode
        return learn.gradients(learn.prepare(batch))


@operator
class AverageGradients:
    """The mean of `count` gradients, each weighted by its rows (F13): that of one batch of all their rows.

    For `combine`. Emits: one item for `count`, and what is left at the end. State: the gradients waiting.
    """

    requires = ("gradients",)
    count: int = attrs.field(validator=attrs.validators.ge(1))
    waiting: list[Gradients] = state(factory=list)

    def __call__(self, gradients: Gradients) -> list[Gradients]:
        self.waiting.append(gradients)
        return self.finish() if len(self.waiting) == self.count else []

    def finish(self) -> list[Gradients]:
        parts, self.waiting = self.waiting, []
        if not parts:
            return []
        rows = sum(part.rows for part in parts)
        values = _mean([(part.values, part.rows) for part in parts], rows)
        scalars = _mean([(part.scalars, part.rows) for part in parts], rows)
        return [attrs.evolve(parts[0], values=values, rows=rows, scalars=scalars)]


def _mean(parts: list[tuple[dict[str, Any], int]], rows: int) -> dict[str, Any]:
    """By name, weighted by rows; what a part has no value for counts as 0 in it."""
    names = dict.fromkeys(name for values, _ in parts for name in values)
    return {name: sum(values[name] * n for values, n in parts if name in values) / rows for name in names}


@operator
class ApplyGradients:
    """One optimiser step with each `Gradients` item; emits its scalars, as `TrainOneStep` does.

    Counts: trained (rows), updates (optimiser steps).
    """

    requires = ("gradients",)
    provides = ("scalars",)
    workers: WorkerSet = attrs.field(validator=_has_policy)
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, gradients: Gradients) -> dict[str, float]:
        self.workers.policy.learn_mode.apply(gradients)
        self.context.count("trained", gradients.rows)
        self.context.count("updates")
        return gradients.scalars


@operator
class UpdateTargetNetwork:
    """Moves the target network towards the online one every so often, and passes items on (Q2).

    Args:
        every: How often, counted in `unit`.
        unit: "updates" of the policy or "env_steps" of the run.
        tau: target ← tau · online + (1 − tau) · target; 1 copies.

    State: the count at the last move.
    """

    provides = ()
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
