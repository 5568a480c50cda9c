"""The worker's side of a plan: it runs its part of the plan and answers with one item at a time."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from math import inf
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, cast

import attrs

from flowrl.engine.context import Context
from flowrl.engine.graph import graph
from flowrl.engine.held import resources
from flowrl.engine.labels import labels_of
from flowrl.engine.operator import is_operator
from flowrl.engine.protocols import Decisions, Observer
from flowrl.engine.run import Run
from flowrl.engine.seeds import SeedTree
from flowrl.engine.workers.accounts import Account, accounts
from flowrl.engine.workers.pickling import pack
from flowrl.errors import PlanError

if TYPE_CHECKING:
    from flowrl.engine.plan import ErrorPolicies, Plan


_ENDED = object()

#: Of an `Answer`.
Fields = tuple[Any, bool, dict[str, int], dict[str, list[Any]], tuple[Any, ...]]

#: Seconds between two accounts that a worker sends with its answers.
ACCOUNT_SECONDS = 0.5


class SubplanRun(Run):
    """The run of a worker's part of a plan.

    It uses the whole plan's paths, learners and error policies, and owns no resource.
    """

    def __init__(
        self, plan: Plan, paths: Sequence[str], context: Context, on_error: ErrorPolicies, learners: Sequence[str] = ()
    ) -> None:
        by_id = {id(node): path for node, path in zip(graph(plan), paths)}
        labels = labels_of(plan, by_id)
        if any(learners):
            named = {id(node): learner for node, learner in zip(graph(plan), learners) if learner}
            labels = attrs.evolve(labels, operators=named)
        self.answers, self._told = 0, -inf  # requests answered; when the account was last sent
        self._begin(plan, by_id, context, on_error, resources={}, labels=labels)

    def held_rows(self) -> int | None:
        """The rows that its operators hold for later items; None if none of them ever does."""
        found = [meter.contract.held_rows for meter in self.meters()]
        rows = [each for each in found if each is not None]
        return sum(rows) if rows else None

    def accounts(self) -> list[Account] | None:
        """The accounts of the part, the first with the number of answers; None if they were sent just now."""
        self.answers += 1
        if (now := clock()) - self._told < ACCOUNT_SECONDS:
            return None
        self._told = now
        mine = accounts(self)
        mine[0].calls = self.answers
        return mine


class BusySpans(Observer):
    """Notes the newest busy spans of the operators of a part, for the answer to each request."""

    def __init__(self, most: int) -> None:
        self._begun, self._spans = 0.0, deque[tuple[str, float, float]](maxlen=most)  # path, beginning and seconds

    def busy(self, path: str, seconds: float) -> None:
        self._spans.append((path, clock() - seconds, seconds))

    def asked(self) -> None:
        self._begun = clock()
        self._spans.clear()

    def tells(self) -> tuple[float, float, list[tuple[str, float, float]]]:
        return self._begun, clock(), list(self._spans)


class SubplanWorker:
    """Base of objects that run the part of a plan before `gather_sync` or `gather_async`.

    Operators find the object as `context.worker`. Random streams differ from worker to worker.
    """

    def __init__(self) -> None:
        self.parts: dict[str, SubplanRun] = {}

    def open_plan(
        self,
        key: str,
        plan: Plan,
        paths: Sequence[str],
        seed: int,
        index: int,
        on_error: ErrorPolicies,
        learners: Sequence[str] = (),
        decisions: Decisions | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Open a part of a plan.

        Args:
            key: Identifies it in later requests.
            paths, learners: The paths of its operators, and the learners that they train, see `flowrl.engine.labels`.
            decisions: What notes or follows its decisions, see `flowrl.engine.recording.journal`.
            observer: Who listens to it.
        """
        decisions = decisions or Decisions()
        context = Context(f"worker{index}/", seeds=SeedTree(seed), worker=self, decisions=decisions, observer=observer)
        self.parts[key] = SubplanRun(plan, paths, context, on_error, learners)

    def pull_plan(self, key: str) -> Fields:
        """One item, or the end, with the counters and records since the last answer, and at times the account.

        Returns: the fields of an `Answer`, whose class would have to be found anew for each answer to another process.
        """
        run = self.parts[key]
        if (observer := run.context.observer) is not None:
            observer.asked()
        item = next(run, _ENDED)
        counters, records = run.context.metrics.take()
        newest, digest = run.context.decisions.newest
        told = (
            run.held_rows(),
            run.accounts(),
            run.context.decisions.answer(),
            digest if newest is item else None,
            None if observer is None else observer.tells(),
        )
        return None if item is _ENDED else item, item is _ENDED, counters, records, told

    def pull_apart(self, key: str) -> tuple[Fields, Any]:
        """Like `pull_plan`, with the item apart from the answer, so that it can stay on the worker."""
        item, done, counters, records, told = self.pull_plan(key)
        return (None, done, counters, records, told), item

    def save_plan(self, key: str) -> dict[str, Any]:
        """The state of the part."""
        return self.parts[key].state_dict()

    def load_plan(self, key: str, state: dict[str, Any]) -> None:
        """Continue from a state of the part."""
        self.parts[key].load_state_dict(state, partial=True)  # the run has compared it with the whole plan

    def close_plan(self, key: str) -> None:
        """Close the part; closing one that is not open does nothing."""
        run = self.parts.pop(key, None)
        if run is not None:
            run.close()


def packed(plan: Plan, paths: Sequence[str]) -> bytes:
    """Pickle a part of a plan; `paths` has its operators' paths, in the order of `graph`.

    Raises:
        PlanError: an operator holds a resource of this process, such as a buffer, or cannot be pickled; names it.
    """
    for node, path in zip(graph(plan), paths):
        for resource in resources(node.op) if node.kind != "tap" else ():
            raise PlanError(
                f"{path} ({node.site}) runs on the workers, but it holds the {type(resource).__name__} of this "
                f"process, which they cannot reach: put it behind the gather{_without(node)}"
            )
        pack(node.op, f"{path} ({node.site})")
    nodes = graph(plan)
    number = {id(node): i for i, node in enumerate(nodes)}
    inputs = [[number[id(upstream)] for upstream in node.inputs] for node in nodes]
    # A list, since pickle calls itself once for each operator of a plan.
    return pack(([attrs.evolve(node, inputs=(), on=None) for node in nodes], inputs), "the workers' part")


def unpacked(data: bytes) -> Plan:
    """Unpickle a part of a plan."""
    nodes, inputs = cast("tuple[list[Plan], list[list[int]]]", pickle.loads(data))
    for i, numbers in enumerate(inputs):
        nodes[i] = attrs.evolve(nodes[i], inputs=tuple(nodes[number] for number in numbers))
    return nodes[-1]


def _without(node: Plan) -> str:
    fields = attrs.fields(type(node.op)) if is_operator(node.op) else ()
    optional = any(field.name == "workers" and field.default is None for field in fields)
    return f", or leave the workers out, {type(node.op).__name__}()" if optional else ""
