"""Storing experience and drawing from it again."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.context import Context
from flowrl.data import Batch, ReplayBuffer
from flowrl.errors import PlanError, SchemaError
from flowrl.operator import context, operator
from flowrl.plan import Plan
from flowrl.schema import Schema
from flowrl.stages import BLOCKED, Signal


def _is_buffer(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, ReplayBuffer):
        raise PlanError(f"{type(op).__name__} needs a ReplayBuffer, got {buffer!r}")


@operator
class StoreToReplay:
    """Adds each batch `[T, N, ...]` or `[B, ...]` to a buffer and passes it on.

    Blocks when: the buffer's rate limiter waits for training. Counts: inserted (rows).
    """

    requires = ("experience",)
    buffer: ReplayBuffer = attrs.field(validator=_is_buffer)
    context: Context = context()
    _waits_with: int = attrs.field(default=0, init=False, repr=False)

    @property
    def into(self) -> ReplayBuffer:
        return self.buffer

    def ready(self, batch: Batch) -> bool:
        self._waits_with = batch.rows
        return self.buffer.can_insert(self._waits_with)

    def why(self) -> str:
        return self.buffer.why_insert(self._waits_with)

    def __call__(self, batch: Batch) -> Batch:
        self.buffer.add(batch)
        self.context.count("inserted", batch.rows)
        return batch


@operator
class Sampled:
    """Source of batches `[batch_size, ...]` drawn from a buffer.

    Blocks when: the buffer is empty, its limits allow nothing, or its rate limiter waits for experience.
    Counts: sampled (rows). Records: uses and staleness (means of a batch), where the buffer tracks them.
    """

    buffer: ReplayBuffer = attrs.field(validator=_is_buffer)
    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        """What was put in, as rows that an older policy may have collected."""
        limiter = self.buffer.limiter
        if limiter is not None and self.batch_size > limiter.sample_batch:
            raise SchemaError(
                f"batch_size is {self.batch_size}, but the buffer's rate limiter was told "
                f"sample_batch={limiter.sample_batch}: nothing could ever be drawn"
            )
        if self.batch_size > self.buffer.capacity:
            raise SchemaError(
                f"batch_size is {self.batch_size}, but the buffer keeps {self.buffer.capacity} rows: every batch would "
                "hold rows several times; take a larger capacity or a smaller batch"
            )
        drawn = (
            given.rows().without("on_policy").having("experience", "replayed", index="int64[B]", generation="int64[B]")
        )
        if "terminated" in given.columns:
            drawn = drawn.having(discount="float32[B]")
        if self.buffer.track_uses:
            drawn = drawn.having(uses="int64[B]")
            drawn = drawn.having(staleness="int64[B]") if "policy_version" in given.columns else drawn
        return drawn.having(**self._stacks(drawn))

    def _stacks(self, drawn: Schema) -> dict[str, str]:
        """The observations as stacks of frames, where the buffer makes them."""
        k, stacks = self.buffer.frame_stack, {}
        for name, column in drawn.columns.items():
            if k > 1 and not self.buffer.newest_frame_only and name.split(".")[0] in ("obs", "next_obs"):
                stacks[name] = str(column._replace(shape=(*column.shape[:1], k, *column.shape[1:])))
        return stacks

    @property
    def out_of(self) -> ReplayBuffer:
        return self.buffer

    def pull(self) -> Batch | Signal:
        if not self.buffer.can_sample(self.batch_size):
            return BLOCKED
        self.context.count("sampled", self.batch_size)
        batch = self.buffer.sample(self.batch_size)
        for name in ("uses", "staleness") if self.buffer.track_uses else ():
            if name in batch:
                self.context.record(name, float(batch[name].mean()))
        return batch

    def why(self) -> str:
        return self.buffer.why_sample(self.batch_size)


def Replay(buffer: ReplayBuffer, batch_size: int = 32) -> Plan:
    """Batches `[batch_size, ...]` drawn from a buffer, for ever. See `Sampled`."""
    return Plan(Sampled(buffer, batch_size), name="Replay")
