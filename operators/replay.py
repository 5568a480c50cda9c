"""Storing experience and drawing from it again."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.context import Context
from flowrl.data import Batch, ObjectReplayBuffer, ReplayBuffer, Store
from flowrl.errors import PlanError, SchemaError
from flowrl.operator import context, operator
from flowrl.plan import Plan
from flowrl.schema import Schema
from flowrl.stages import BLOCKED, Signal


def _is_buffer(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, Store):
        raise PlanError(f"{type(op).__name__} needs a ReplayBuffer, got {buffer!r}")


def _rows(item: Any) -> int:
    """What a store counts: the rows of a batch, the objects of a list."""
    return int(item.rows) if hasattr(item, "rows") else len(item) if isinstance(item, (list, tuple)) else 1


@operator
class StoreToReplay:
    """Adds each batch `[T, N, ...]` or `[B, ...]` to a buffer and passes it on; lists to an `ObjectReplayBuffer`.

    Blocks when: the buffer's rate limiter waits for training. Counts: inserted (rows, or objects).
    """

    buffer: Store = attrs.field(validator=_is_buffer)
    context: Context = context()
    _waits_with: int = attrs.field(default=0, init=False, repr=False)

    @property
    def requires(self) -> tuple[str, ...]:
        return () if isinstance(self.buffer, ObjectReplayBuffer) else ("experience",)

    @property
    def into(self) -> Store:
        return self.buffer

    def ready(self, batch: Any) -> bool:
        self._waits_with = _rows(batch)
        return self.buffer.can_insert(self._waits_with)

    def why(self) -> str:
        return self.buffer.why_insert(self._waits_with)

    def __call__(self, batch: Any) -> Any:
        self.buffer.add(batch)
        self.context.count("inserted", _rows(batch))
        return batch


@operator
class Sampled:
    """Source of batches `[batch_size, ...]` drawn from a buffer.

    Blocks when: the buffer is empty, or its rate limiter waits for experience. Counts: sampled (rows).
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
        return drawn.having(discount="float32[B]") if "terminated" in given.columns else drawn

    @property
    def out_of(self) -> ReplayBuffer:
        return self.buffer

    def pull(self) -> Batch | Signal:
        if not self.buffer.can_sample(self.batch_size):
            return BLOCKED
        self.context.count("sampled", self.batch_size)
        return self.buffer.sample(self.batch_size)

    def why(self) -> str:
        return self.buffer.why_sample(self.batch_size)


@operator
class SampledObjects:
    """Source of lists of `batch_size` objects drawn from an `ObjectReplayBuffer`.

    Blocks when: the buffer is empty, or its rate limiter waits for objects. Counts: sampled (objects).
    """

    buffer: ObjectReplayBuffer
    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        """Lists of what was put in as lists."""
        return given

    @property
    def out_of(self) -> ObjectReplayBuffer:
        return self.buffer

    def pull(self) -> list[Any] | Signal:
        if not self.buffer.can_sample(self.batch_size):
            return BLOCKED
        self.context.count("sampled", self.batch_size)
        return self.buffer.sample(self.batch_size)

    def why(self) -> str:
        return self.buffer.why_sample(self.batch_size)


def Replay(buffer: ReplayBuffer | ObjectReplayBuffer, batch_size: int = 32) -> Plan:
    """Batches `[batch_size, ...]`, or lists of objects, drawn from a buffer, for ever. See `Sampled`."""
    if isinstance(buffer, ObjectReplayBuffer):
        return Plan(SampledObjects(buffer, batch_size), name="Replay")
    return Plan(Sampled(buffer, batch_size), name="Replay")
