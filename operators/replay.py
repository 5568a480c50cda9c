"""Storing experience and drawing from it again."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.context import Context
from flowrl.data import Batch, ReplayBuffer
from flowrl.data.steps import real_steps
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

    buffer: ReplayBuffer = attrs.field(validator=_is_buffer)
    context: Context = context()
    _waits_with: int = attrs.field(default=0, init=False, repr=False)

    @property
    def requires(self) -> tuple[str, ...]:
        return self.buffer.requires

    def schema(self, given: Schema) -> Schema:
        return given

    @property
    def into(self) -> ReplayBuffer:
        return self.buffer

    def ready(self, batch: Batch) -> bool:
        self._waits_with = real_steps(batch)
        return self.buffer.can_insert(self._waits_with)

    def why(self) -> str:
        return self.buffer.why_insert(self._waits_with)

    def __call__(self, batch: Batch) -> Batch:
        self.buffer.add(batch)
        self.context.count("inserted", real_steps(batch))
        return batch


@operator
class Sampled:
    """Source of batches `[batch_size, ...]` drawn from a buffer, or `[T, batch_size, ...]` of sequences or episodes.

    Blocks when: the buffer is empty, or its rate limiter waits for experience. Counts: sampled (rows that count).
    """

    buffer: ReplayBuffer = attrs.field(validator=_is_buffer)
    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        """What the buffer gives of what was put in: an older policy may have collected it."""
        limiter, most = self.buffer.limiter, self.buffer.most_rows(self.batch_size)
        rows = "" if most == self.batch_size else f", which is up to {most} rows"
        if limiter is not None and most > limiter.sample_batch:
            raise SchemaError(
                f"batch_size is {self.batch_size}{rows}, but the buffer's rate limiter was told "
                f"sample_batch={limiter.sample_batch}: nothing could ever be drawn"
            )
        if most > self.buffer.capacity:
            raise SchemaError(
                f"batch_size is {self.batch_size}{rows}, but the buffer keeps {self.buffer.capacity} rows: every batch "
                "would hold rows several times; take a larger capacity or a smaller batch"
            )
        return self.buffer.schema(given)

    @property
    def out_of(self) -> ReplayBuffer:
        return self.buffer

    def pull(self) -> Batch | Signal:
        if not self.buffer.can_sample(self.batch_size):
            return BLOCKED
        batch = self.buffer.sample(self.batch_size)
        self.context.count("sampled", real_steps(batch))
        return batch

    def why(self) -> str:
        return self.buffer.why_sample(self.batch_size)


def Replay(buffer: ReplayBuffer, batch_size: int = 32) -> Plan:
    """Batches drawn from a buffer, for ever: so many rows, sequences or episodes each. See `Sampled`."""
    return Plan(Sampled(buffer, batch_size), name="Replay")
