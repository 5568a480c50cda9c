"""Storing experience and drawing from it again: in a buffer, or in several that work while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from flowrl.data import Batch, MixedReplay, PrioritizedReplayBuffer, ReplayActors, Store
from flowrl.data.columns import PLACE
from flowrl.engine.context import Context
from flowrl.engine.futures import Future
from flowrl.engine.operator import context, operator, runtime, state
from flowrl.engine.plan import Plan
from flowrl.engine.schema import Schema
from flowrl.engine.stages import BLOCKED, WAITING, Signal
from flowrl.engine.workers import wait_for
from flowrl.errors import PlanError, SchemaError

#: Words of rewards that are no longer those of the environment, and why they are not stored.
NOT_RAW = {
    "normalized_rewards": "rewards are stored raw, and scaled by the newest statistics (O1): put NormalizeRewards "
    "after what draws them",
    "combined_rewards": "rewards are stored raw, and what a model says of them is that of the newest one (O1): put "
    "EstimateReward and CombineRewards after what draws them",
}


def _is_store(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, Store):
        raise PlanError(f"{type(op).__name__} needs a ReplayBuffer, got {buffer!r}")


def check_raw(given: Schema) -> None:
    """Refuse rewards to be stored that are not those of the environment."""
    for word in NOT_RAW.keys() & given.words:
        raise SchemaError(NOT_RAW[word])


def _takes_items(op: Any, attribute: Any, buffer: Any) -> None:
    _is_store(op, attribute, buffer)
    if isinstance(buffer, MixedReplay):
        raise PlanError(f"{buffer!r} is drawn from only: store into one of its parts, {' or '.join(buffer.names)}")


def _mixed(buffer: Store, workers: int) -> str:
    kind = "ReplayActors" if buffer.streams > 1 else type(buffer).__name__
    return (
        f"its items are fragments of {workers} workers in turn. What {kind} draws are steps that follow one another in "
        f"a worker's fragments, and it keeps those of {buffer.streams} apart: take ReplayActors(..., num_shards="
        f"{workers}), which is a store for each worker, in this process unless remote=True; or mode='bulk_sync', which "
        "puts fragments side by side; or store what is whole, after Episodes or Unroll"
    )


@operator
class StoreToReplay:
    """Adds each batch `[T, N, ...]` or `[B, ...]` to a buffer and passes it on; lists to an `ObjectReplayBuffer`.

    With `ReplayActors` items may be `Remote`: they go to their shard from where they are. It waits for room where
    `max_items` or `max_bytes` are on their way to the shards.

    Blocks when: the buffer's rate limiter waits for training. Counts: inserted (rows, or objects).
    """

    buffer: Store = attrs.field(validator=_takes_items)
    context: Context = context()
    _waits_with: int = runtime(default=0)

    @property
    def requires(self) -> tuple[str, ...]:
        return self.buffer.requires

    def schema(self, given: Schema) -> Schema:
        check_raw(given)
        if self.buffer.in_order and given.in_turn > self.buffer.streams and "mask" not in given.columns:
            raise SchemaError(_mixed(self.buffer, given.in_turn))
        return given

    @property
    def into(self) -> Store:
        return self.buffer

    @property
    def takes_remote(self) -> bool:
        return self.buffer.takes_remote

    def ready(self, item: Any) -> bool | Signal:
        self._waits_with = self.buffer.rows_of(item)
        if not self.buffer.can_insert(self._waits_with):
            return False
        return WAITING if self.buffer.is_full(item) else True

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

    Batches are emitted as they arrive, those asked for first before others that are there.

    Args:
        in_flight: How many are asked for at a time, so that the next one is there when it is pulled. More than one is
            for `ReplayActors`, whose shards work meanwhile: it is drawn before what was added last, and before what was
            last learned.

    Blocks when: the buffer is empty, its limits allow nothing, or its rate limiter waits for experience.
    State: what has arrived and was not emitted; taking a state waits for what is on its way.
    Counts: sampled (rows without padding, or objects). Records: uses and staleness (means of a batch), where they are
    tracked.
    """

    endless: ClassVar[bool] = True
    buffer: Store = attrs.field(validator=_is_store)
    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    in_flight: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    context: Context = context()
    arrived: list[Any] = state(factory=list)
    _asked: list[Future[Any]] = runtime(factory=list)

    def schema(self, *given: Schema) -> Schema:
        """What the buffer gives of what was put in, or into each of its parts; an older policy may have made it."""
        most = self.buffer.declared_rows(self.batch_size)
        rows = "" if most == self.batch_size else f", which is up to {most} rows"
        for store, share in self.buffer.drawn_from(self.batch_size):
            limiter = store.limiter
            if limiter is not None and store.declared_rows(share) > limiter.sample_batch:
                raise SchemaError(
                    f"batch_size is {self.batch_size}{rows}, but the buffer's rate limiter was told "
                    f"sample_batch={limiter.sample_batch}: nothing could ever be drawn"
                )
        if most > self.buffer.capacity:
            raise SchemaError(
                f"batch_size is {self.batch_size}{rows}, but the buffer keeps {self.buffer.capacity} rows: every batch "
                "would hold rows several times; take a larger capacity or a smaller batch"
            )
        return self.buffer.schema(*given)

    @property
    def out_of(self) -> Store:
        return self.buffer

    @property
    def owes(self) -> tuple[str, ...]:
        return ("priorities",) if self.buffer.by_priority else ()

    def pull(self) -> Any:
        self._take()
        while len(self.arrived) + len(self._asked) < self.in_flight and self.buffer.can_sample(self.batch_size):
            self._asked.append(self.buffer.ask(self.batch_size))
            self._take()
        if not self.arrived:
            return WAITING if self._asked else BLOCKED
        drawn = self.arrived.pop(0)
        self.context.count("sampled", self.buffer.rows_of(drawn))
        for name in self.buffer.tracked:
            if name in drawn:
                self.context.record(name, float(drawn[name].mean()))
        return drawn

    def _take(self) -> None:
        """Note what has arrived."""
        for future in [future for future in self._asked if future.done()]:
            self._asked.remove(future)
            if (drawn := self.buffer.answered(future)) is not None:
                self.arrived.append(drawn)

    def drain(self) -> None:
        wait_for(self._asked, f"{self.context.path}: batches from {self.buffer!r}")
        self._take()

    def why(self) -> str:
        if self._asked:
            return f"waits for {len(self._asked)} batches from {self.buffer!r}"
        return self.buffer.why_sample(self.batch_size)


def Replay(buffer: Store, batch_size: int = 32, in_flight: int = 1) -> Plan:
    """What a buffer draws, for ever: so many rows, sequences, episodes or objects each. See `Sampled`."""
    return Plan(Sampled(buffer, batch_size, in_flight), name="Replay")


def _has_priorities(op: Any, attribute: Any, buffer: Any) -> None:
    if not (isinstance(buffer, Store) and buffer.by_priority):
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
    buffer: PrioritizedReplayBuffer | ReplayActors | MixedReplay = attrs.field(validator=_has_priorities)
    context: Context = context()

    @property
    def back_to(self) -> PrioritizedReplayBuffer | ReplayActors | MixedReplay:
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
        places = {name: of[name] for name in PLACE if name in of}
        self.context.count("outdated", self.buffer.update_priorities(**places, priority=of.priority))
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
        check_raw(given)
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
