"""A plan in its most debuggable form: one item in flight, in one thread, and every item checked on every edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.engine.graph import graph, paths, rebuilt
from flowrl.engine.schema import UNKNOWN, Schema, mismatches
from flowrl.engine.stages import Stage
from flowrl.errors import SchemaError
from flowrl.inspect.check import examine

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


def strict(plan: Plan) -> Plan:
    """The plan without threads, with one request and one item ahead at a time, and a check on every known edge."""
    plan = rebuilt(plan, _one_at_a_time)
    by_id, schemas = paths(plan), examine(plan).schemas
    readers: dict[str, list[str]] = {path: [] for path in by_id.values()}
    for node in graph(plan):
        for upstream in node.inputs:
            readers[by_id[id(upstream)]].append(by_id[id(node)])
    for path, schema in schemas.items():
        if schema != UNKNOWN and schema.columns:
            to = ", ".join(readers[path]) or "the end of the plan"
            plan = plan.tap(path, EdgeCheck(f"{path} -> {to}", schema), site="flowrl run --debug")
    return plan


def _one_at_a_time(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
    op = node.op
    if isinstance(op, Stage):
        op = attrs.evolve(node.op, **op.one_at_a_time)
    return attrs.evolve(node, inputs=inputs, op=op)
