"""The names that keep several learners of a plan apart in its results: `loss/ppo`, `updates/dqn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.graph import common_branch, graph
from flowrl.engine.merge import Concurrent, Sequential
from flowrl.engine.protocols import WorkersContract

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan


@attrs.frozen
class Labels:
    """Names of learners; empty for a plan with fewer than two.

    Args:
        operators: By the `id` of each learning operator.
        branches: By the `id` of each merge where scalars of different learners meet, one per branch; "" for a branch
            whose items keep their names.
    """

    operators: Mapping[int, str] = attrs.field(factory=dict)
    branches: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)


def labels_of(plan: Plan, paths: Mapping[int, str]) -> Labels:
    """The labels of a plan. Operators that train one policy are one learner, named by the last of their paths."""
    nodes = graph(plan)
    learners = {id(node): learner for node in nodes if (learner := _learner(node)) is not None}
    last = {id(learner): paths[node] for node, learner in learners.items()}
    if len(last) < 2:
        return Labels()
    names = dict(zip(last, _distinct(list(last.values()))))
    operators = {node: names[id(learner)] for node, learner in learners.items()}
    branches: dict[int, tuple[str, ...]] = {}
    emits: dict[int, set[str]] = {}  # the learners whose scalars an operator emits
    named: set[int] = set()  # ... with their names
    for node in nodes:
        if id(node) in operators:
            emits[id(node)] = {operators[id(node)]}
            continue
        outputs = node.op.output_indexes if isinstance(node.op, (Concurrent, Sequential)) else range(len(node.inputs))
        of = [emits[id(branch)] if i in outputs else set[str]() for i, branch in enumerate(node.inputs)]
        emits[id(node)] = set[str]().union(*of)
        if isinstance(node.op, (Concurrent, Sequential)) and len(emits[id(node)]) > 1:
            branches[id(node)] = tuple(
                min(each) if len(each) == 1 and id(branch) not in named else "" for each, branch in zip(of, node.inputs)
            )
            named.add(id(node))
        elif any(id(branch) in named for branch in node.inputs):
            named.add(id(node))
    return Labels(operators, branches)


def _learner(node: Plan) -> Any:
    """What an operator trains; None if it does not learn. An operator that does not say so trains itself."""
    if node.contract.learns is not None or "scalars" not in (node.contract.provides or ()):
        return node.contract.learns
    return node if node.on is None else WorkersContract(node.on).policy


def _distinct(paths: Sequence[str]) -> list[str]:
    """The shortest beginnings that differ, without the parts that all share.

    >>> _distinct(["train.ppo.TrainOneStep", "train.dqn.learn.TrainOneStep"])
    ['ppo', 'dqn']
    >>> _distinct(["TrainOneStep", "TrainOneStep-2"])
    ['TrainOneStep', 'TrainOneStep-2']
    """
    shared = len(common_branch(list(paths)))
    rest = [path[shared:].split(".") for path in paths]
    found = []
    for path in rest:
        sizes = (n for n in range(1, len(path)) if sum(other[:n] == path[:n] for other in rest) == 1)
        found.append(".".join(path[: next(sizes, len(path))]))
    return found
