"""Joining, splitting, scaling and standardizing batches, and selecting the experience of policies."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
import numpy as np

from flowrl.data import DEFAULT_POLICY, Batch, MultiAgentBatch
from flowrl.data.steps import check_joinable, is_fragment, joined, real_rows, real_steps
from flowrl.engine.operator import operator, state
from flowrl.engine.schema import Schema
from flowrl.errors import SchemaError, did_you_mean

Experience: TypeAlias = Batch | MultiAgentBatch
_Experience = TypeVar("_Experience", Batch, MultiAgentBatch)


def _names(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ValueError(f"expected a list of names, got {values!r}; write [{values!r}]")
    return tuple(values)


@operator
class ConcatBatches:
    """Batches -> one of at least `min_batch_size` steps. For `combine`.

    Fragments `[T, N, ...]` of equal T join along N, so each environment keeps its own column (G1); rows `[B, ...]` are
    concatenated. A `MultiAgentBatch` joins policy by policy.

    Args:
        min_batch_size: Steps; padding (`mask` 0) does not count.
        count_steps_by: "env_steps", or "agent_steps": the rows of all policies. They differ only for
            `MultiAgentBatch`.

    Emits: nothing, or one batch; the remainder at the end. State: the waiting batches.
    Raises: SchemaError for batches that cannot be joined: fragments of unequal T, fragments and rows, other columns.

    >>> concat = ConcatBatches(min_batch_size=8)
    >>> fragment = Batch(reward=np.ones((3, 2)))
    >>> concat(fragment), concat(fragment)
    ([], [Batch[3, 4](reward=float64[3, 4])])
    """

    verb = "combine"
    provides = ()
    min_batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    count_steps_by: Literal["env_steps", "agent_steps"] = attrs.field(
        default="env_steps", validator=attrs.validators.in_(("env_steps", "agent_steps"))
    )
    waiting: list[Experience] = state(factory=list)
    steps: int = state(default=0)

    @property
    def held_rows(self) -> int:
        """The steps that wait."""
        return self.steps

    def __call__(self, batch: _Experience) -> list[_Experience]:
        if batch.is_empty:  # an adder completed no row
            return []
        self._check(batch)
        if isinstance(batch, MultiAgentBatch):
            self.steps += batch.env_steps if self.count_steps_by == "env_steps" else batch.rows
        else:
            self.steps += real_steps(batch)
        self.waiting.append(batch)
        return self.finish() if self.steps >= self.min_batch_size else []

    def finish(self) -> list[Any]:
        parts: Any = self.waiting
        self.waiting, self.steps = [], 0
        if not parts:
            return []
        return [MultiAgentBatch.cat(parts) if isinstance(parts[0], MultiAgentBatch) else joined(parts)]

    def _check(self, batch: Experience) -> None:
        """Raise if a batch does not fit the waiting ones, before it joins them."""
        if not self.waiting:
            return
        if isinstance(batch, Batch) and isinstance(self.waiting[0], Batch):
            check_joinable(self.waiting[0], batch, "ConcatBatches")
        elif isinstance(batch, MultiAgentBatch) and isinstance(self.waiting[0], MultiAgentBatch):
            for name, own in batch.items():
                known = next((each[name] for each in self.waiting if name in each), None)
                if known is not None:
                    check_joinable(known, own, f"ConcatBatches, policy {name!r},")
        else:
            raise SchemaError(
                f"ConcatBatches got a {type(self.waiting[0]).__name__}, then a {type(batch).__name__}: "
                "all branches before it must emit the same kind"
            )


@operator
class CollectBatches:
    """Batches -> lists of batches with at least `min_batch_size` rows in total. For `combine`.

    It does not open them: batches may be `Remote`, and stay where they are for `Aggregators`.

    Emits: nothing, or one list; the remainder at the end. State: the waiting batches.

    >>> collect = CollectBatches(min_batch_size=4)
    >>> [len(collect(Batch(reward=np.ones(3)))) for _ in range(2)]
    [0, 1]
    """

    takes_remote = True
    verb = "combine"
    min_batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    waiting: list[Any] = state(factory=list)

    def schema(self, given: Schema) -> Schema:
        return Schema(of=given)

    def __call__(self, batch: Any) -> list[list[Any]]:
        self.waiting.append(batch)
        return self.finish() if sum(each.rows for each in self.waiting) >= self.min_batch_size else []

    def finish(self) -> list[list[Any]]:
        parts, self.waiting = self.waiting, []
        return [parts] if parts else []


@operator
class SplitBatch:
    """A batch -> several of its rows `[B, ...]`, equal or one row apart. For `combine`.

    Drops padded steps (`mask` 0). `AverageGradients(parts)` of the parts' gradients gives the gradient of the whole, in
    less memory.

    Args:
        parts: Number of batches. max_rows: instead, most rows per batch, in as few batches as possible.

    Emits: the parts; with `max_rows` none for a batch without rows.
    Raises: SchemaError for a batch of fewer rows than parts.

    >>> [part.reward.tolist() for part in SplitBatch(2)(Batch(reward=np.arange(3)))]
    [[0, 1], [2]]
    >>> [part.reward.tolist() for part in SplitBatch(max_rows=2)(Batch(reward=np.arange(5)))]
    [[0, 1], [2, 3], [4]]
    """

    parts: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    max_rows: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    pure = True

    def __attrs_post_init__(self) -> None:
        if (self.parts is None) == (self.max_rows is None):
            raise ValueError(f"SplitBatch needs either parts or max_rows, got {self.parts} and {self.max_rows}")

    def schema(self, given: Schema) -> Schema:
        return attrs.evolve(given.rows(), most={} if self.max_rows is None else {"B": self.max_rows})

    def __call__(self, batch: Batch) -> list[Batch]:
        rows = real_rows(batch)
        parts = self.parts if self.max_rows is None else -(-rows.rows // self.max_rows)
        assert parts is not None
        if self.parts is not None and rows.rows < parts:
            raise SchemaError(f"SplitBatch({parts}) got {rows.rows} rows: each part needs at least one")
        bounds = np.linspace(0, rows.rows, parts + 1).astype(int)[::-1]
        cuts = rows.rows - bounds  # larger parts first
        return [rows[start:end] for start, end in pairwise(cuts)]


@operator
class StandardizeFields:
    """Columns of a batch to mean 0 and standard deviation 1: (x − mean) / (std + eps), and the others unchanged.

    Mean and deviation cover all steps of the batch (G3), separately per feature of a column and per policy of a
    `MultiAgentBatch`. Padded steps (`mask` 0) do not count and become 0. A constant column, as in a batch of one row,
    becomes 0. Integers become float32. The input is not modified.

    Args:
        fields: Names of the columns, such as ["advantage"].
        eps: Added to the (population) standard deviation.

    Raises: SchemaError if a column is missing or is a nested batch.

    >>> StandardizeFields(["advantage"])(Batch(advantage=[1.0, 3.0], target=[1.0, 3.0]))
    Batch[2](advantage=float64[2], target=float64[2])
    >>> StandardizeFields(["advantage"])(Batch(advantage=[1.0, 3.0])).advantage.round(6)
    array([-1.,  1.])
    """

    fields: tuple[str, ...] = attrs.field(converter=_names)
    eps: float = attrs.field(default=1e-8, validator=attrs.validators.gt(0))
    pure = True
    takes_policies = True

    @property
    def requires(self) -> tuple[str, ...]:
        return self.fields

    def __call__(self, batch: _Experience) -> _Experience:
        return batch.map(self._standardized) if isinstance(batch, MultiAgentBatch) else self._standardized(batch)

    def _standardized(self, batch: Batch) -> Batch:
        for name in self.fields:
            if name not in batch:
                raise SchemaError(f"StandardizeFields needs the column {name!r}: {did_you_mean(name, batch)}")
            if isinstance(batch[name], Batch):
                raise SchemaError(f"StandardizeFields: {name!r} is a nested batch, not a column")
        mask = batch["mask"] != 0 if "mask" in batch else None
        axes = 2 if is_fragment(batch) else 1
        return batch.replace(**{name: _standardized(batch[name], mask, axes, self.eps) for name in self.fields})


def _standardized(column: Any, mask: Any, axes: int, eps: float) -> Any:
    """Standardise a column over its `axes` leading axes (`[T, N, ...]` or `[B, ...]`) where `mask` is true."""
    torch = sys.modules.get("torch")  # loaded already if anyone holds a tensor
    tensor = torch is not None and isinstance(column, torch.Tensor)
    xp: Any = torch if tensor else np
    kept = column.is_floating_point() if tensor else column.dtype.kind == "f"
    dtype = column.dtype if kept else xp.float32
    wide = xp.asarray(column, dtype=xp.float64)
    counted = wide.reshape(-1, *column.shape[axes:]) if mask is None else wide[xp.asarray(mask)]
    if not len(counted):
        return xp.zeros_like(column, dtype=dtype)
    # Relative to one of them: the rounded mean of equal numbers may differ from each of them.
    wide, counted = wide - counted[0], counted - counted[0]
    mean = counted.mean(0)
    deviation = ((counted - mean) ** 2).mean(0) ** 0.5
    result = (wide - mean) / (deviation + eps)
    if mask is not None:
        padded = ~xp.asarray(mask)
        result[padded] = 0
    return xp.asarray(result, dtype=dtype)


@operator
class ScaleRewards:
    """Multiplies rewards by a constant, so that values have a size that networks learn quickly.

    Reported returns stay those of the environment (S1). `NormalizeRewards` finds the factor itself.

    Args:
        scale: Above 0; for returns of some hundreds about 0.1.

    Raises: SchemaError if there is no reward.

    >>> ScaleRewards(0.5)(Batch(reward=[2.0, -4.0])).reward
    array([ 1., -2.])
    """

    requires = ("reward",)
    provides = ("scaled_rewards",)
    scale: float
    pure = True
    takes_policies = True

    def __attrs_post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"scale is {self.scale}, expected a finite number above 0")

    def __call__(self, batch: _Experience) -> _Experience:
        return batch.map(self._scaled) if isinstance(batch, MultiAgentBatch) else self._scaled(batch)

    def _scaled(self, batch: Batch) -> Batch:
        if "reward" not in batch:
            raise SchemaError(f"ScaleRewards needs the column 'reward': {did_you_mean('reward', batch)}")
        return batch.replace(reward=batch["reward"] * self.scale)


@operator
class SelectExperiences:
    """Keeps the experience of the named policies alone: a `MultiAgentBatch` with all its env steps (M3).

    A policy that has not acted is not in the result. A plain batch belongs to the policy "default_policy", and passes
    if that is named.

    Args:
        policy_ids: Names of the policies.

    Raises: SchemaError for a plain batch unless "default_policy" is named; for a name that no policy has.

    >>> both = MultiAgentBatch({"cat": Batch(reward=np.ones(4)), "mouse": Batch(reward=np.ones(8))}, env_steps=4)
    >>> SelectExperiences(["mouse"])(both)
    MultiAgentBatch[4 env steps](mouse=Batch[8](reward=float64[8]))
    """

    provides = ()
    policy_ids: tuple[str, ...] = attrs.field(converter=_names, validator=attrs.validators.min_len(1))
    pure = True

    def schema(self, given: Schema) -> Schema:
        if given.policies is not None:
            for name in self.policy_ids:
                given.of_policy(name)
            return attrs.evolve(given, policies={name: given.policies[name] for name in self.policy_ids})
        if not given.open:
            self._check_default(given.head)
        return given.having()  # perhaps fewer rows

    def __call__(self, batch: _Experience) -> _Experience:
        if isinstance(batch, MultiAgentBatch):
            for name in self.policy_ids:
                batch.check_policy(name)
            return batch.select(self.policy_ids)
        self._check_default(batch)
        return batch

    def _check_default(self, what: Any) -> None:
        if DEFAULT_POLICY not in self.policy_ids:
            raise SchemaError(
                f"SelectExperiences({list(self.policy_ids)}) gets {what}, which belongs to the policy "
                f"{DEFAULT_POLICY!r}: leave SelectExperiences out, or make a MultiAgentBatch of the rows of each "
                "policy before it"
            )


@operator
class OfPolicy:
    """The experience of one policy, out of a `MultiAgentBatch`, as a plain batch for that policy's operators.

    Args:
        policy_id: Name of the policy.

    Emits: its batch; nothing where the policy has not acted. A plain batch passes as that of "default_policy".
    Raises: SchemaError for a plain batch and another name; for a name that no policy has.

    >>> both = MultiAgentBatch({"cat": Batch(reward=np.ones(4)), "mouse": Batch(reward=np.ones(8))}, env_steps=4)
    >>> OfPolicy("mouse")(both), OfPolicy("dog")(both)
    ([Batch[8](reward=float64[8])], [])
    """

    verb = "combine"
    provides = ()
    policy_id: str = attrs.field(validator=attrs.validators.instance_of(str))
    pure = True

    def schema(self, given: Schema) -> Schema:
        if given.policies is not None:
            return given.of_policy(self.policy_id)
        if not given.open:
            self._check_default(given.head)
        return given

    def __call__(self, batch: Batch | MultiAgentBatch) -> list[Batch]:
        if isinstance(batch, MultiAgentBatch):
            batch.check_policy(self.policy_id)
            return [batch[self.policy_id]] if self.policy_id in batch else []
        self._check_default(batch)
        return [batch]

    def _check_default(self, what: Any) -> None:
        if self.policy_id != DEFAULT_POLICY:
            raise SchemaError(
                f"OfPolicy({self.policy_id!r}) gets {what}, which is of one policy already: leave OfPolicy out, or "
                "let several policies act, WorkerSet(env, policies=..., agents=...)"
            )
