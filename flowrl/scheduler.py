"""The run: pulls a plan one step at a time, sleeps on one bell, and knows its whole state between steps."""

from __future__ import annotations

import fnmatch
import logging
import weakref
from collections.abc import Iterator, Mapping
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.calls import Gather
from flowrl.context import Context
from flowrl.errors import CheckpointError, Deadlock, PlanError, Stalled
from flowrl.link import Link
from flowrl.operator import fresh, resources
from flowrl.paths import graph, paths
from flowrl.seeds import SeedTree
from flowrl.stages import BLOCKED, DONE, WAITING, Chain, Signal, Source, Stage

if TYPE_CHECKING:
    from flowrl.plan import Plan

log = logging.getLogger("flowrl")


class Run:
    """A running plan: an iterator over its items, and a context manager.

    It owns its resources (buffers, policies, worker sets) until it is closed. After an error it may be
    pulled again: the item that failed is tried again where that is harmless and left out elsewhere.

    Raises:
        PlanError: the plan's end is still on the workers, or a resource belongs to another open run.
        Deadlock: every branch waits for another one.
        Stalled: nothing happened for `deadline_seconds`.
    """

    _open: ClassVar[weakref.WeakSet[Run]] = weakref.WeakSet()

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        on_error: str | Mapping[str, str] = "stop",
        stall_seconds: float = 60.0,
        deadline_seconds: float = 3600.0,
        prefix: str = "",
        worker: Any = None,
        stream: str = "",
    ) -> None:
        """`prefix`, `worker` and `stream` are for the part of a plan that a worker runs."""
        if plan.on is not None and worker is None:
            raise PlanError(
                f"the plan ends with {plan.name} on the workers ({plan.site}); "
                "end it with gather_sync() or gather_async()"
            )
        self.plan = plan
        self.paths = paths(plan, prefix)
        self.context = Context(path=stream, seeds=SeedTree(seed), worker=worker)
        self.stall_seconds, self.deadline_seconds = stall_seconds, deadline_seconds
        self.wakeups = 0
        self.started = clock()
        self._on_error = _error_policies(plan, self.paths, on_error)
        self._interrupted = False
        self.resources = {} if worker is not None else _resources(plan)
        self._claim()
        self.stages: list[Stage] = []  #: inputs before what they feed
        self._closer = weakref.finalize(self, _close, self.stages, list(self.resources.values()))
        try:
            for name, resource in self.resources.items():
                if hasattr(resource, "start"):
                    resource.start(self.context.at(name))
            self._open_stages()
        except BaseException:
            self.close()
            raise

    # -- pulling

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._interrupted:
            item = self._pull()
            if item.__class__ is not Signal:
                return item
            if item is WAITING:
                self._sleep()
            elif item is DONE:
                raise StopIteration
            elif item is BLOCKED:
                raise Deadlock("\n  ".join(["no branch can go on:", *self._root.stuck()]))
        self._interrupted = False
        raise StopIteration

    def step(self) -> Any:
        """One step of the plan: an item or a `Signal`. Between two steps the state is complete."""
        return self._pull()

    def interrupt(self) -> None:
        """End the iteration at the next step; the run stays open and may be saved or go on. Thread-safe."""
        self._interrupted = True
        self.context.bell.ring()

    def _sleep(self) -> None:
        """Wait for the bell; say what is waited for after `stall_seconds`."""
        asleep, patience = clock(), self.stall_seconds
        while not self.context.bell.wait(min(patience, self.deadline_seconds)):
            waited = clock() - asleep
            words = f"no progress for {waited:.0f} s, waiting for: " + "; ".join(self._root.stuck())
            if waited >= self.deadline_seconds:
                raise Stalled(words)
            log.warning(words)
            patience *= 2  # said less and less often
        self.wakeups += 1

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """The complete state: operators by path, resources, counters, random streams.

        What is in flight is waited for and becomes part of the state; nothing is lost or doubled, and the
        run goes on as if nothing had happened.
        """
        for stage in self.stages:
            stage.drain()
        operators: dict[str, Any] = {}
        for stage in self.stages:
            operators.update(stage.save())
        return {
            "operators": operators,
            "items": {link.path: link.items for link in self.links() if link.verb != "tap"},
            "resources": {name: resource.state_dict() for name, resource in self.resources.items()},
            "ledger": self.context.ledger.state_dict(),
            "seeds": self.context.seeds.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            CheckpointError: the state is that of another plan: paths missing in it and paths that this
                plan does not have are listed together, before anything is changed.
        """
        expected = {path for stage in self.stages for path in stage.save()}
        known = {link.path for link in self.links()}
        problems = _differences("operators", state["operators"], expected, known)
        problems += _differences("resources", state["resources"], set(self.resources), set(self.resources))
        if problems:
            raise CheckpointError("the state belongs to another plan: " + "; ".join(problems))
        for name, resource in self.resources.items():
            resource.load_state_dict(state["resources"][name])
        self.context.ledger.load_state_dict(state["ledger"])
        self.context.seeds.load_state_dict(state["seeds"])
        for stage in self.stages:
            stage.close()
        self.stages.clear()
        self._open_stages()
        for stage in self.stages:
            stage.load(state["operators"])
        for link in self.links():
            link.items = state["items"].get(link.path, 0)

    # -- seeing

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the run by unit: env_steps, sampled, trained, updates ..."""
        return self.context.counters

    def links(self) -> list[Link]:
        """The running operators with what was measured of them, inputs first."""
        return [link for stage in self.stages for link in stage.links()]

    def explain(self) -> str:
        """The plan's text tree with items and busy / starved / blocked shares so far."""
        from flowrl.explain import explain_run

        return explain_run(self)

    # -- opening and closing

    def _open_stages(self) -> None:
        self._root = self._build()
        self._pull = self._root.step

    def _build(self) -> Stage:
        """Turn the plan's operators into stages, linear ones fused."""
        built: dict[int, Stage] = {}

        def link(node: Plan) -> Link:
            path = self.paths[id(node)]
            context = self.context.at(self.context.path + path)
            op = fresh(node.op, context)
            return Link(path, node.site, op, node.kind, context, self._on_error(path))

        def build(node: Plan) -> Stage:
            if id(node) in built:
                return built[id(node)]
            links = [link(node)]
            stage: Stage
            if node.kind == "source":
                stage = Source()
                stage.bind(links[0], [])
            elif isinstance(node.op, Stage):
                stage = links[0].op
                links[0].verb = "call"
                stage.bind(links[0], [] if isinstance(stage, Gather) else [build(i) for i in node.inputs])
                if isinstance(stage, Gather):
                    first = self.paths[id(node)].rpartition(".")[0]
                    stage.host(node.inputs[0], f"{first}." if first else "")
            else:
                end = node
                while end.inputs[0].kind not in ("source", "stage", "fork"):
                    end = end.inputs[0]
                    links.append(link(end))
                stage = Chain(links[::-1], build(end.inputs[0]))
            built[id(node)] = stage
            self.stages.append(stage)
            return stage

        return build(self.plan)

    def _claim(self) -> None:
        for other in list(Run._open):
            for name, resource in self.resources.items():
                if other._closer.alive and any(resource is r for r in other.resources.values()):
                    raise PlanError(f"{name} belongs to another open run; close that run first")
        Run._open.add(self)

    @property
    def closed(self) -> bool:
        return not self._closer.alive

    def close(self) -> None:
        """End the threads and generators of the run and its part on the workers; resources stay as they are."""
        self._pull = _refuse
        self._closer()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse() -> Any:
    raise PlanError("this run is closed; iterate the plan for a new one")


def _close(stages: list[Stage], owned: list[Any]) -> None:
    errors = []
    for close in [stage.close for stage in stages] + [r.stop for r in owned if hasattr(r, "stop")]:
        try:
            close()
        except Exception as error:  # the rest must be closed all the same
            errors.append(error)
    if errors:
        raise errors[0]


def _resources(plan: Plan) -> dict[str, Any]:
    """The resources of a plan, each once, named by type."""
    found: dict[str, Any] = {}
    for node in graph(plan):
        for resource in resources(node.op):
            if all(resource is not other for other in found.values()):
                name = base = type(resource).__name__
                ordinal = 1
                while name in found:
                    ordinal += 1
                    name = f"{base}-{ordinal}"
                found[name] = resource
    return found


def _error_policies(plan: Plan, named: Mapping[int, str], on_error: str | Mapping[str, str]) -> Any:
    policies = {"*": on_error} if isinstance(on_error, str) else dict(on_error)
    for pattern, policy in policies.items():
        if policy not in ("stop", "skip", "retry"):
            raise PlanError(f"on_error is 'stop', 'skip' or 'retry', got {policy!r} for {pattern!r}")

    def policy_of(path: str) -> str:
        for pattern, policy in policies.items():
            if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path.rpartition(".")[2], pattern):
                return policy
        return "stop"

    return policy_of


def _differences(what: str, saved: Mapping[str, Any], expected: set[str], known: set[str]) -> list[str]:
    missing, unexpected = sorted(expected - set(saved)), sorted(set(saved) - known)
    found = [f"{what} missing in it: {', '.join(missing)}"] if missing else []
    return found + ([f"{what} that this plan does not have: {', '.join(unexpected)}"] if unexpected else [])
