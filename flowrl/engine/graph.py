"""The names of operators in a plan, and finding operators by name: `train.TrainOneStep`, `TrainOneStep`, `*Step`."""

from __future__ import annotations

import fnmatch
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flowrl.errors import PlanError, did_you_mean

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

#: Kinds of nodes that connect streams; the others are sources and transforms, including "tap".
WIRING = ("stage", "fork")
#: Most stages one behind the other, see `flowrl.engine.run.make_room`.
MAX_DEPTH = 50_000


def graph(plan: Plan) -> list[Plan]:
    """All operators of a plan, each once, inputs before their readers."""
    ordered: list[Plan] = []
    seen = {id(plan)}
    stack = [(plan, iter(plan.inputs))]
    while stack:  # no recursion, so that a plan may have any depth
        node, inputs = stack[-1]
        for upstream in inputs:
            if id(upstream) not in seen:
                seen.add(id(upstream))
                stack.append((upstream, iter(upstream.inputs)))
                break
        else:
            stack.pop()
            ordered.append(node)
    return ordered


def rebuilt(plan: Plan, change: Callable[[Plan, tuple[Plan, ...]], Plan]) -> Plan:
    """A plan with each node replaced by `change(node, its new inputs)`."""
    new: dict[int, Plan] = {}
    for node in graph(plan):
        new[id(node)] = change(node, tuple(new[id(upstream)] for upstream in node.inputs))
    return new[id(plan)]


def emits(node: Plan) -> Plan:
    """The operator whose items leave a node, which may be a tap."""
    while node.kind == "tap":
        node = node.inputs[0]
    return node


def readers_of(plan: Plan) -> dict[int, list[Plan]]:
    """The operators that get the items of each one, by `id`; taps are passed over."""
    found: dict[int, list[Plan]] = {id(node): [] for node in graph(plan)}
    for node in graph(plan):
        for upstream in node.inputs if node.kind != "tap" else ():
            found[id(emits(upstream))].append(node)
    return found


def on_policy(plan: Plan) -> dict[int, frozenset[int]]:
    """The readers, by index, whose items reach an operator that needs them `on_policy`, by `id` of the fork (D15)."""
    found: dict[int, set[int]] = {}
    for node in graph(plan):
        for words in node.contract.requires or ():
            names = words.split(" or ")
            before = graph(node) if "on_policy" in names else []
            if any(name in (each.contract.provides or ()) for each in before for name in names):
                continue  # what makes up for their age, such as V-trace
            for each in before:
                if each.kind == "stage" and each.inputs and each.inputs[0].kind == "fork":
                    found.setdefault(id(each.inputs[0]), set()).add(each.op.index)
    return {fork: frozenset(readers) for fork, readers in found.items()}


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
    branch_of: dict[int, str] = {}
    for node in reversed(ordered):
        branch = branch_of[id(node)] = common_branch(inside[id(node)])
        for i, upstream in enumerate(node.inputs):
            deeper = f"{branch}{node.branches[i]}." if node.branches else branch
            inside.setdefault(id(upstream), []).append(deeper)
    taken = {branch_of[id(node)] + node.name for node in ordered if node.explicit}
    ordinals: dict[str, int] = {}
    result = {}
    for node in sorted(ordered, key=lambda node: node.kind == "tap"):
        path = branch_of[id(node)] + node.name
        if not node.explicit:
            base, ordinal = path, ordinals.get(path, 1)
            while path in taken:
                ordinal += 1
                path = f"{base}-{ordinal}"
            ordinals[base] = ordinal
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
    if plan.explicit:
        _check_name(plan)
    if len(plan.inputs) > 1:
        for branch, upstream in zip(plan.branches, plan.inputs):
            if upstream.on is not None:
                raise PlanError(
                    f"{plan.name}: branch {branch} ends with {upstream.name} on the workers ({upstream.site}); "
                    "end it with gather_sync() or gather_async()"
                )
        _check_join(plan)


def depth_of(plan: Plan) -> tuple[int, int]:
    """The operators, and the stages, on the longest way from a source to the end of a plan.

    Raises:
        PlanError: more than `MAX_DEPTH` stages.
    """
    operators = 1 + max((upstream.operators for upstream in plan.inputs), default=0)
    stages = max((upstream.depth for upstream in plan.inputs), default=0)
    fused = bool(plan.inputs) and plan.kind not in WIRING and plan.inputs[0].kind not in ("source", *WIRING)
    if not fused and (stages := stages + 1) > MAX_DEPTH:
        raise PlanError(
            f"{plan.name}: a plan has at most {MAX_DEPTH:,} joins, forks, calls and prefetches one behind the other, "
            "with the operators between two of them as one"
        )
    return operators, stages


def _check_name(plan: Plan) -> None:
    """Compare an explicit name with those before it."""
    node = plan
    while len(node.inputs) == 1:
        node = node.inputs[0]
        if node.explicit and node.name == plan.name:
            raise _twice(node, plan)
    for other in graph(node) if len(node.inputs) > 1 else ():
        if other.explicit and other.name == plan.name:
            raise _twice(other, plan)


def _check_join(plan: Plan) -> None:
    """Compare the readers and the explicit names of the branches that a join joins."""
    reader: dict[int, Plan] = {}
    explicit: dict[str, Plan] = {}
    for node in _joined(plan):
        if node.explicit and explicit.setdefault(node.name, node) is not node:
            raise _twice(node, explicit[node.name])
        for upstream in node.inputs:
            other = reader.get(id(upstream))
            reader[id(upstream)] = node
            if other is not None and upstream.kind != "fork":  # a fork is read by its readers
                raise PlanError(
                    f"the stream of {upstream.name} ({upstream.site}) is read twice, by {other.name} "
                    f"({other.site}) and by {node.name} ({node.site}); fork it with duplicate(n)"
                )


def _joined(plan: Plan) -> Iterator[Plan]:
    """The operators of a join back to the one that all its branches come from, readers before their inputs.

    What is before that one was compared when it was added, so nested joins need not be searched anew.
    """
    seen = {id(plan)}
    heap = [(0, id(plan), plan)]
    while heap:
        node = heapq.heappop(heap)[2]
        yield node
        if not heap and node is not plan:
            return
        for upstream in node.inputs:
            if id(upstream) not in seen:
                seen.add(id(upstream))
                heapq.heappush(heap, (-upstream.operators, id(upstream), upstream))


def _twice(node: Plan, other: Plan) -> PlanError:
    return PlanError(f"two operators are named {node.name!r}: at {node.site} and at {other.site}")


def common_branch(branches: list[str]) -> str:
    """The innermost branch that contains all of several branches or paths, with a dot at its end."""
    levels = zip(*(branch.split(".")[:-1] for branch in branches))
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, levels)
    return "".join(f"{level[0]}." for level in shared)
