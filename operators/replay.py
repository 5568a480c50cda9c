"""Storing experience and drawing from it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from flowrl.context import Context
from flowrl.data import Batch, PrioritizedReplayBuffer, Store
from flowrl.errors import PlanError, SchemaError
from flowrl.operator import context, operator, state
from flowrl.plan import Plan
from flowrl.schema import Schema
from flowrl.stages import BLOCKED

NOT_RAW = "rewards are stored raw, and scaled by the newest statistics (O1): put NormalizeRewards after what draws them"


def _is_store(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, Store):
        raise PlanError(f"{type(op).__name__} needs a ReplayBuffer, got {buffer!r}")


@operator
class StoreToReplay:
    """Adds each batch `[T, N, ...]` or `[B, ...]` to a buffer and passes it on; lists to an `ObjectReplayBuffer`.

    Blocks when: the buffer's rate limiter waits for training. Counts: inserted (rows, or objects).
    """

    buffer: Store = attrs.field(validator=_is_store)
    context: Context = context()
    _waits_with: int = attrs.field(default=0, init=False, repr=False)

    @property
    def requires(self) -> tuple[str, ...]:
        return self.buffer.requires

    def schema(self, given: Schema) -> Schema:
        if "normalized_rewards" in given.words:
            raise SchemaError(NOT_RAW)
        return given

    @property
    def into(self) -> Store:
        return self.buffer

    def ready(self, item: Any) -> bool:
        self._waits_with = self.buffer.rows_of(item)
        return self.buffer.can_insert(self._waits_with)

    def why(self) -> str:
        return self.buffer.why_insert(self._waits_with)

    def __call__(self, item: Any) -> Any:
        self.buffer.add(item)
        self.context.count("inserted", self.buffer.rows_of(item))
        return item


@operator
class Sampled:
    """Source of what a buffer draws: batches `[batch_size, ...]` of rows, `[T, batch_size, ...]` of sequences or
    episodes, lists of objects.

    Blocks when: the buffer is empty, its limits allow nothing, or its rate limiter waits for experience.
    Counts: sampled (rows without padding, or objects). Records: uses and staleness (means of a batch), where they are
    tracked.
    """

    buffer: Store = attrs.field(validator=_is_store)
    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        """What the buffer gives of what was put in: an older policy may have collected it."""
        limiter, most = self.buffer.limiter, self.buffer.declared_rows(self.batch_size)
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
    def out_of(self) -> Store:
        return self.buffer

    @property
    def owes(self) -> tuple[str, ...]:
        return ("priorities",) if isinstance(self.buffer, PrioritizedReplayBuffer) else ()

    def pull(self) -> Any:
        if not self.buffer.can_sample(self.batch_size):
            return BLOCKED
        drawn = self.buffer.sample(self.batch_size)
        self.context.count("sampled", self.buffer.rows_of(drawn))
        for name in self.buffer.tracked:
            if name in drawn:
                self.context.record(name, float(drawn[name].mean()))
        return drawn

    def why(self) -> str:
        return self.buffer.why_sample(self.batch_size)


def Replay(buffer: Store, batch_size: int = 32) -> Plan:
    """What a buffer draws, for ever: so many rows, sequences, episodes or objects each. See `Sampled`."""
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
    fraction the whole part is emitted as soon as it is due: 0.5 gives one batch after every second. What is replayed is
    the batch itself, not a copy: what comes after must not write into it.

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
        if "normalized_rewards" in given.words:
            raise SchemaError(NOT_RAW)
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
