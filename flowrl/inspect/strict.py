"""A plan in its most debuggable form: one item in flight, in one thread, and every item checked on every edge."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.engine.graph import graph, paths, rebuilt
from flowrl.engine.merge import Fork
from flowrl.engine.operator import describe
from flowrl.engine.schema import Schema, mismatches
from flowrl.engine.stages import Stage
from flowrl.errors import PlanError, SchemaError
from flowrl.inspect.check import examine
from flowrl.testing import same

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan


@attrs.frozen
class EdgeCheck:
    """A tap that refuses an item that does not fit the schema predicted by `plan.check()` for its edge.

    Raises:
        SchemaError: the item does not fit; names the edge, and for each column the expected and the actual value.
    """

    hidden: ClassVar[bool] = True
    edge: str
    expected: Schema

    def __call__(self, item: Any) -> None:
        problems = mismatches(item, self.expected)
        if problems:
            raise SchemaError(f"on the edge {self.edge}: {'; '.join(problems)}")


@attrs.define(eq=False)
class Shared:
    """The newest items of a fork, each with a copy from when its first reader got it, and the readers that got it."""

    fork: str
    readers: int
    max_lag: int
    _items: dict[int, tuple[Any, Any, list[str]]] = attrs.field(factory=dict)

    def got(self, item: Any, reader: str) -> None:
        """Note that a reader gets an item.

        Raises:
            PlanError: it, or one that all readers have got, was changed in place.
        """
        with suppress(Exception):  # what cannot be copied cannot be compared
            self._items.setdefault(id(item), (item, copy.deepcopy(item), []))
        for key, (given, before, readers) in list(self._items.items()):
            if (given is item or len(readers) >= self.readers) and not same(given, before):
                raise PlanError(
                    f"an item of {self.fork} was changed in place behind {' or '.join(readers)}, and all its readers "
                    f"share it: return a changed copy, in this case of {describe(before)}"
                )
            if given is item:
                readers.append(reader)
            elif len(readers) >= self.readers or len(self._items) > self.max_lag + 1:
                del self._items[key]


@attrs.frozen
class ReaderCheck:
    """A tap that refuses items that were changed in place behind a reader of their fork."""

    hidden: ClassVar[bool] = True
    reader: str
    shared: Shared

    def __call__(self, item: Any) -> None:
        self.shared.got(item, self.reader)


def strict(plan: Plan) -> Plan:
    """The plan without threads, with one request and one item ahead at a time, and a check on every known edge.

    What the readers of a fork get is compared with a copy, so that a change in place is found.
    """
    plan = rebuilt(plan, _one_at_a_time)
    by_id, schemas = paths(plan), examine(plan).schemas
    readers: dict[str, list[str]] = {path: [] for path in by_id.values()}
    for node in graph(plan):
        for upstream in node.inputs:
            readers[by_id[id(upstream)]].append(by_id[id(node)])
    forks = {by_id[id(node)]: node.op for node in graph(plan) if isinstance(node.op, Fork)}
    for path, schema in schemas.items():
        if schema.columns or schema.policies:
            to = ", ".join(readers[path]) or "the end of the plan"
            plan = plan.tap(path, EdgeCheck(f"{path} -> {to}", schema), site="flowrl run --debug")
    for fork, op in forks.items():
        shared = Shared(fork, len(readers[fork]), op.max_lag)
        for reader in readers[fork]:
            plan = plan.tap(reader, ReaderCheck(reader, shared), site="flowrl run --debug")
    return plan


def _one_at_a_time(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
    op = node.op
    if isinstance(op, Stage):
        op = attrs.evolve(node.op, **op.one_at_a_time)
    return attrs.evolve(node, inputs=inputs, op=op)
