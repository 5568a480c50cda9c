"""Learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from flowrl.context import Context
from flowrl.data import Batch
from flowrl.data.columns import PLACE
from flowrl.errors import PlanError, SchemaError
from flowrl.operator import context, operator, state
from flowrl.operators.rollout import ParallelRollouts
from flowrl.operators.staleness import LAG, record_lags
from flowrl.plan import Plan
from flowrl.schema import Schema

if TYPE_CHECKING:
    from flowrl.policies.policy import Gradients
    from flowrl.rollout import WorkerSet


def _has_policy(op: Any, attribute: Any, workers: WorkerSet) -> None:
    if not hasattr(workers, "policy"):
        raise PlanError(f"{type(op).__name__} needs the workers whose policy learns, got {workers!r}")


Required = tuple[str, ...] | Mapping[str, str]


def _learned_from(workers: WorkerSet | None) -> Required:
    """The words that the policy's loss needs, if it says so, and those of what it normalises by."""
    policy = getattr(workers, "policy", None)
    required: Required = getattr(getattr(policy, "learn_mode", None), "requires", ())
    if not getattr(policy, "normalizers", None):
        return required
    words = dict.fromkeys(required, "") if isinstance(required, tuple) else dict(required)
    words["statistics"] = "its policy normalises: put GatherStatistics after ParallelRollouts"
    if getattr(policy, "returns", None) is not None:
        words["normalized_rewards"] = "its policy has normalize_rewards=True: put NormalizeRewards before it"
    return words


def _has_target(op: Any, attribute: Any, workers: WorkerSet) -> None:
    _has_policy(op, attribute, workers)
    if not hasattr(workers.policy, "update_target"):
        raise PlanError(f"UpdateTargetNetwork: {type(workers.policy).__name__} has no target network")


def _has_kl(op: Any, attribute: Any, workers: WorkerSet) -> None:
    _has_policy(op, attribute, workers)
    if not hasattr(workers.policy, "update_kl"):
        raise PlanError(f"UpdateKL: {type(workers.policy).__name__} has no penalty on the KL divergence")


def _at_least_one(op: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1:
        raise PlanError(f"TrainOneStep needs {attribute.name} >= 1, got {value}")


@operator
class TrainOneStep:
    """Trains the workers' policy on each batch; emits the learner's scalars, a dict of their means.

    Of rows that were drawn by priority the dict has `priorities` too, for `UpdatePriorities`: a batch of `index`,
    `generation` and `priority` `[B]`, in the order in which they were learned from.

    One optimiser step on the whole batch, or `num_sgd_iter` epochs, each over shuffled minibatches; none on a
    batch without rows.

    Args:
        num_sgd_iter: Epochs over a batch.
        minibatch_size: Rows of an optimiser step, the last of an epoch maybe fewer; None: the whole batch.
        target_kl: Ends the epochs of a batch after the first step whose minibatch had a larger `kl` (G5).

    Counts: trained (rows through an optimiser step), updates (optimiser steps).
    Records: policy_lag of the rows of each batch, as its first step finds them.
    Raises: SchemaError where the loss misses a column; PlanError for `target_kl` if the learner reports no `kl`.
    """

    provides = ("scalars",)
    workers: WorkerSet = attrs.field(validator=_has_policy)
    num_sgd_iter: int = attrs.field(default=1, validator=_at_least_one)
    minibatch_size: int | None = attrs.field(default=None, validator=_at_least_one)
    target_kl: float | None = None
    context: Context = context()

    @property
    def requires(self) -> Required:
        return _learned_from(self.workers)

    def schema(self, given: Schema) -> Schema:
        learn = getattr(self.workers.policy, "learn_mode", None)
        by_priority = all(map(given.has, ("weight", *PLACE))) and getattr(learn, "reports_priority", True)
        return Schema().having("priorities") if by_priority else Schema()

    def __call__(self, batch: Batch) -> dict[str, Any]:
        policy = self.workers.policy
        learn = policy.learn_mode
        learn.schedule(self.context.counters.get("env_steps", 0))
        prepared = learn.prepare(batch)
        record_lags(self.context, prepared, policy.version)
        rows = learn.tensors(prepared)
        if rows.is_empty:  # of an adder that completed nothing
            return {}
        steps: list[dict[str, Any]] = []
        priorities: list[Batch] = []
        for part in self._minibatches(rows):
            steps.append(learn.update(part))
            if "priority" in steps[-1]:
                priorities.append(part.select(PLACE).replace(priority=steps[-1].pop("priority")))
            self.context.count("trained", part.rows)
            if self.target_kl is not None and float(self._kl(steps[-1])) > self.target_kl:
                break
        self.context.count("updates", len(steps))
        scalars: dict[str, Any] = {name: sum(float(step[name]) for step in steps) / len(steps) for name in steps[-1]}
        scalars |= {name: float(value) for name, value in learn.describe(rows).items()}
        return scalars | {"priorities": Batch.cat(priorities).to_numpy()} if priorities else scalars

    def _minibatches(self, rows: Batch) -> Iterator[Batch]:
        size = self.minibatch_size or rows.rows
        for _ in range(self.num_sgd_iter):
            yield from [rows] if size >= rows.rows else rows.split(size, True, self.context.generator("minibatches"))

    def _kl(self, scalars: dict[str, Any]) -> Any:
        if "kl" not in scalars:
            raise PlanError(f"target_kl={self.target_kl}: {type(self.workers.policy).__name__} reports no kl")
        return scalars["kl"]


@operator
class UpdateKL:
    """Adapts the weight of PPO's KL penalty so that the divergence of an update stays near `target`.

    Items are the scalars of `TrainOneStep`; they pass, with the new weight as `kl_coef`.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", section 4.
    """

    requires = ("scalars",)
    provides = ("kl_coef",)
    workers: WorkerSet = attrs.field(validator=_has_kl)
    target: float = 0.01

    def __call__(self, scalars: dict[str, float]) -> dict[str, float]:
        policy: Any = self.workers.policy
        policy.update_kl(scalars["kl"], self.target)
        return {**scalars, "kl_coef": policy.kl_coef}


@operator
class ComputeGradients:
    """Gradients of the loss on each batch `[B, ...]`, without a step of the optimiser: a `Gradients` item.

    The rows are prepared as `TrainOneStep` does. On a worker it takes that worker's policy, and its gradients
    know whose they are.

    Args:
        workers: Whose policy; may be left out in a part of a plan that runs on the workers.

    Raises: PlanError where there is neither.
    """

    provides = ("gradients",)
    workers: WorkerSet | None = attrs.field(default=None, validator=attrs.validators.optional(_has_policy))
    context: Context = context()

    @property
    def requires(self) -> Required:
        return _learned_from(self.workers)

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, batch: Batch) -> Gradients:
        worker = self.context.worker
        owner = self.workers if worker is None else worker
        if owner is None:
            raise PlanError("ComputeGradients() does not run on a worker: say whose policy, ComputeGradients(workers)")
        learn = owner.policy.learn_mode
        gradients: Gradients = learn.gradients(learn.prepare(batch))
        return gradients if worker is None else attrs.evolve(gradients, worker=worker.index)


def AsyncGradients(workers: WorkerSet, in_flight: int = 1, *, steps: int = 32) -> Plan:
    """Gradients of the workers' own experience, computed where it is collected (A3C): `Gradients` items.

    They come as they are ready. With one request in flight a worker is asked again once its gradients have been
    applied (F3), so that it acts with what came of them; with more it works meanwhile, on older weights.

    Args:
        workers: Who acts and computes.
        in_flight: Requests to each worker at a time.
        steps: Steps of each environment in the fragment of one gradient.

    Counts: env_steps.
    Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning".
    """
    rollouts = ParallelRollouts(workers, mode="raw", steps=steps)
    return attrs.evolve(rollouts.for_each(ComputeGradients()).gather_async(in_flight), name="AsyncGradients")


@operator
class AverageGradients:
    """The mean of `count` gradients, each weighted by its rows (F13): that of one batch of all their rows.

    For `combine`. Emits: one item for `count`, and what is left at the end. State: the gradients waiting.
    """

    verb = "combine"
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
        by = {part.worker for part in parts}
        worker = by.pop() if len(by) == 1 else None
        oldest = min(part.version for part in parts)
        return [attrs.evolve(parts[0], values=values, rows=rows, scalars=scalars, worker=worker, version=oldest)]


def _mean(parts: list[tuple[dict[str, Any], int]], rows: int) -> dict[str, Any]:
    """By name, weighted by rows; what a part has no value for counts as 0 in it."""
    names = dict.fromkeys(name for values, _ in parts for name in values)
    return {name: sum(values[name] * n for values, n in parts if name in values) / rows for name in names}


@operator
class ApplyGradients:
    """One optimiser step with each `Gradients` item; emits its scalars, as `TrainOneStep` does.

    Args:
        workers: Whose policy learns.
        update_all: Who gets the new weights: all workers, or only the one whose gradients they are, which
            leaves the others at what they are doing. Workers of this process share the policy either way.

    Counts: trained (rows), updates (optimiser steps).
    Records: policy_lag, of the weights that the gradients were computed with, for each row.
    Raises: SchemaError for gradients of no one worker where `update_all` is False.
    """

    requires = ("gradients",)
    provides = ("scalars",)
    workers: WorkerSet = attrs.field(validator=_has_policy)
    update_all: bool = True
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, gradients: Gradients) -> dict[str, float]:
        if not self.update_all and gradients.worker is None:
            raise SchemaError(
                "ApplyGradients(update_all=False) sends weights to the worker whose gradients they are, but these "
                "were computed by none, or by several; use AsyncGradients, or update_all=True"
            )
        policy = self.workers.policy
        learn = policy.learn_mode
        learn.schedule(self.context.counters.get("env_steps", 0))
        self.context.record(LAG, np.full(gradients.rows, policy.version - gradients.version))
        learn.apply(gradients)
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
