"""The names that keep several learners of a plan apart in its results: `loss/ppo`, `updates/dqn`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        voices: By the `id` of each merge before an operator that takes branches apart, one per branch; "" for a branch
            whose items need not say where they come from.
    """

    operators: Mapping[int, str] = attrs.field(factory=dict)
    branches: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)
    voices: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)

    def of_branches(self, merge: Plan) -> tuple[tuple[str, str], ...]:
        """For each branch of a merge its entries in `branches` and `voices`; () if it has none."""
        if id(merge) not in self.branches and id(merge) not in self.voices:
            return ()
        none = ("",) * len(merge.inputs)
        return tuple(zip(self.branches.get(id(merge), none), self.voices.get(id(merge), none)))


def labels_of(plan: Plan, paths: Mapping[int, str]) -> Labels:
    """The labels of a plan. Operators that train one policy are one learner, named by the last of their paths."""
    nodes = graph(plan)
    learners = {id(node): learner for node in nodes if (learner := _learner(node)) is not None}
    last = {id(learner): paths[node] for node, learner in learners.items()}
    names = dict(zip(last, _distinct(list(last.values()))))
    emits: dict[int, set[int]] = {}  # the learners whose scalars an operator emits
    branches: dict[int, tuple[str, ...]] = {}
    named: set[int] = set()  # operators that emit scalars with the names of their learners
    for node in nodes:
        if id(node) in learners:
            emits[id(node)] = {id(learners[id(node)])}
            continue
        of = [emits[id(branch)] if i in _outputs(node) else set[int]() for i, branch in enumerate(node.inputs)]
        emits[id(node)] = set[int]().union(*of)
        if isinstance(node.op, (Concurrent, Sequential)) and len(emits[id(node)]) > 1:
            branches[id(node)] = tuple(
                names[min(each)] if len(each) == 1 and id(branch) not in named else ""
                for each, branch in zip(of, node.inputs)
            )
            named.add(id(node))
        elif any(id(branch) in named for branch in node.inputs):
            named.add(id(node))
    operators = {node: names[id(learner)] for node, learner in learners.items()} if len(last) > 1 else {}
    return Labels(operators, branches, _voices(nodes, paths, emits, branches, last))


def _voices(
    nodes: Sequence[Plan],
    paths: Mapping[int, str],
    emits: Mapping[int, set[int]],
    branches: Mapping[int, tuple[str, ...]],
    last: Mapping[int, str],
) -> dict[int, tuple[str, ...]]:
    """See `Labels`. Branches with the scalars of one learner have one voice, any other branch has its own."""
    found: dict[int, tuple[str, ...]] = {}
    for reader in nodes:
        paths_of: dict[tuple[int, int], str] = {}  # by merge and branch
        merges = list(_merges_before(reader.inputs[0])) if reader.contract.by_branch else []
        for merge in merges:
            for i in _outputs(merge):
                if not branches.get(id(merge), ("",) * len(merge.inputs))[i]:
                    of = emits[id(merge.inputs[i])]
                    paths_of[id(merge), i] = last[next(iter(of))] if len(of) == 1 else paths[id(merge.inputs[i])]
        voices = list(dict.fromkeys(paths_of.values()))
        names = dict(zip(voices, _distinct(voices))) if len(voices) > 1 else {}
        for merge in merges if names else ():
            each = (paths_of.get((id(merge), i), "") for i in range(len(merge.inputs)))
            found[id(merge)] = tuple(names.get(path, "") for path in each)
    return found


def _merges_before(node: Plan) -> Iterator[Plan]:
    """The merges of concurrent branches whose items arrive as they are."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.kind in ("tap", "filter"):
            waiting.append(node.inputs[0])
        elif isinstance(node.op, (Concurrent, Sequential)):
            waiting += [node.inputs[i] for i in _outputs(node)]
            if isinstance(node.op, Concurrent):
                yield node


def _outputs(node: Plan) -> Sequence[int]:
    """The numbers of the inputs whose items an operator emits."""
    return node.op.output_indexes if isinstance(node.op, (Concurrent, Sequential)) else range(len(node.inputs))


def _learner(node: Plan) -> Any:
    """What an operator trains; None if it does not learn. An operator that does not say so trains itself."""
    if node.contract.learns is not None or "scalars" not in (node.contract.provides or ()):
        return node.contract.learns
    return node if node.on is None else WorkersContract(node.on).policy


def learns(plan: Plan) -> bool:
    """Whether a plan has an operator that trains."""
    return any(_learner(node) is not None for node in graph(plan))


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
