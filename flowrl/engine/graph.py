"""The names of operators in a plan, and finding operators by name: `train.TrainOneStep`, `TrainOneStep`, `*Step`."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowrl.errors import PlanError, did_you_mean

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

#: Kinds of nodes that connect streams; the others are sources and transforms, including "tap".
WIRING = ("stage", "fork")


def graph(plan: Plan) -> list[Plan]:
    """All operators of a plan, each once, inputs before their readers."""
    ordered: list[Plan] = []
    seen: set[int] = set()
    stack = [plan]
    while stack:  # no recursion, so that a plan may have any depth
        missing = [upstream for upstream in stack[-1].inputs if id(upstream) not in seen]
        if missing:
            stack.append(missing[0])
            continue
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            ordered.append(node)
    return ordered


def rebuilt(plan: Plan, change: Callable[[Plan, tuple[Plan, ...]], Plan]) -> Plan:
    """A plan with each node replaced by `change(node, its new inputs)`."""
    new: dict[int, Plan] = {}
    for node in graph(plan):
        new[id(node)] = change(node, tuple(new[id(upstream)] for upstream in node.inputs))
    return new[id(plan)]


def is_hidden(plan: Plan) -> bool:
    """Whether a node is a tap that trees and pictures leave out."""
    return plan.kind == "tap" and plan.contract.hidden


def paths(plan: Plan) -> dict[int, str]:
    """The path of each operator by `id`: its branches and its name.

    A name is explicit, or that of the function or class with an ordinal among equal names in the same
    branch. Taps are numbered last, so they change no other name. An operator that several readers of a fork
    share belongs to the branch that they have in common.
    """
    ordered = graph(plan)
    inside: dict[int, list[str]] = {id(plan): [""]}
    for node in reversed(ordered):
        branch = common_branch(inside[id(node)])
        for i, upstream in enumerate(node.inputs):
            deeper = f"{branch}{node.branches[i]}." if node.branches else branch
            inside.setdefault(id(upstream), []).append(deeper)
    taken = {common_branch(inside[id(node)]) + node.name for node in ordered if node.explicit}
    result = {}
    for node in sorted(ordered, key=lambda node: node.kind == "tap"):
        path = common_branch(inside[id(node)]) + node.name
        if not node.explicit:
            base, ordinal = path, 1
            while path in taken:
                ordinal += 1
                path = f"{base}-{ordinal}"
            taken.add(path)
        result[id(node)] = path
    return result


def checked_name(name: Any, of: str) -> str:
    """A name that the user gave.

    Raises:
        PlanError: it cannot be a part of a path.
    """
    if not isinstance(name, str) or not name:
        raise PlanError(f"a name of {of} is a text, got {name!r}")
    if set(name) & set(".*?[]"):
        raise PlanError(f"the name {name!r} has a character that paths and globs are made of: . * ? [ ]")
    return name


def select(plan: Plan, where: str) -> Plan:
    """The one operator that a full path, a last part or a glob names.

    Raises:
        PlanError: for several hits, listing them, or none, with the closest name.
    """
    if not isinstance(where, str):
        raise PlanError(f"an operator is found by its path, its name or a glob, got {where!r}")
    by_id = paths(plan)
    nodes = [(by_id[id(node)], node) for node in graph(plan)]
    for match in (
        lambda path: path == where,
        lambda path: path.rpartition(".")[2] == where,
        lambda path: matches(path, where),
    ):
        hits = [(path, node) for path, node in nodes if match(path)]
        if len(hits) == 1:
            return hits[0][1]
        if hits:
            listed = ", ".join(path for path, _ in hits)
            raise PlanError(f"{where!r} names {len(hits)} operators: {listed}; give a full path")
    raise PlanError(f"no operator is named {where!r}; {did_you_mean(where, [path for path, _ in nodes])}")


def matches(path: str, pattern: str) -> bool:
    """Whether a glob matches a path or its last part."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path.rpartition(".")[2], pattern)


def check_graph(plan: Plan) -> None:
    """Refuse a plan that cannot run, when its last node is added.

    Raises:
        PlanError: a stream is read twice (F5), two explicit names are equal, or a merge has a branch that is
            still on the workers.
    """
    for upstream in plan.inputs:
        if not isinstance(upstream, type(plan)):
            raise PlanError(f"{plan.name} joins plans, got {upstream!r}")
    if len(plan.inputs) > 1:
        for branch, upstream in zip(plan.branches, plan.inputs):
            if upstream.on is not None:
                raise PlanError(
                    f"{plan.name}: branch {branch} ends with {upstream.name} on the workers ({upstream.site}); "
                    "end it with gather_sync() or gather_async()"
                )
        _check_read_once(plan)
    if plan.explicit or len(plan.inputs) > 1:
        explicit: dict[str, Plan] = {}
        for node in graph(plan):
            if node.explicit and node.name in explicit:
                raise PlanError(
                    f"two operators are named {node.name!r}: at {explicit[node.name].site} and at {node.site}"
                )
            if node.explicit:
                explicit[node.name] = node


def _check_read_once(plan: Plan) -> None:
    reader: dict[int, Plan] = {}
    for node in graph(plan):
        for upstream in node.inputs:
            other = reader.setdefault(id(upstream), node)
            # A fork is read by its readers; a merge may not list one stream twice either.
            if (other is not node or node.inputs.count(upstream) > 1) and upstream.kind != "fork":
                raise PlanError(
                    f"the stream of {upstream.name} ({upstream.site}) is read twice, by {other.name} "
                    f"({other.site}) and by {node.name} ({node.site}); fork it with duplicate(n)"
                )


def common_branch(branches: list[str]) -> str:
    """The innermost branch that contains all of several branches or paths, with a dot at its end."""
    levels = zip(*(branch.split(".")[:-1] for branch in branches))
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, levels)
    return "".join(f"{level[0]}." for level in shared)
