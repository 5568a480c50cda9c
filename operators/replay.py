"""Storing experience and drawing from it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from flowrl.context import Context
from flowrl.data import Batch, ObjectReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer, Store
from flowrl.errors import PlanError, SchemaError
from flowrl.operator import context, operator, state
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
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            drawn = drawn.having(weight="float32[B]")
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

    @property
    def owes(self) -> tuple[str, ...]:
        return ("priorities",) if isinstance(self.buffer, PrioritizedReplayBuffer) else ()

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


def _has_priorities(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, PrioritizedReplayBuffer):
        raise PlanError(f"{type(op).__name__} needs a PrioritizedReplayBuffer, got {buffer!r}")


@operator
class UpdatePriorities:
    """Tells the buffer how much there was to learn from the rows that it gave.

    Items are what `TrainOneStep` says of them: they pass without their `priorities`.

    Counts: outdated (rows overwritten since they were drawn, whose priorities the buffer drops, P4).
    Raises: SchemaError for scalars without priorities.
    """

    requires: ClassVar[Mapping[str, str]] = {
        "priorities": "draw the rows with Replay from a PrioritizedReplayBuffer, and learn from them with TrainOneStep "
        "and a policy whose loss reports priorities, as DQN's does"
    }
    consumes = ("priorities",)
    provides = ()
    buffer: PrioritizedReplayBuffer = attrs.field(validator=_has_priorities)
    context: Context = context()

    @property
    def back_to(self) -> PrioritizedReplayBuffer:
        return self.buffer

    def schema(self, given: Schema) -> Schema:
        return given.without("priorities")

    def __call__(self, scalars: dict[str, Any]) -> dict[str, Any]:
        if not scalars:  # of a batch without rows
            return scalars
        if "priorities" not in scalars:
            raise SchemaError(
                f"UpdatePriorities got {', '.join(scalars)} and no priorities: {self.requires['priorities']}"
            )
        of: Batch = scalars["priorities"]
        self.context.count("outdated", self.buffer.update_priorities(of.index, of.generation, of.priority))
        return {name: value for name, value in scalars.items() if name != "priorities"}


@operator
class MixInReplay:
    """Fresh batches, and after each of them `ratio` of the batches before it, on average: for `combine`.

    Batches are drawn uniformly and whole, so fragments `[T, N, ...]` stay in order of time, as V-trace needs them. Of a
    fraction the whole part is emitted as soon as it is due: 0.5 gives one batch after every second.

    Args:
        slots: Batches kept, the newest ones.
        ratio: Batches replayed for each fresh one.

    Emits: lists of batches, the fresh one first. State: the batches kept, what is due. Counts: sampled (rows replayed).
    Source: Espeholt et al. 2018, "IMPALA", section 5.2.2.
    """

    verb = "combine"
    requires = ("experience",)
    slots: int = attrs.field(validator=attrs.validators.ge(1))
    ratio: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    kept: list[Batch] = state(factory=list)
    due: float = state(default=0.0)
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return given.without("on_policy").having("replayed")

    def __call__(self, batch: Batch) -> list[Batch]:
        mixed = [batch]
        if self.kept:
            self.due += self.ratio
            draws = self.context.generator("replayed").integers(len(self.kept), size=int(self.due))
            self.due -= len(draws)
            mixed += [self.kept[number] for number in draws]
            self.context.count("sampled", sum(each.rows for each in mixed[1:]))
        self.kept = [*self.kept, batch][-self.slots :]
        return mixed
