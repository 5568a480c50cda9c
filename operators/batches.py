"""Making larger batches of small ones, scaling and standardising them, and choosing whose experience to learn from."""

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

    Fragments `[T, N, ...]` of equal T go side by side along N, so that each environment stays a column of its
    own (G1); rows `[B, ...]` go one after another. `MultiAgentBatch`es are joined policy by policy.

    Args:
        min_batch_size: Steps; padding (`mask` 0) does not count.
        count_steps_by: "env_steps", or "agent_steps": the rows of all policies. They differ for
            `MultiAgentBatch` only.

    Emits: nothing, or one batch; what is left at the end. State: the batches that wait.
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

    def __call__(self, batch: _Experience) -> list[_Experience]:
        if batch.is_empty:  # of an adder that completed nothing
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
        """Refuse what does not fit beside the batches that wait, before it is among them."""
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
                "the branches that meet before it must all give one or all give the other"
            )


@operator
class CollectBatches:
    """Batches -> lists of them, of together at least `min_batch_size` rows. For `combine`.

    They are not joined, nor looked at: batches may be `Remote`, and stay where they are for `Aggregators`.

    Emits: nothing, or one list; what is left at the end. State: the batches that wait.

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

    Padded steps (`mask` 0) are left out. The gradients of the parts, averaged by `AverageGradients(parts)`, are
    that of the whole, in less memory.

    Args:
        parts: So many batches. max_rows: as few batches as have at most so many rows each; say the one or the other.

    Emits: the parts, of a batch without rows none if `max_rows` is said.
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
        return given.rows()

    def __call__(self, batch: Batch) -> list[Batch]:
        rows = real_rows(batch)
        parts = self.parts if self.max_rows is None else -(-rows.rows // self.max_rows)
        assert parts is not None
        if self.parts is not None and rows.rows < parts:
            raise SchemaError(f"SplitBatch({parts}) got {rows.rows} rows: each part needs one at least")
        bounds = np.linspace(0, rows.rows, parts + 1).astype(int)[::-1]
        cuts = rows.rows - bounds  # the larger parts first
        return [rows[start:end] for start, end in pairwise(cuts)]


@operator
class StandardizeFields:
    """Columns of a batch to mean 0 and standard deviation 1: (x − mean) / (std + eps), and the others as they are.

    The scope is the batch (G3): all its steps together, each feature of a column by itself, each policy of a
    `MultiAgentBatch` by itself. Padded steps (`mask` 0) do not count and become 0. A column that is the same
    everywhere, as in a batch of one row, becomes 0. Integers become float32. The input is left as it is.

    Args:
        fields: Names of the columns, such as ["advantage"].
        eps: Added to the (population) standard deviation.

    Raises: SchemaError for a column that is not there or is a nested batch.

    >>> StandardizeFields(["advantage"])(Batch(advantage=[1.0, 3.0], target=[1.0, 3.0]))
    Batch[2](advantage=float64[2], target=float64[2])
    >>> StandardizeFields(["advantage"])(Batch(advantage=[1.0, 3.0])).advantage.round(6)
    array([-1.,  1.])
    """

    fields: tuple[str, ...] = attrs.field(converter=_names)
    eps: float = attrs.field(default=1e-8, validator=attrs.validators.gt(0))
    pure = True

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
    """A column `[T, N, ...]` or `[B, ...]`, as `axes` says, over its leading axes where `mask` is true."""
    torch = sys.modules.get("torch")  # whoever holds a tensor has loaded it
    tensor = torch is not None and isinstance(column, torch.Tensor)
    xp: Any = torch if tensor else np
    kept = column.is_floating_point() if tensor else column.dtype.kind == "f"
    dtype = column.dtype if kept else xp.float32
    wide = xp.asarray(column, dtype=xp.float64)
    counted = wide.reshape(-1, *column.shape[axes:]) if mask is None else wide[xp.asarray(mask)]
    if not len(counted):
        return xp.zeros_like(column, dtype=dtype)
    # From one of them on: a mean of equal numbers that is rounded would deviate from each by as much as they do.
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
    """Rewards times a number, so that the values of states are numbers that a network finds quickly.

    Returns that are reported stay those of the environment (S1). `NormalizeRewards` finds the number itself.

    Args:
        scale: More than 0; returns of some hundreds want about 0.1.

    Raises: SchemaError where there is no reward.

    >>> ScaleRewards(0.5)(Batch(reward=[2.0, -4.0])).reward
    array([ 1., -2.])
    """

    requires = ("reward",)
    provides = ("scaled_rewards",)
    scale: float
    pure = True

    def __attrs_post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"scale is {self.scale}: it must be a finite number, more than 0")

    def __call__(self, batch: _Experience) -> _Experience:
        return batch.map(self._scaled) if isinstance(batch, MultiAgentBatch) else self._scaled(batch)

    def _scaled(self, batch: Batch) -> Batch:
        if "reward" not in batch:
            raise SchemaError(f"ScaleRewards needs the column 'reward': {did_you_mean('reward', batch)}")
        return batch.replace(reward=batch["reward"] * self.scale)


@operator
class SelectExperiences:
    """The experience of the named policies alone: a `MultiAgentBatch` of theirs, with all its env steps (M3).

    A policy that has not acted is not in the result. A plain batch is that of the policy "default_policy" and
    passes if that is named.

    Args:
        policy_ids: Names of the policies.

    Raises: SchemaError for a plain batch where "default_policy" is not named.

    >>> both = MultiAgentBatch({"cat": Batch(reward=np.ones(4)), "mouse": Batch(reward=np.ones(8))}, env_steps=4)
    >>> SelectExperiences(["mouse"])(both)
    MultiAgentBatch[4 env steps](mouse=Batch[8](reward=float64[8]))
    """

    provides = ()
    policy_ids: tuple[str, ...] = attrs.field(converter=_names, validator=attrs.validators.min_len(1))
    pure = True

    def __call__(self, batch: _Experience) -> _Experience:
        if isinstance(batch, MultiAgentBatch):
            return batch.select(self.policy_ids)
        if DEFAULT_POLICY not in self.policy_ids:
            raise SchemaError(
                f"SelectExperiences({list(self.policy_ids)}) got {batch!r}, which is that of the one policy "
                f"{DEFAULT_POLICY!r}; name it, or let the workers act with the policies {', '.join(self.policy_ids)}"
            )
        return batch
