"""Training on a batch: epochs over minibatches, by one learner or by several with the same policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import PLACE, array
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.schema import Schema
from flowrl.errors import PlanError, SchemaError

if TYPE_CHECKING:
    from flowrl.policies import Policy
    from flowrl.policies.learning import AllReduce, Learning

#: Words that an operator needs in its input, perhaps with remedies, see `flowrl.engine.schema`.
Required = tuple[str, ...] | Mapping[str, str]


#: Word of scalars of learners with separate policies: changes of the workers' policy here do not reach them.
APART = "learned_apart"

#: Name of the record of the rows' lags, and prefix of its entries in a result.
LAG = "policy_lag"


@attrs.frozen
class Trained:
    """The outcome of a batch: scalars to report, counters and records, see `Training`."""

    scalars: dict[str, Any]
    counters: dict[str, int]
    records: dict[str, list[Any]]


def lags(batch: Batch, version: int) -> list[Any]:
    """How many versions the weights behind each row are older than `version`, as one array in a list.

    Empty for rows without a version, such as those of a dataset; leaves out padding (`mask` 0).
    """
    if "policy_version" not in batch:
        return []
    versions = array(batch["policy_version"])
    return [version - (versions[array(batch["mask"]) != 0] if "mask" in batch else versions.ravel())]


def _at_least_one(op: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1:
        raise PlanError(f"training needs {attribute.name} >= 1, got {value}")


@attrs.frozen
class Training:
    """One optimizer step on a whole batch, or epochs over shuffled minibatches.

    With an `all_reduce` of one batch, several learners compute the same as one: they shuffle alike, each takes its
    share of every minibatch, and gradients are averaged by rows. Advantages are estimated and standardized before
    the division into shares. Statistics over rows in a model's forward (batch normalization) or in a loss (λ of TD3+BC)
    are those of the share. Every learner computes the whole of a minibatch with fewer rows than learners.

    With an `all_reduce` of separate batches, each learner estimates and standardizes over its own rows, and takes
    as many steps as the one with the most minibatches.

    Args:
        num_sgd_iter: Epochs over a batch.
        minibatch_size: Rows per optimizer step, possibly fewer in an epoch's last; None: the whole batch. With
            separate batches it applies to each learner. For sequences: the approximate number of steps without
            padding, since minibatches are whole sequences.
        target_kl: Ends the epochs after the first step whose minibatch has a larger `kl` (G5).
    """

    num_sgd_iter: int = attrs.field(default=1, validator=_at_least_one)
    minibatch_size: int | None = attrs.field(default=None, validator=_at_least_one)
    target_kl: float | None = None

    def __call__(
        self, learn: Learning, batch: Batch, generator: np.random.Generator, all_reduce: AllReduce | None = None
    ) -> Trained:
        """Train on the experience `[T, N, ...]` or the rows `[B, ...]` of a batch.

        Counts: trained (rows of minibatches), updates (optimizer steps).
        Records: policy_lag of each row, before the first step.
        Returns: Scalars over all learners' rows; `priorities` of this learner's rows, if the loss reports them.
        Raises: SchemaError: the loss misses a column, or some learners have rows and others none; PlanError:
            `target_kl` is set, but the loss reports no `kl`.
        """
        prepared = learn.prepare(batch)
        records = {LAG: lags(prepared, learn.policy.version)}
        rows = learn.tensors(prepared)
        real = learn.steps(prepared)
        first = learn.over_batch(rows, all_reduce) if real else {}
        parts = self._minibatches(learn, rows, real, generator, all_reduce)
        steps: list[dict[str, Any]] = []
        priorities: list[Batch] = []
        trained = 0
        for part in parts:
            step = learn.update(part, all_reduce)
            trained += real if part is rows else learn.steps(part)
            if "priority" in step:
                own = part if all_reduce is None else all_reduce.share(part, learn.recurrent)
                priorities.append(_with_places(own, step.pop("priority")))
            steps.append(step)
            if self.target_kl is not None and self._kl(learn, step) > self.target_kl:
                break
        if not steps:
            return Trained({}, {}, {})
        learn.say_if_old(records[LAG], len(steps))
        found = {**first, **(steps[0] if len(steps) == 1 else _means(steps)), **learn.describe(rows)}
        scalars: dict[str, Any] = {name: float(value) for name, value in found.items()}
        if priorities:
            scalars["priorities"] = Batch.cat(priorities).to_numpy()
        return Trained(scalars, {"trained": trained, "updates": len(steps)}, records)

    def _minibatches(
        self, learn: Learning, rows: Batch, real: int, generator: np.random.Generator, all_reduce: AllReduce | None
    ) -> Iterable[Batch]:
        """The minibatches of all epochs; none for a batch without real rows, which an adder may emit."""
        if all_reduce is not None and not all_reduce.one_batch:
            if learn.recurrent:
                raise PlanError("workers cannot train a policy with a memory together: use TrainOneStep(workers)")
            return self._own_minibatches(rows, generator, all_reduce)
        if (size := self.minibatch_size or real) >= real:
            return [rows] * (self.num_sgd_iter if real else 0)
        if learn.recurrent:
            epoch = partial(_whole_sequences, rows, math.ceil(real / size), generator)
        else:
            epoch = partial(rows.split, size, True, generator)
        return chain.from_iterable(epoch() for _ in range(self.num_sgd_iter))

    def _own_minibatches(self, rows: Batch, generator: np.random.Generator, all_reduce: AllReduce) -> Iterator[Batch]:
        """Equally many for all learners, whatever their rows: a learner with one more step would wait for ever."""
        fewest, most = all_reduce.least_and_most(len(rows) if rows.keys() else 0)
        count = 1 if self.minibatch_size is None else math.ceil(most / self.minibatch_size)
        if most and fewest < count:
            raise SchemaError(f"learners with {fewest} to {most} rows cannot all take {count} steps: give each as many")
        for _ in range(self.num_sgd_iter if most else 0):
            if count == 1:
                yield rows
            else:
                yield from (rows[part] for part in np.array_split(generator.permutation(len(rows)), count))

    def _kl(self, learn: Learning, scalars: dict[str, Any]) -> float:
        if "kl" not in scalars:
            raise PlanError(f"target_kl={self.target_kl}: {type(learn.policy).__name__} reports no kl")
        return float(scalars["kl"])


def _means(steps: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of each scalar over the steps that have it: a delayed actor does not learn in every step."""
    names = dict.fromkeys(name for step in steps for name in step)
    found = {name: [float(step[name]) for step in steps if name in step] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def _whole_sequences(rows: Batch, count: int, generator: np.random.Generator) -> Iterator[Batch]:
    """`count` shuffled parts `[T, B', ...]` of sequences `[T, B, ...]`, or one per sequence if there are fewer."""
    sequences = rows.shape[1]
    return (rows[:, part] for part in np.array_split(generator.permutation(sequences), min(count, sequences)))


def _with_places(rows: Batch, priority: Any) -> Batch:
    """The priorities `[B]` with the places of their rows; of sequences, without padding."""
    places = rows.select([name for name in PLACE if name in rows])
    if "mask" not in rows:
        return places.replace(priority=priority)
    counts = rows["mask"] != 0
    return places.replace(priority=priority).map(lambda column: column[counts])


def required(policy: Any) -> Required:
    """The words that a policy's loss needs, if it declares them, and those that its normalization needs."""
    if not isinstance(policy, _policies()):
        return ()
    words: Required = policy.learn_mode.requires
    if not policy.normalizers:
        return words
    words = dict.fromkeys(words, "") if isinstance(words, tuple) else dict(words)
    words["statistics"] = "its policy normalizes: put GatherStatistics after ParallelRollouts"
    if policy.returns is not None:
        words["normalized_rewards"] = "its policy has normalize_rewards=True: put NormalizeRewards before it"
    return words


def check_given(workers: Any, given: Schema) -> None:
    """Refuse other experience than the policy of these workers learns from.

    Raises: SchemaError: it is that of several policies; it is that of another one, and the loss is right only for
        experience of its own.
    """
    name = WorkersContract(workers).name
    if given.policies is not None:
        raise SchemaError(
            f"it trains one policy, but gets the experience of {' and '.join(map(repr, given.policies))}: put "
            f"OfPolicy({name or 'NAME'!r}) before it"
        )
    if None not in (name, given.policy) and name != given.policy and "on_policy" in required(workers.policy):
        raise SchemaError(
            f"it trains the policy {name!r} on the experience of {given.policy!r}, but "
            f"{type(workers.policy).__name__} learns from its own alone: put OfPolicy({name!r}) before it"
        )


def reported(policy: Any, given: Schema) -> Schema:
    """The schema of training on such batches: scalars, and priorities if rows were drawn by priority."""
    silent = isinstance(policy, _policies()) and not policy.learn_mode.reports_priority
    by_priority = all(map(given.has, ("weight", "index", "generation"))) and not silent
    return Schema().having("priorities") if by_priority else Schema()


def _policies() -> type[Policy]:
    """The base of policies that declare their needs; a user's other policies may need and report anything."""
    from flowrl.policies import Policy

    return Policy
