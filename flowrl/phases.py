"""Phases of a plan, which run one after another: who is in which, and whether they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flowrl.merge import Concurrent, Sequential
from flowrl.paths import graph

if TYPE_CHECKING:
    from flowrl.plan import Plan


def phases(nodes: Iterable[Plan]) -> dict[int, dict[int, int]]:
    """For each operator of a plan the number of its phase in every `Sequentially` that it is in, by `id` of both."""
    nodes = list(nodes)
    found: dict[int, dict[int, int]] = {id(node): {} for node in nodes}
    for of in nodes:
        if isinstance(of.op, Sequential):
            for number, branch in enumerate(of.inputs):
                for node in graph(branch):
                    found[id(node)][id(of)] = number
    return found


def can_end(node: Plan) -> bool:
    """May a stream end by itself? All may, but for those of sources that say that they are `endless`."""
    if hasattr(type(node.op), "done"):
        return True
    if not node.inputs:
        return not getattr(node.op, "endless", False)
    ends = [can_end(branch) for branch in node.inputs]
    if isinstance(node.op, Concurrent):
        ends = [ends[i] for i in node.op.output_indexes]
    return any(ends) if getattr(node.op, "needs_all", False) else all(ends)
