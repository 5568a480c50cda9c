"""Taps that note in a journal, for each item that leaves an operator, a digest of what is in it."""

from __future__ import annotations

from collections import deque
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import attrs

from flowrl.engine.context import Context
from flowrl.engine.graph import graph, paths, readers_of, rebuilt
from flowrl.engine.operator import context, operator
from flowrl.engine.protocols import Array, Columns, has_member
from flowrl.engine.workers.calls import Prefetch
from flowrl.engine.workers.queues import Queue
from flowrl.engine.workers.remote import Remote
from flowrl.errors import PlanError

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

#: Most bytes of a column that are looked at: of a larger one, values at equal distances.
MOST_BYTES = 1 << 13


@operator
class JournalTap:
    """A tap that notes a digest of each item that leaves an operator."""

    hidden: ClassVar[bool] = True
    path: str
    clocked: tuple[str, ...]
    context: Context = context()

    def __call__(self, item: Any) -> Any:
        decisions = self.context.decisions
        if decisions.newest[0] is not item:  # an operator that passes an item on has not changed it
            decisions.newest = item, digest(item, self.clocked)
        decisions.item(self.path, decisions.newest[1])
        return item


def with_notes(plan: Plan) -> Plan:
    """The plan with a tap on every edge that notes its items; they change no result (D4).

    None is where items stay on the workers, who have noted them.

    Raises: PlanError: a thread, of the plan or one that fills a queue, works at a pace of its own.
    """
    by_id, readers = paths(plan), readers_of(plan)
    for node in graph(plan):
        if isinstance(node.op, Prefetch) and node.op.thread:
            raise PlanError(
                f"{by_id[id(node)]} ({node.site}) runs its input in a thread, whose pace a journal does not hold: "
                "leave thread=True out, or the journal"
            )
        if isinstance(queue := node.contract.out_of, Queue) and queue.external:
            raise PlanError(
                f"{by_id[id(node)]} ({node.site}) takes what a thread outside the plan puts into its queue, which a "
                "journal does not hold: fill it by Enqueue in the plan, with external=False, or leave the journal out"
            )
    clocked = tuple(dict.fromkeys(name for node in graph(plan) for name in node.contract.clocked))

    def noted(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        here, behind = attrs.evolve(node, inputs=inputs), readers[id(node)]
        remote = node.kind == "stage" and behind and all(each.contract.takes_remote for each in behind)
        if node.kind in ("fork", "tap") or remote:
            return here
        return here.then(JournalTap(by_id[id(node)], clocked), "tap", default="noted", site=node.site)

    return rebuilt(plan, noted)


def digest(value: Any, clocked: tuple[str, ...] = (), so_far: int = 0) -> int:
    """A checksum of what an item says: numbers, texts and arrays in dicts, batches, lists and attrs classes.

    >>> digest({"loss": 0.5, "seconds": 1.5}, ("seconds",)) == digest({"loss": 0.5, "seconds": 2.5}, ("seconds",))
    True

    Args:
        clocked: Keys of dicts to leave out, since a clock has told their values; or what they begin with, "timers/".
        so_far: The checksum of what is before it.
    """
    kind: Any = type(value)
    how = _kind(kind)
    if how == "array":
        return _of_array(value, so_far)
    if how == "tensor":
        small = value.is_floating_point() and value.element_size() < 4
        return _of_array((value.float() if small else value).numpy(force=True), so_far)
    if how == "simple":
        return crc32(repr(value).encode(), so_far)
    if how == "columns":
        leave_out = clocked if kind is dict else ()
        for name, part in value.items():
            if (encoded := _name(name, leave_out)) is not None:
                so_far = crc32(encoded, so_far)
                of_part: Any = type(part)
                is_array = _kind(of_part) == "array"  # most are: without one more call
                so_far = _of_array(part, so_far) if is_array else digest(part, clocked, so_far)
        return so_far
    if how == "list":
        for part in value:
            so_far = digest(part, clocked, so_far)
        return crc32(b"%d" % len(value), so_far)
    if how == "remote":
        return crc32(b"%d %d" % (value.rows, value.nbytes), so_far)
    if how == "attrs":
        return digest(attrs.asdict(value, recurse=False), clocked, so_far)
    return crc32(kind.__qualname__.encode(), so_far)


@cache
def _kind(kind: type) -> str:
    if issubclass(kind, (int, float, complex, str, bytes, type(None))) and kind.__module__ == "builtins":
        return "simple"
    if issubclass(kind, Columns):
        return "columns"
    if issubclass(kind, Array):
        return "tensor" if has_member(kind, "is_floating_point") else "array"
    if issubclass(kind, (list, tuple, deque)):
        return "list"
    if issubclass(kind, Remote):
        return "remote"
    return "attrs" if attrs.has(kind) else ""


@lru_cache(maxsize=4096)  # the same columns and scalars again and again
def _name(name: Any, clocked: tuple[str, ...]) -> bytes | None:
    """A key's part of a digest; None for one whose value a clock has told."""
    if name in clocked or (isinstance(name, str) and f"{name.partition('/')[0]}/" in clocked):
        return None
    return str(name).encode()


def _of_array(value: Any, so_far: int) -> int:
    """The checksum of its bytes; of a large one's values at equal distances."""
    if value.nbytes > MOST_BYTES:
        value = value.reshape(-1)[:: -(-value.nbytes // MOST_BYTES)]
    if value.dtype.kind == "O":
        return digest(value.tolist(), (), so_far)
    try:
        return crc32(value, so_far)  # most are contiguous: no copy
    except ValueError:
        return crc32(value.tobytes(), so_far)
