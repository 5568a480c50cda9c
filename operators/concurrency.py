"""Branches of a plan that run concurrently or in sequence, and queues between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from flowrl.engine.operator import operator, state
from flowrl.engine.plan import Plan, in_sequence, merge
from flowrl.engine.protocols import BLOCKED, DONE, WAITING
from flowrl.engine.schema import Schema
from flowrl.engine.workers.queues import Queue
from flowrl.errors import PlanError


def Concurrently(
    branches: Sequence[Plan] | Mapping[str, Plan],
    mode: Literal["round_robin", "async"] = "round_robin",
    output_indexes: Sequence[int | str] | None = None,
    round_robin_weights: Sequence[float | str] | None = None,
) -> Plan:
    """Several branches as one stream.

    `round_robin`: each branch in turn emits as many items as its weight; a fraction spreads one item over several
    turns, "*" takes all that are ready (at most 100). It waits for a branch whose workers are busy, and skips a branch
    that only another branch can unblock, so the order is deterministic. `async`: one item per turn from each branch
    that is ready.

    Args:
        branches: Plans, or plans by name; the names are the first part of their operators' paths.
        mode: "round_robin" or "async".
        output_indexes: Branches (numbers or names) whose items are emitted; the others run without output.
            All branches end when these end. None: all.
        round_robin_weights: Items per turn, by branch; None: 1 each.

    >>> from flowrl import from_items
    >>> list(Concurrently([from_items([1, 2, 3]), from_items([4, 5, 6])]))
    [1, 4, 2, 5, 3, 6]
    """
    return merge(branches, "Concurrently", mode, round_robin_weights, output_indexes)


def Sequentially(branches: Mapping[str, Plan], output_indexes: Sequence[int | str] | None = None) -> Plan:
    """Several branches as one stream, one after another: each begins when the one before ends.

    The plan thus includes what must come first: reading demonstrations before learning, or learning from them before
    collecting.

    Args:
        branches: Plans by name, in their order; the names are the first part of their operators' paths.
        output_indexes: Branches (numbers or names) whose items are emitted; the others run without output.

    >>> from flowrl import from_items
    >>> list(Sequentially({"first": from_items([1, 2]), "then": from_items([3])}))
    [1, 2, 3]
    """
    return in_sequence(branches, "Sequentially", output_indexes)


def _is_queue(op: Any, attribute: attrs.Attribute[Queue], value: Any) -> None:
    if not isinstance(value, Queue):
        raise PlanError(
            f"the queue of a plan is a flowrl.Queue, which it can wait for and save, got {value!r}: "
            "use flowrl.Queue(maxsize), or flowrl.Queue(maxsize, external=True) if a thread fills it"
        )


@operator
class Enqueue:
    """Puts each item into a queue and passes it on. Blocks when: the queue is full."""

    provides = ()
    queue: Queue = attrs.field(validator=_is_queue)
    ended: bool = state(default=False)

    @property
    def into(self) -> Queue:
        return self.queue

    def ready(self, item: Any) -> bool:
        return not self.queue.full

    def why(self) -> str:
        return f"the queue is full ({self.queue.maxsize} items)"

    def __call__(self, item: Any) -> Any:
        self.queue.put(item)
        return item

    def finish(self) -> list[Any]:
        self.release()
        return []

    def release(self) -> None:
        if not self.ended:
            self.ended = True
            self.queue.close()


@operator
class Dequeued:
    """Source of the items of a queue; ends when the queue is closed and empty."""

    queue: Queue = attrs.field(validator=_is_queue)

    def schema(self, given: Schema) -> Schema:
        return given

    @property
    def out_of(self) -> Queue:
        return self.queue

    def pull(self) -> Any:
        closed = self.queue.closed  # read first, so that an item put before the end is not missed
        if len(self.queue):
            return self.queue.get()
        if closed:
            return DONE
        return WAITING if self.queue.external else BLOCKED

    def why(self) -> str:
        return "the queue is empty"


def Dequeue(queue: Queue) -> Plan:
    """The items of a queue as a stream. Blocks when: the queue is empty (waits if it is filled from outside)."""
    return Plan(Dequeued(queue), name="Dequeue")
