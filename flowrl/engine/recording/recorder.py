"""The flight recorder: the newest items of each edge, and the state in which the operator behind got the last one."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs

from flowrl.engine.context import Context
from flowrl.engine.graph import emits, graph, paths, readers_of, rebuilt
from flowrl.engine.operator import context, operator, operator_state, runtime
from flowrl.engine.protocols import Array, Columns, Saveable

if TYPE_CHECKING:
    from flowrl.engine.meter import Meter
    from flowrl.engine.plan import Plan

log = logging.getLogger("flowrl")

#: Most bytes of all items kept, beside the newest of each edge, which is always kept.
MOST_BYTES = 64 * 2**20
#: Most items of an edge.
MOST_ITEMS = 16


@attrs.define(eq=False)
class Before:
    """The state of an operator before it got its newest item: its own, what it trains with the state of each, and that
    of its random streams."""

    operator: dict[str, Any]
    learns: list[tuple[Any, Any]]
    seeds: dict[str, Any]

    @classmethod
    def of(cls, meter: Meter) -> Before:
        """Its copy of now."""
        learns = meter.contract.learns
        parts = learns.values() if isinstance(learns, Mapping) else [learns]
        states = [(part, part.state_dict()) for part in parts if isinstance(part, Saveable)]
        return cls(operator_state(meter.op, meter.path), states, meter.context.seeds.state_dict())


class Kept(NamedTuple):
    """An item of an edge: the object, a copy of when it passed, and the bytes of both."""

    bytes: int
    item: Any
    copy: Any


@attrs.define(eq=False)
class Recorder:
    """Copies of the newest items of each edge, oldest first; an edge is named by the operator that its items leave.

    Copies, since an operator may change its item in place: what is kept is what entered it. An item that cannot be
    copied is left out, which is said once for each edge.
    """

    most_bytes: int = MOST_BYTES
    edges: dict[str, deque[Kept]] = attrs.field(factory=dict)
    before: dict[str, Before] = attrs.field(factory=dict)  # by the path of the operator behind the edge
    _untold: set[str] = attrs.field(factory=set)  # edges whose items cannot be kept

    def keep(self, edge: str, item: Any) -> None:
        """Keep an item, and drop the oldest ones of its edge beyond an equal share of the bytes."""
        kept = self.edges.setdefault(edge, deque(maxlen=MOST_ITEMS))
        try:
            kept.append(Kept(2 * bytes_of(item), item, copy.deepcopy(item)))
        except Exception as error:  # each type raises its own kind of error
            if edge not in self._untold:
                self._untold.add(edge)
                words = "%s: a failure behind it can only be told, not repeated: its %s cannot be copied: %s"
                log.warning(words, edge, type(item).__name__, error)
        share = self.most_bytes / len(self.edges)
        while len(kept) > 1 and sum(each.bytes for each in kept) > share:
            kept.popleft()

    def last(self, edge: str, item: Any) -> list[Any] | None:
        """The copies of the items of an edge up to this one; None if it is not there."""
        kept = list(self.edges.get(edge, ()))
        while kept and kept[-1].item is not item:
            kept.pop()
        return [each.copy for each in kept] or None


@operator
class RecorderTap:
    """A tap that records the items of an edge, and the state of the operators that get them next."""

    hidden: ClassVar[bool] = True
    recorder: Recorder = attrs.field(repr=False)
    edge: str
    readers: tuple[str, ...]
    context: Context = context()
    _meters: list[Meter] | None = runtime()

    def __call__(self, item: Any) -> Any:
        self.recorder.keep(self.edge, item)
        if self._meters is None:
            meters = (meter for stage in self.context.stages for meter in stage.meters())
            self._meters = [each for each in meters if each.path in self.readers and each.verb not in ("call", "tap")]
        for meter in self._meters:
            self.recorder.before.pop(meter.path, None)
            with suppress(Exception):  # a state that cannot be copied must not end the run
                self.recorder.before[meter.path] = Before.of(meter)
        return item


def with_recorder(plan: Plan, recorder: Recorder) -> Plan:
    """The plan with a tap on every edge that records its items; they change no result (D4)."""
    by_id, readers = paths(plan), readers_of(plan)

    def recorded(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        here = attrs.evolve(node, inputs=inputs)
        if node.kind in ("fork", "tap"):  # the readers of a fork have its items
            return here
        tap = RecorderTap(recorder, by_id[id(node)], tuple(by_id[id(reader)] for reader in readers[id(node)]))
        return here.then(tap, "tap", default="recorded", site=node.site)

    return rebuilt(plan, recorded)


def recorder_of(plan: Plan) -> Recorder | None:
    """The recorder of a plan, None if it has none."""
    return next((node.op.recorder for node in graph(plan) if isinstance(node.op, RecorderTap)), None)


def edge_before(plan: Plan, path: str) -> str:
    """The operator whose items one at a path gets, "" if it is a source or joins several streams."""
    by_id = paths(plan)
    node = next(node for node in graph(plan) if by_id[id(node)] == path)
    return by_id[id(emits(node.inputs[0]))] if len(node.inputs) == 1 else ""


def bytes_of(item: Any) -> int:
    """The bytes of the arrays of an item.

    >>> bytes_of({"a": [None, 1]})
    0
    """
    if isinstance(item, Array):
        return prod(item.shape) * int(item.dtype.itemsize)
    if isinstance(item, Columns):
        return sum(bytes_of(value) for _, value in item.items())
    return sum(map(bytes_of, item)) if isinstance(item, (list, tuple)) else 0
