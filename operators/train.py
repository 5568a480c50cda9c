"""Operators that train: they give batches to a policy or to its learners, and hand on what came of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import attrs
import numpy as np

from flowrl.data import Batch, MultiAgentBatch
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.plan import Plan
from flowrl.engine.schema import Schema
from flowrl.engine.workers.local import wait_for
from flowrl.errors import PlanError, SchemaError
from flowrl.learners.training import APART, LAG, Required, Training, check_given, reported, required
from flowrl.operators.rollout import ParallelRollouts
from flowrl.policies.protocols import HasKL, HasParts, HasTarget, OwnsPolicy, check_alone

if TYPE_CHECKING:
    from flowrl.policies.learning import Gradients
    from flowrl.rollout import WorkerSet


def _names(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not (names := tuple(given)):
        raise PlanError(f"policies={given!r}: expected the names of one or more, such as ['ppo']")
    return names


def _has_policy(op: Any, attribute: Any, workers: Any) -> None:
    if not isinstance(workers, OwnsPolicy):
        raise PlanError(f"{type(op).__name__} needs the workers whose policy learns, got {workers!r}")
    check_alone(workers.policy, type(op).__name__)


def _has_target(op: Any, attribute: Any, workers: Any) -> None:
    _has_policy(op, attribute, workers)
    if not isinstance(workers.policy, HasTarget):
        raise PlanError(f"UpdateTargetNetwork: {type(workers.policy).__name__} has no target network")


def _has_kl(op: Any, attribute: Any, workers: Any) -> None:
    _has_policy(op, attribute, workers)
    if not isinstance(workers.policy, HasKL):
        raise PlanError(f"UpdateKL: {type(workers.policy).__name__} has no penalty on the KL divergence")


def learned_here(op: Any, given: Schema, instead: str) -> Schema:
    """The schema after an operator that changes the policy: the policy that learns must be the workers' one."""
    if APART in given.words:
        raise SchemaError(
            f"a LearnerGroup learns with its own policies: {type(op).__name__} would change the policy of the "
            f"workers here, without effect; {instead}"
        )
    return given


@operator
class TrainOneStep:
    """Trains the workers' policy on each batch; emits the learner's scalars, a dict of their means.

    For rows drawn by priority the dict has `priorities` too, for `UpdatePriorities`: a batch of `index`, `generation`
    and `priority` `[B]`, in the order of training.

    It takes one optimizer step on the whole batch, or `num_sgd_iter` epochs over shuffled minibatches; none on a batch
    without rows.

    With `policies` it takes a `MultiAgentBatch`, and trains each of them on its own experience, one after the other.
    The scalars, counters and records of several carry their names, as in `loss/ppo` (F16).

    Args:
        workers: Workers of the policy.
        num_sgd_iter: Epochs over each batch.
        minibatch_size: Rows per optimizer step, maybe fewer in the last of an epoch; None: the whole batch.
        target_kl: Ends the epochs over a batch after the first step whose minibatch has a larger `kl` (G5).
        policies: Names of those to train, where `workers` have several. One that has not acted is not trained.

    Counts: trained (rows through an optimizer step), updates (optimizer steps).
    Records: policy_lag of the rows of each batch, at its first step.
    Raises: SchemaError if the loss misses a column, or `policies` get a plain batch; PlanError for `target_kl` if the
        learner reports no `kl`; ConfigError if there is no policy of a name.
    """

    provides = ("scalars",)
    workers: OwnsPolicy = attrs.field()
    num_sgd_iter: int = 1
    minibatch_size: int | None = None
    target_kl: float | None = None
    policies: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(_names))
    context: Context = context()

    def __new__(cls, workers: Any = None, *args: Any, all_reduce: bool = False, **settings: Any) -> Any:
        """For one version, `TrainOneStep(all_reduce=True)` is a `TrainAllReduce` under its old name in paths."""
        if not all_reduce:
            return super().__new__(cls)
        warnings.warn("TrainOneStep(all_reduce=True) is TrainAllReduce() now", DeprecationWarning, stacklevel=2)
        together: Any = TrainAllReduce(*args, **settings)
        together.__name__ = "TrainOneStep"
        return together

    def __attrs_post_init__(self) -> None:
        #: How it trains, whichever policy.
        self.training = Training(self.num_sgd_iter, self.minibatch_size, self.target_kl)
        for workers in self._parts().values():
            _has_policy(self, None, workers)

    def _parts(self) -> dict[str, Any]:
        """The workers of each policy that it trains."""
        if self.policies is None:
            return {"": self.workers}
        if not isinstance(self.workers, HasParts):
            raise PlanError(
                f"TrainOneStep(policies={list(self.policies)}) needs workers of several, got {self.workers!r}"
            )
        return {name: self.workers.of(name) for name in self.policies}

    @property
    def requires(self) -> Required:
        return required(self.workers.policy) if self.policies is None else ()

    @property
    def learns(self) -> Any:
        policies = [workers.policy for workers in self._parts().values()]
        return policies[0] if len(policies) == 1 else self.workers.policy

    def schema(self, given: Schema) -> Schema:
        if self.policies is None:
            check_given(self.workers, given)
            return reported(self.workers.policy, given)
        if given.policies is None:
            if not given.open:
                self._refuse(given.head)
            return Schema()
        for name, workers in self._parts().items():
            own, needs = given.of_policy(name), required(workers.policy)
            if missing := [word for word in needs if not own.has(word)]:
                why = needs[missing[0]] if isinstance(needs, Mapping) else ""
                raise SchemaError(
                    f"policy {name!r} needs {', '.join(map(repr, missing))}, and has {own}{': ' * bool(why)}{why}"
                )
        return Schema()

    def __call__(self, batch: Batch | MultiAgentBatch) -> dict[str, Any]:
        if self.policies is None:
            return self._train(self.workers, batch)
        if not isinstance(batch, MultiAgentBatch):
            self._refuse(batch)
        parts, scalars = self._parts(), dict[str, Any]()
        for name, workers in parts.items():
            if name in batch:
                whose = name if len(parts) > 1 else ""
                found = self._train(workers, batch[name], whose)
                scalars |= {f"{key}/{whose}": value for key, value in found.items()} if whose else found
        return scalars

    def _refuse(self, what: Any) -> NoReturn:
        raise SchemaError(
            f"TrainOneStep(policies={list(self.policies or ())}) gets {what}, the experience of one policy: pass its "
            "workers, TrainOneStep(workers.of(NAME))"
        )

    def _train(self, workers: OwnsPolicy, batch: Any, name: str = "") -> dict[str, Any]:
        """Train one policy, of this name if there are several; returns its scalars."""
        learn = workers.policy.learn_mode
        learn.schedule(self.context.counters.get(workers.clock, 0))
        trained = self.training(learn, batch, self.context.generator(f"minibatches/{name}" if name else "minibatches"))
        self.context.learned(trained.counters, trained.records, name)
        return trained.scalars


@operator
class TrainAllReduce:
    """Trains the policies of all workers in step: each applies the mean of all gradients, weighted by rows (F13).

    For the part of a plan that runs on the workers, before `gather_sync(FollowWorkers(workers))`. Their policies stay
    equal. See `flowrl.learners.training.Training` for what is computed over which rows.

    Args:
        num_sgd_iter: Epochs over each batch.
        minibatch_size: Rows per optimizer step and worker; None: its whole batch.
        target_kl: Ends the epochs of all workers over a batch after the first step with a larger `kl` (G5).

    Counts: trained (rows through an optimizer step), updates (optimizer steps, each once for all workers).
    Records: policy_lag of the rows of each batch, at its first step.
    Raises: SchemaError and PlanError as `TrainOneStep`; PlanError if it does not run on workers, or if several of them
        share a process; Disconnected if one of them is gone.
    """

    provides = ("scalars",)
    num_sgd_iter: int = 1
    minibatch_size: int | None = None
    target_kl: float | None = None
    context: Context = context()

    def __attrs_post_init__(self) -> None:
        self.training = Training(self.num_sgd_iter, self.minibatch_size, self.target_kl)

    def schema(self, given: Schema) -> Schema:
        return reported(None, given)

    def hosted(self, workers: WorkerSet) -> None:
        """Have the workers that will train together meet; called when they have taken their part of a plan."""
        if workers.layout.groups_per_worker > 1:
            raise PlanError(
                f"TrainAllReduce: {workers!r} has several groups in a process, which share a policy; "
                "workers that learn together need env_groups=None"
            )
        from flowrl.learners.all_reduce import rendezvous

        rendezvous(workers.members, one_batch=False)

    def __call__(self, batch: Batch) -> dict[str, Any]:
        worker = self.context.worker
        if worker is None:
            raise PlanError("TrainAllReduce is for workers: put it before the gather")
        worker.check_peers()
        group, learn = worker.all_reduce, worker.policy.learn_mode
        # Schedules must agree on all workers, or the policies would differ.
        learn.schedule(worker.env_steps if group is None else group.least_and_most(worker.env_steps)[1])
        try:
            trained = self.training(learn, batch, self.context.generator("minibatches"), group)
        except BaseException:
            worker.leave()  # so that the others do not wait for a step that never comes
            raise
        if group is not None and group.rank:
            trained.counters.pop("updates", None)  # all took the same step, which one of them counts
        self.context.learned(trained.counters, trained.records)
        return trained.scalars


@operator
class FollowWorkers:
    """A round of scalars of workers that train together -> their means; the policy here follows theirs.

    For `gather_sync(FollowWorkers(workers))` after `TrainAllReduce()`. One worker keeps its weights, which
    are fetched on access to `workers.policy`, such as to evaluate or save it.
    """

    provides = ("scalars",)
    workers: WorkerSet = attrs.field(validator=_has_policy)

    @property
    def learns(self) -> Any:
        return self.workers.policy

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, of_each: list[dict[str, float]]) -> dict[str, float]:
        if self.workers.num_workers:
            kept = self.workers.members[0].submit_apart("weights_apart")
            wait_for([kept], "worker 0 to keep its weights")
            self.workers.publish(*kept.result(), everywhere=True)
        names = dict.fromkeys(name for scalars in of_each for name in scalars)
        found = {name: [scalars[name] for scalars in of_each if name in scalars] for name in names}
        return {name: sum(values) / len(values) for name, values in found.items()}


@operator
class UpdateKL:
    """Adapts the weight of PPO's KL penalty to keep the divergence of an update near `target`.

    Items are the scalars of `TrainOneStep`; they pass, with the new weight as `kl_coef`.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", section 4.
    """

    requires = ("scalars",)
    provides = ("kl_coef",)
    workers: OwnsPolicy = attrs.field(validator=_has_kl)
    target: float = 0.01

    def schema(self, given: Schema) -> Schema:
        return learned_here(self, given, "learn with TrainOneStep(workers), or with a fixed kl_coef")

    def __call__(self, scalars: dict[str, float]) -> dict[str, float]:
        policy: Any = self.workers.policy
        policy.update_kl(scalars["kl"], self.target)
        return {**scalars, "kl_coef": policy.kl_coef}


@operator
class ComputeGradients:
    """Gradients of the loss on each batch `[B, ...]`, without a step of the optimizer: a `Gradients` item.

    It prepares rows like `TrainOneStep`. On a worker it uses that worker's policy, and its gradients record the
    worker's index.

    Args:
        workers: Workers of the policy; may be left out in a part of a plan that runs on the workers.

    Raises: PlanError if there is neither.
    """

    provides = ("gradients",)
    workers: OwnsPolicy | None = attrs.field(default=None, validator=attrs.validators.optional(_has_policy))
    context: Context = context()

    @property
    def requires(self) -> Required:
        return () if self.workers is None else required(self.workers.policy)

    def schema(self, given: Schema) -> Schema:
        if self.workers is not None:
            check_given(self.workers, given)
        return Schema()

    def __call__(self, batch: Batch) -> Gradients:
        worker = self.context.worker
        owner = self.workers if worker is None else worker
        if owner is None:
            raise PlanError("ComputeGradients() does not run on a worker: pass workers, ComputeGradients(workers)")
        learn = owner.policy.learn_mode
        learn.schedule(self.context.counters.get(owner.clock, 0) if worker is None else worker.env_steps)
        gradients: Gradients = learn.gradients(learn.prepare(batch))
        return gradients if worker is None else attrs.evolve(gradients, worker=worker.index)


def AsyncGradients(workers: WorkerSet, in_flight: int = 1, *, steps: int = 32) -> Plan:
    """Gradients of the workers' own experience, computed where it is collected (A3C): `Gradients` items.

    They arrive as they become ready. With one request in flight, a worker gets its next request after its gradients
    are applied (F3), and acts with the new weights; with more, it works meanwhile with older weights.

    Args:
        workers: Workers that act and compute.
        in_flight: Requests in flight to each worker.
        steps: Steps per environment in the fragment of one gradient.

    Counts: env_steps.
    Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning".
    """
    rollouts = ParallelRollouts(workers, mode="raw", steps=steps)
    return attrs.evolve(rollouts.for_each(ComputeGradients()).gather_async(in_flight), name="AsyncGradients")


@operator
class AverageGradients:
    """The mean of `count` gradients, weighted by their rows (F13): the gradient of one batch of all rows.

    A missing gradient of a parameter counts as 0; a scalar is the mean over the parts that report it.

    For `combine`. Emits: one item per `count`, and the remainder at the end. State: the waiting gradients.
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
        scalars = _mean([(part.scalars, part.rows) for part in parts])
        by = {part.worker for part in parts}
        worker = by.pop() if len(by) == 1 else None
        oldest = min(part.version for part in parts)
        return [attrs.evolve(parts[0], values=values, rows=rows, scalars=scalars, worker=worker, version=oldest)]


def _mean(parts: list[tuple[dict[str, Any], int]], rows: int | None = None) -> dict[str, Any]:
    """Means by name, weighted by rows: over the parts with a value, or over `rows` rows, counting others as 0."""
    found: dict[str, list[tuple[Any, int]]] = {}
    for values, n in parts:
        for name, value in values.items():
            found.setdefault(name, []).append((value, n))
    return {name: sum(value * n for value, n in of) / (rows or sum(n for _, n in of)) for name, of in found.items()}


@operator
class ApplyGradients:
    """Takes one optimizer step with each `Gradients` item; emits its scalars, like `TrainOneStep`.

    Args:
        workers: Workers of the policy that learns.
        update_all: False: gradients must come from one worker, which gets the next request and acts with the new
            weights (F3). True: any gradients, such as averaged ones. Either way no worker is interrupted: new weights
            travel with the next request to each worker.

    Counts: trained (rows), updates (optimizer steps).
    Records: policy_lag of the weights that computed the gradients, for each row.
    Raises: SchemaError if `update_all` is False and the gradients are not those of one worker.
    """

    requires = ("gradients",)
    provides = ("scalars",)
    workers: OwnsPolicy = attrs.field(validator=_has_policy)
    update_all: bool = True
    context: Context = context()

    @property
    def learns(self) -> Any:
        return self.workers.policy

    def schema(self, given: Schema) -> Schema:
        return Schema()

    def __call__(self, gradients: Gradients) -> dict[str, float]:
        if not self.update_all and gradients.worker is None:
            raise SchemaError(
                "ApplyGradients(update_all=False) takes the gradients of one worker, which goes on with the new "
                "weights, but these come from none, or from several; use AsyncGradients, or update_all=True"
            )
        policy = self.workers.policy
        learn = policy.learn_mode
        learn.schedule(self.context.counters.get(self.workers.clock, 0))
        lag = np.full(gradients.rows, policy.version - gradients.version)
        learn.apply(gradients)
        self.context.learned({"trained": gradients.rows, "updates": 1}, {LAG: [lag]})
        return gradients.scalars


@operator
class UpdateTargetNetwork:
    """Moves the target network toward the online one at intervals, and passes items on (Q2).

    Args:
        every: The interval, counted in `unit`.
        unit: "updates" of the policy or "env_steps" of the run.
        tau: target ← tau · online + (1 − tau) · target; 1 copies.

    State: the count at the last move.
    """

    provides = ()
    workers: OwnsPolicy = attrs.field(validator=_has_target)
    every: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    unit: Literal["updates", "env_steps"] = attrs.field(
        default="updates", validator=attrs.validators.in_(("updates", "env_steps"))
    )
    tau: float = 1.0
    last: int = state(default=0)
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return learned_here(self, given, "leave it out, and pass LearnerGroup(..., target_every=)")

    def __call__(self, item: Any) -> Any:
        policy: Any = self.workers.policy
        now = policy.version if self.unit == "updates" else self.context.counters.get("env_steps", 0)
        if now - self.last >= self.every:
            policy.update_target(self.tau)
            self.last = now
        return item
