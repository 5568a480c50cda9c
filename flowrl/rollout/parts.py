"""The part of a plan that runs on workers, as what is sent to them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import attrs

from flowrl.errors import PlanError
from flowrl.operator import resources
from flowrl.paths import graph, rebuilt
from flowrl.pickling import pack

if TYPE_CHECKING:
    from flowrl.plan import Plan


def packed(plan: Plan, paths: Sequence[str]) -> bytes:
    """A part of a plan as bytes; `paths` are its operators', in the order of `graph`.

    Raises:
        PlanError: an operator holds what belongs to this process, such as a buffer, or cannot be pickled; which one.
    """
    for node, path in zip(graph(plan), paths):
        for resource in resources(node.op) if node.kind != "tap" else ():
            raise PlanError(
                f"{path} ({node.site}) runs on the workers, but it holds the {type(resource).__name__} of this "
                f"process, which they have no part in: put it behind the gather{_without(node)}"
            )
        pack(node.op, f"{path} ({node.site})")
    return pack(rebuilt(plan, lambda node, inputs: attrs.evolve(node, inputs=inputs, on=None)), "the workers' part")


def unpacked(given: bytes) -> Plan:
    """The part of a plan again."""
    return cast("Plan", pickle.loads(given))


def _without(node: Plan) -> str:
    field = next((f for f in attrs.fields(type(node.op)) if f.name == "workers"), None) if _is_operator(node) else None
    optional = field is not None and field.default is None
    return f", or leave the workers out, {type(node.op).__name__}()" if optional else ""


def _is_operator(node: Plan) -> bool:
    return bool(getattr(node.op, "__flowrl_operator__", False))
