"""Storing experience and drawing from it: in one buffer, or in several that work in parallel to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np

from flowrl.data import Batch, MixedReplay, PrioritizedReplayBuffer, ReplayActors, Store
from flowrl.data.columns import PLACE
from flowrl.data.replay.base import PADDED
from flowrl.data.replay.rate_limiter import INSERT_BATCH
from flowrl.data.replay.segments import SpanReplayBuffer
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, runtime, state
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import BLOCKED, WAITING, Signal
from flowrl.engine.schema import Schema
from flowrl.engine.workers.futures import Future
from flowrl.errors import PlanError, SchemaError
from flowrl.policies.protocols import OwnsPolicy, Reanalyses

#: Words for rewards that are no longer raw, and why they must not be stored.
NOT_RAW = {
    "normalized_rewards": "buffers store raw rewards, and the newest statistics scale them (O1): put NormalizeRewards "
    "after Replay",
    "combined_rewards": "buffers store raw rewards, and the newest model adds its own (O1): put "
    "EstimateReward and CombineRewards after Replay",
}


def _is_store(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, Store):
        raise PlanError(f"{type(op).__name__} needs a ReplayBuffer, got {buffer!r}")


def check_raw(given: Schema) -> None:
    """Raise unless the rewards to store are those of the environment."""
    for word in NOT_RAW.keys() & given.words:
        raise SchemaError(NOT_RAW[word])


def _takes_items(op: Any, attribute: Any, buffer: Any) -> None:
    _is_store(op, attribute, buffer)
    if isinstance(buffer, MixedReplay):
        raise PlanError(f"{buffer!r} only draws: store into one of its parts, {' or '.join(buffer.names)}")


def _mixed(buffer: Store, workers: int) -> str:
    kind = "ReplayActors" if buffer.streams > 1 else type(buffer).__name__
    return (
        f"its items are fragments of {workers} workers in turn. {kind} draws consecutive steps "
        f"of a worker, but keeps only the streams of {buffer.streams} apart: take ReplayActors(..., num_shards="
        f"{workers}), one store per worker, in this process unless remote=True; or mode='bulk_sync', which "
        "puts fragments side by side; or store complete episodes or sequences, after Episodes or Unroll"
    )


@operator
class StoreToReplay:
    """Adds each batch `[T, N, ...]` or `[B, ...]` to a buffer and passes it on; lists go to an `ObjectReplayBuffer`.

    With `ReplayActors` items may be `Remote`: they go to their shard directly from where they are. It waits while
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
        if "mask" in given.columns and not self.buffer.takes_padding:
            raise SchemaError(f"its items have padded steps (mask 0), {PADDED}")
        if self.buffer.in_order and given.in_turn > self.buffer.streams and "mask" not in given.columns:
            raise SchemaError(_mixed(self.buffer, given.in_turn))
        limiter, rows = self.buffer.limiter, given.most_rows
        if limiter is not None and rows is not None and rows > limiter.insert_batch:
            raise SchemaError(
                f"an item may have {rows} rows, but the buffer's rate limiter has insert_batch={limiter.insert_batch}: "
                f"it must be at least {rows}; {INSERT_BATCH}"
            )
        return given

    @property
    def into(self) -> Store:
        return self.buffer

    @property
    def takes_remote(self) -> bool:
        return self.buffer.takes_remote

    def ready(self, item: Any) -> bool | Signal:
        rows = self.buffer.rows_of(item)
        fits = self.buffer.can_insert(rows)
        if fits and not self.buffer.is_full(item):
            return True
        self._waits_with = rows
        return WAITING if fits else False

    def why(self) -> str:
        return self.buffer.why_insert(self._waits_with)

    def __call__(self, item: Any) -> Any:
        self.buffer.add(item)
        self.context.count("inserted", self.buffer.rows_of(item))
        return item


@operator
class Sampled:
    """Source of samples of a buffer: batches `[batch_size, ...]` of rows, `[T, batch_size, ...]` of sequences or
    episodes, or lists of objects.

    Batches are emitted as they arrive; of those that have arrived, the earliest request first.

    Args:
        in_flight: Batches requested ahead, so that the next one is ready when pulled. More than one is for
            `ReplayActors`, whose shards work meanwhile: such a batch misses the latest rows and priorities.

    Blocks when: the buffer is empty, its limits allow nothing, or its rate limiter waits for experience.
    State: batches that arrived and were not emitted; taking a state waits for those on their way.
    Counts: sampled (rows without padding, or objects). Records: uses and staleness (means of a batch), if the buffer
    tracks them.
    """

    endless: ClassVar[bool] = True
    buffer: Store = attrs.field(validator=_is_store)
    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    in_flight: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    context: Context = context()
    arrived: list[Any] = state(factory=list)
    _asked: list[Future[Any]] = runtime(factory=list)

    def schema(self, *given: Schema) -> Schema:
        """The schema of the buffer's samples, from the input of its stores; an older policy may have collected them."""
        most = self.buffer.declared_rows(self.batch_size)
        rows = "" if most == self.batch_size else f", up to {most} rows"
        for store, share in self.buffer.drawn_from(self.batch_size):
            limiter = store.limiter
            if limiter is not None and store.declared_rows(share) > limiter.sample_batch:
                raise SchemaError(
                    f"batch_size is {self.batch_size}{rows}, but the buffer's rate limiter has "
                    f"sample_batch={limiter.sample_batch}: it would never allow a draw"
                )
        if most > self.buffer.capacity:
            raise SchemaError(
                f"batch_size is {self.batch_size}{rows}, but the buffer keeps {self.buffer.capacity} rows: every batch "
                "would repeat rows; take a larger capacity or a smaller batch"
            )
        return self.buffer.schema(*given)

    @property
    def out_of(self) -> Store:
        return self.buffer

    @property
    def owes(self) -> tuple[str, ...]:
        return ("priorities",) if self.buffer.by_priority else ()

    def pull(self) -> Any:
        if self._asked:
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
        """Collect the batches that have arrived."""
        for future in self.buffer.arrived(self._asked):
            self._asked.remove(future)
            if (drawn := self.buffer.answered(future)) is not None:
                self.arrived.append(drawn)

    def drain(self) -> None:
        self.buffer.drain(self._asked)
        self._take()

    def why(self) -> str:
        if self._asked:
            return f"waits for {len(self._asked)} batches from {self.buffer!r}"
        return self.buffer.why_sample(self.batch_size)


def Replay(buffer: Store, batch_size: int = 32, in_flight: int = 1) -> Plan:
    """An endless stream of samples of a buffer: batches of rows, sequences, episodes or objects. See `Sampled`."""
    return Plan(Sampled(buffer, batch_size, in_flight), name="Replay")


def _has_priorities(op: Any, attribute: Any, buffer: Any) -> None:
    if not (isinstance(buffer, Store) and buffer.by_priority):
        raise PlanError(f"{type(op).__name__} needs a PrioritizedReplayBuffer, got {buffer!r}")


@operator
class UpdatePriorities:
    """Updates the priorities of the rows that a buffer gave.

    Items are the scalars of `TrainOneStep`; they pass without their `priorities`.

    Counts: outdated (rows overwritten since they were drawn; the buffer drops their priorities, P4).
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
        if not scalars:  # the batch had no rows
            return scalars
        if "priorities" not in scalars:
            raise SchemaError(
                f"UpdatePriorities got {', '.join(scalars)} and no priorities: {self.requires['priorities']}"
            )
        of: Batch = scalars["priorities"]
        places = {name: of[name] for name in PLACE if name in of}
        self.context.count("outdated", self.buffer.update_priorities(**places, priority=of.priority))
        return {name: value for name, value in scalars.items() if name != "priorities"}


def _of_spans(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, SpanReplayBuffer):
        raise PlanError(f"{type(op).__name__} replaces columns of a SequenceReplayBuffer, got {buffer!r}")


@operator
class Reanalyse:
    """Searches drawn steps again with the newest weights, and replaces what the buffer has of their searches.

    Counts: reanalysed (steps), outdated (those overwritten since they were drawn, P4).
    Records: value_shift, the mean change of the searched value.
    Source: Schrittwieser et al. 2021, "Online and offline reinforcement learning by planning with a learned model".
    """

    requires: ClassVar[tuple[str, ...]] = ("obs", "search_policy", "search_value", "index", "generation", "mask")
    workers: OwnsPolicy = attrs.field()
    buffer: SpanReplayBuffer = attrs.field(validator=_of_spans)
    context: Context = context()

    def __attrs_post_init__(self) -> None:
        if not isinstance(policy := self.workers.policy, Reanalyses):
            raise PlanError(f"Reanalyse: {type(policy).__name__} does not search, so nothing can be searched again")

    @property
    def back_to(self) -> SpanReplayBuffer:
        return self.buffer

    def __call__(self, drawn: Batch) -> Batch:
        real = drawn["mask"] != 0
        before = drawn["search_value"][real]
        found = self.workers.policy.reanalysed(drawn.select(["obs"])[real]["obs"])
        fresh = drawn.select(list(found)).map(np.copy)
        fresh[real] = Batch(found)
        self.context.count("outdated", self.buffer.replace(drawn, fresh))
        self.context.count("reanalysed", int(real.sum()))
        self.context.record("value_shift", float(np.abs(found["search_value"] - before).mean()))
        return drawn


@operator
class MixInReplay:
    """Emits each fresh batch, followed by `ratio` earlier batches on average. For `combine`.

    It draws whole batches uniformly, so fragments `[T, N, ...]` stay in order of time, as V-trace needs. Fractions add
    up: 0.5 replays one batch after every second fresh one. It replays the batch itself, not a copy: later operators
    must not write to it.

    Args:
        slots: Number of newest batches to keep.
        ratio: Replayed batches per fresh one.

    Emits: lists of batches, the fresh one first. State: the kept batches, the fraction due.
    Counts: sampled (rows replayed).
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
