"""The run: pulls a plan one step at a time, sleeps on one bell, and has a complete state between steps."""

from __future__ import annotations

import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.engine.context import Context
from flowrl.engine.graph import WIRING, graph, matches, on_policy, paths
from flowrl.engine.held import REMEDY, changed, resources, same_resource, saveable, state_of, watched
from flowrl.engine.labels import Labels, labels_of
from flowrl.engine.merge import Fork, Merge
from flowrl.engine.meter import MAX_ATTEMPTS, Meter, telling
from flowrl.engine.operator import fresh
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, WORKED, Decisions, Observer, ResourceContract, Signal
from flowrl.engine.seeds import SeedTree
from flowrl.engine.stages import Chain, Source, Stage
from flowrl.engine.state_diff import IncompatibleKeys, check_state, compare
from flowrl.engine.transforms import RunHooks
from flowrl.engine.workers.accounts import watch_visits
from flowrl.engine.workers.gather import Gather
from flowrl.errors import CheckpointError, Deadlock, FlowError, PlanError, Stalled, WorkerDied, did_you_mean, notes_of

if TYPE_CHECKING:
    from flowrl.engine.plan import ErrorPolicies, Plan

log = logging.getLogger("flowrl")


class Run:
    """A running plan: an iterator over its items, and a context manager.

    It owns its resources (buffers, policies, worker sets) until it is closed. After an error it may be
    pulled again: a pure operator repeats the item that failed, any other drops it.

    Raises:
        PlanError: the plan's end is still on the workers, or a resource belongs to another open run. Or the run is
            pulled, saved or loaded by one of its own operators, or by two threads at a time; these may take turns.
        Deadlock: every branch waits for another one.
        Stalled: no progress for `deadline_seconds`.
    """

    #: Seconds without progress after which the run logs what it waits for, and after which it raises.
    stall_seconds, deadline_seconds = 60.0, 3600.0
    _open: ClassVar[weakref.WeakSet[Run]] = weakref.WeakSet()
    _at_end: list[Callable[[Run], Any] | None]  # called before the run closes
    _busy = False  # whether somebody pulls, saves or loads it

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        on_error: ErrorPolicies = "stop",
        stall_seconds: float = stall_seconds,
        deadline_seconds: float = deadline_seconds,
        decisions: Decisions | None = None,
        observer: Observer | None = None,
    ) -> None:
        if plan.on is not None:
            raise PlanError(
                f"the plan ends with {plan.name} on the workers ({plan.site}); "
                "end it with gather_sync() or gather_async()"
            )
        if not (stall_seconds > 0 and deadline_seconds > 0):
            raise PlanError(
                f"stall_seconds and deadline_seconds must be above 0, got {stall_seconds} and {deadline_seconds}"
            )
        decisions = decisions or Decisions()
        plan, run_opened = _debugged(decisions.woven(plan))
        by_id = paths(plan)
        _check_policies(_by_name(on_error), by_id.values())
        self.stall_seconds, self.deadline_seconds = stall_seconds, deadline_seconds
        context = Context(seeds=SeedTree(seed), decisions=decisions, observer=observer)
        self._begin(plan, by_id, context, on_error, resources_of(plan), labels_of(plan, by_id))
        if run_opened is not None:
            run_opened(self)
        around = [node.op for node in graph(plan) if isinstance(node.op, RunHooks)]
        try:
            _tell(self, [op.before for op in around])
        except BaseException:
            self.close()
            raise
        self._at_end = [op.after for op in around]

    def _begin(
        self,
        plan: Plan,
        by_id: dict[int, str],
        context: Context,
        on_error: ErrorPolicies,
        resources: dict[str, Any],
        labels: Labels,
    ) -> None:
        """Start the run's resources and open its stages; `by_id` maps the plan's nodes to paths."""
        self.plan, self.paths, self.context, self.resources = plan, by_id, context, resources
        self._error_policies = _by_name(on_error)
        # The states that are taken and loaded are noted of a whole run, not of its parts.
        self._states = Decisions() if context.decisions.name else context.decisions
        context.decisions.opened([by_id[id(node)] for node in graph(plan)])
        if (observer := context.observer) is not None:
            observer.opened()
        self._kind = Meter if observer is None else telling(observer.busy)
        self._labels = labels
        context.learns = any(node.contract.learns is not None for node in graph(plan))
        self.wakeups = 0
        self.started = clock()
        # Seconds so far, for the accounts: in calls of the run, taking states, asleep by what it waited for.
        self.inside, self.saving = 0.0, 0.0
        self.asleep: dict[tuple[str, ...], float] = {}
        self._told_lost = set[str]()
        self._entered = 0.0  # when the current call began, or went on after a look
        self._look: Callable[[Run], float] | None = None
        self._next_look = math.inf
        self.interrupted = False  #: whether `interrupt` was ever called
        self._stop_requested = False  # ... and the current iteration has not ended yet
        self._at_end = []
        self._claim()
        self.stages: list[Stage] = []  #: inputs before their readers
        self._closer = weakref.finalize(self, _close, self.stages, list(resources.values()))
        try:
            for name, resource in resources.items():
                if (start := ResourceContract(resource).start) is not None:
                    start(context.at(name))
            self._open_stages()
        except BaseException:
            self.close()
            raise
        self.opened = clock()

    # -- pulling

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        silent = None
        # No lock, which would cost each item more than the rest of this function: CPython changes threads, and handles
        # signals, at calls and loops, so not between the test and the assignment.
        if self._busy or (self._threads and self._in_own_thread()):
            self._refuse_turn()
        self._busy = True
        self._entered = clock()
        try:
            if self._entered >= self._next_look:
                self._be_watched(self._entered)
            while not self._stop_requested:
                try:
                    item = self._pull()
                except StopIteration as error:  # a caller would take it for the end of the run
                    raised = RuntimeError("an operator raised StopIteration")
                    for note in notes_of(error):
                        raised.add_note(note)
                    raise raised from error
                if item.__class__ is not Signal:
                    return item
                if item is WAITING:
                    self._sleep()
                elif item is DONE:
                    raise StopIteration
                elif item is BLOCKED:
                    if self._root.relent():
                        continue
                    raise Deadlock("\n  ".join(["no branch can go on:", *self._root.stuck()]))
                elif silent is None:
                    silent, patience = clock(), self.stall_seconds
                else:
                    if (now := clock()) >= self._next_look:
                        self._be_watched(now)
                    if (passed := now - silent) >= patience:
                        last = f"{self.paths[id(self.plan)]} ({self.plan.site})"
                        words = "the plan works, but for %.0f s nothing has left its last operator, %s"
                        log.warning(words, passed, last)
                        patience *= 2  # log less and less often
        finally:
            self._busy = False
            self.inside += clock() - self._entered
        self._stop_requested = False
        raise StopIteration

    def step(self) -> Any:
        """One step of the plan: an item or a `Signal`. Between two steps the state is complete."""
        if self._busy or (self._threads and self._in_own_thread()):
            self._refuse_turn()
        self._busy, began = True, clock()
        try:
            item = self._pull()
            return WORKED if item is BLOCKED and self._root.relent() else item
        finally:
            self._busy = False
            self.inside += clock() - began

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Pull, save or load the run, and nobody else does meanwhile."""
        if self._busy or (self._threads and self._in_own_thread()):
            self._refuse_turn()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _in_own_thread(self) -> bool:
        if self._threads and os.getpid() != self._process:
            raise PlanError(
                "this run was opened in another process, of which a fork copies no threads: its prefetch or call would "
                "wait for ever; open the run in the process that pulls it, or leave out thread=True"
            )
        return any(stage.runs_here for stage in self._threads)

    def _refuse_turn(self) -> None:
        raise PlanError(
            "this run is in the middle of a step: only between two items may it be pulled, saved or loaded, and by one "
            "thread at a time, not by its own operators; for several threads, let one pull the run and put the items "
            "into a queue"
        )

    def interrupt(self) -> None:
        """End the iteration at the next step; the run stays open and may be saved or go on. Thread-safe."""
        self.interrupted = self._stop_requested = True
        self.context.bell.ring()

    def watch(self, look: Callable[[Run], float] | None) -> None:
        """Call `look` with this run between two steps, and while it sleeps, from now on; None: no more.

        It returns the seconds after which it is to be called again, and may use the properties and methods that
        inspect a run.
        """
        self._look, self._next_look = look, math.inf if look is None else 0.0

    def _be_watched(self, now: float) -> None:
        assert self._look is not None
        self.inside += now - self._entered
        seconds = self._look(self)
        self._entered = clock()
        self._next_look = self._entered + seconds

    def _sleep(self) -> None:
        """Wait for the bell; after `stall_seconds`, log what the run waits for."""
        if self.context.decisions.replays:
            self.context.decisions.check_idle()
            return
        asleep, patience = clock(), self.stall_seconds
        counted, due, end = asleep, asleep + patience, asleep + self.deadline_seconds
        waits_for = tuple(dict.fromkeys(self._root.awaits()))
        if waits_for not in self.asleep and len(self.asleep) >= MOST_WAITS:
            waits_for = ANY_OPERATOR
        while not self.context.bell.wait(max(0.0, min(due, end, self._next_look) - clock())):
            if (now := clock()) >= self._next_look:
                self._slept(waits_for, now - counted)
                self._be_watched(now)
                counted = self._entered
            if now < min(due, end):
                continue
            words = f"no progress for {now - asleep:.0f} s, waiting for: " + "; ".join(self._root.stuck())
            if now >= end:
                raise Stalled(words)
            log.warning(words)
            patience *= 2  # log less and less often
            due = now + patience
        self.wakeups += 1
        self._slept(waits_for, clock() - counted)

    def _slept(self, waits_for: tuple[str, ...], seconds: float) -> None:
        self.asleep[waits_for] = self.asleep.get(waits_for, 0.0) + seconds
        if len(waits_for) == 1 and (gather := self._gathers.get(waits_for[0])) is not None:
            gather.slept(seconds)
        if self.context.observer is not None:
            self.context.observer.slept(waits_for, seconds)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """The complete state: operators by path, resources, counters, random streams.

        Waits for requests in flight and includes their answers; no item is lost or repeated, and the
        run goes on undisturbed.
        """
        if self.closed:
            _refuse()
        began = clock()
        with self._turn():
            try:
                self._states.saved()
                for _ in range(MAX_ATTEMPTS - 1):
                    # If a worker dies after it saved its part, it is restarted and the whole state is taken anew.
                    with suppress(WorkerDied):
                        return self._state()
                return self._state()
            finally:
                self.saving += clock() - began

    def _state(self) -> dict[str, Any]:
        for stage in reversed(self.stages):  # a thread that pulls other stages must pause before they are saved
            stage.drain()
        operators: dict[str, Any] = {}
        for stage in self.stages:
            operators.update(stage.save())
        state = {
            "operators": operators,
            "items": {meter.path: meter.items for meter in self.meters() if meter.verb != "tap"},
            "resources": {name: state_of(resource) for name, resource in self.resources.items()},
            "ledger": self.context.metrics.state_dict(),
            "seeds": self.context.seeds.state_dict(),
        }
        self._tell_lost()
        # A resource saved after such an answer may know of it already.
        return self._state() if any(stage.outdated for stage in self.stages) else state

    def _tell_lost(self) -> None:
        """Say once what has changed that no state has (D14)."""
        for meter, watching in self._watched:
            if meter.path not in self._told_lost and (found := list(changed(watching, self.resources.values()))):
                self._told_lost.add(meter.path)
                what = found[0] if len(found) == 1 else f"{found[0]} (and {len(found) - 1} more)"
                log.warning("%s (%s): %s has changed and %s", meter.path, meter.site, what, REMEDY)

    def load_state_dict(self, state: Mapping[str, Any], *, partial: bool = False) -> IncompatibleKeys:
        """Continue exactly where `state_dict` was taken.

        With `partial`, loads as much of another plan's state as maps to this one: operators by path, resources by
        name, counters and random streams whole. Other operators and resources of the plan start fresh; other parts
        of the state, with the items in them, are lost. Returns both.

        Raises:
            CheckpointError: the state is malformed, or belongs to another plan; lists what it lacks, what this plan
                lacks and what maps, before anything changes (D7). Or a resource refuses its part, such as the weights
                of another network; then all resources get back their old state.
        """
        if self.closed:
            _refuse()
        with self._turn():
            return self._load(state, partial)

    def _load(self, state: Mapping[str, Any], partial: bool) -> IncompatibleKeys:
        operators = {self.paths[id(node)]: node.op for node in graph(self.plan)}
        check_state(state, operators)
        mapped = compare(state, operators, self.resources, [s for s in self.stages if isinstance(s, Gather)])
        if (problems := mapped.problems()) and not partial:
            raise CheckpointError(
                f"the state belongs to another plan: {'; '.join(problems)}. What maps: "
                f"{', '.join(mapped.both) or 'nothing'}; load_state_dict(state, partial=True) takes that alone"
            )
        self._load_resources(state["resources"])
        self.context.metrics.load_state_dict(state["ledger"])
        for resource in self.resources.values():  # count what could not be continued, such as a cut episode
            self.context.metrics.merge(ResourceContract(resource).lost, {})
        self.context.seeds.load_state_dict(state["seeds"])
        for stage in reversed(self.stages):
            stage.close()
        self.stages.clear()
        self._states.loaded()
        self._open_stages()
        entries = mapped.entries(state["operators"])
        for stage in self.stages:
            stage.load(entries)
        for meter in self.meters():
            meter.items = state["items"].get(meter.path, 0)
        return mapped.left_out

    def _load_resources(self, saved: Mapping[str, Any]) -> None:
        """Load all or none. Resources with `start` come last: not all environments can restore a state."""
        loadable = [(name, resource) for name, resource in self.resources.items() if name in saved]
        before: list[tuple[Any, Any]] = []
        for name, resource in sorted(loadable, key=lambda each: ResourceContract(each[1]).start is not None):
            with suppress(FlowError):  # a resource that failed in the middle of a step has no state to go back to
                before.append((resource, resource.state_dict()))
            try:
                resource.load_state_dict(saved[name])
            except Exception as error:  # each type raises its own kind of error
                for changed, state in reversed(before):
                    changed.load_state_dict(state)
                    self.context.metrics.merge(ResourceContract(changed).lost, {})
                why = str(error) if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
                raise CheckpointError(f"{name} does not take the state, and nothing is changed: {why}") from error

    # -- inspecting

    @property
    def ending(self) -> bool:
        """Whether the next step ends the run, because the plan's end lets no item through; a state can still go on."""
        return self._root.ending

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the run by unit: env_steps, sampled, trained, updates ..."""
        return self.context.counters

    @property
    def root(self) -> Stage:
        """The stage of the plan's end."""
        return self._root

    def meters(self) -> list[Meter]:
        """The running operators with their measurements, inputs first."""
        return [meter for stage in self.stages for meter in stage.meters()]

    def waits(self) -> dict[str, list[str]]:
        """Why operators have no item, or hold one, right now: in words, by the operator's path."""
        lines: dict[str, list[str]] = {}
        for stage in self.stages:
            if isinstance(stage, Chain) and stage.since is not None:
                told = [line for line in stage.stuck() if not line.endswith(": ")]  # what has ended waits for nothing
                lines |= {stage.since[1].path: told} if told else {}
        return lines

    def explain(self) -> str:
        """The plan's text tree with items and busy / starved / blocked shares so far."""
        from flowrl.inspect.explain import explain_run

        return explain_run(self)

    # -- opening and closing

    def _open_stages(self) -> None:
        make_room(self.plan.depth)
        nodes = graph(self.plan)
        self._makers, self._on_policy = _makers(nodes, self.paths), on_policy(self.plan)
        readers: dict[int, list[Plan]] = {id(node): [] for node in nodes}
        for node in nodes:
            for upstream in node.inputs:
                readers[id(upstream)].append(node)
        built: dict[int, Stage] = {}
        for node in nodes:
            last_of_chain = not _is_linear(node) or not all(map(_is_linear, readers[id(node)])) or node is self.plan
            if node.on is self.plan.on and last_of_chain:  # a gather opens what is on its workers
                stage = self._stage(node, built, _take_remote(readers[id(node)]))
                built[id(node)] = stage
                self.stages.append(stage)
        self._root = built[id(self.plan)]
        self._pull = self._followed if self._states.active else self._root.step
        self._process = os.getpid()
        self._threads = [stage for stage in self.stages if stage.thread]
        self._gathers = {stage.meter.path: stage for stage in self.stages if isinstance(stage, Gather)}
        self._watched = [(meter, watched(meter.op)) for meter in self.meters() if meter.verb != "tap"]
        watch_visits(self.stages, self._root)

    def _followed(self) -> Any:
        """A step of a run with a journal: a replay takes and loads states where the other run has."""
        state = None
        while any(then := self._states.states()):
            _, loaded = then
            if not loaded or state is None:  # a state that is taken twice waits for requests that were not made
                state = self._state()
            if loaded:
                self._load(state, partial=False)
        return self._root.step()

    def _stage(self, node: Plan, built: Mapping[int, Stage], takes_remote: bool) -> Stage:
        """The stage that ends with an operator; linear operators are fused."""
        meters = [self._meter(node)]
        stage: Stage
        if node.kind == "source":
            stage = Source()
            stage.bind(meters[0], [])
        elif isinstance(node.op, Stage):
            stage = meters[0].op
            if isinstance(stage, Gather):
                part = node.inputs[0]
                stage.bind(meters[0], [])
                subpaths = [self.paths[id(n)] for n in graph(part)]
                learners = [self._labels.operators.get(id(n), "") for n in graph(part)]
                stage.open_part(part, subpaths, learners, self._error_policies, takes_remote)
            else:
                stage.bind(meters[0], [built[id(upstream)] for upstream in node.inputs])
                stage.gives_remote = takes_remote
                if isinstance(stage, Fork):
                    stage.on_policy = self._on_policy.get(id(node), frozenset())
                if isinstance(stage, Merge):
                    stage.labels = self._labels.of_branches(node)
        else:
            end = node
            while _is_linear(end.inputs[0]):
                end = end.inputs[0]
                meters.append(self._meter(end))
            stage = Chain(meters[::-1], built[id(end.inputs[0])])
        return stage

    def _meter(self, node: Plan) -> Meter:
        path = self.paths[id(node)]
        learner = self._labels.operators.get(id(node), "")
        context = self.context.at(self.context.path + path, learner, self.stages)
        verb = "call" if isinstance(node.op, Stage) else node.kind
        maker = self._makers[id(node.inputs[0])] if len(node.inputs) == 1 else ""
        return self._kind(path, node.site, fresh(node.op, context), verb, context, self._on_error(path), maker)

    def _on_error(self, path: str) -> str:
        return next((policy for name, policy in self._error_policies.items() if matches(path, name)), "stop")

    def _claim(self) -> None:
        if not self.resources:
            return
        for other in list(Run._open):
            for name, resource in self.resources.items():
                if other._closer.alive and any(same_resource(resource, r) for r in other.resources.values()):
                    raise PlanError(f"{name} belongs to another open run; close that run first")
        Run._open.add(self)

    @property
    def closed(self) -> bool:
        return not self._closer.alive

    def close(self) -> None:
        """End the run's threads and generators and its part on the workers; resources keep their state."""
        at_end, self._at_end = self._at_end, []
        try:
            _tell(self, at_end)
        finally:
            self._pull = _refuse
            self._closer()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Most groups of operators by which the seconds asleep are told apart (F7), and what stands for all others.
MOST_WAITS, ANY_OPERATOR = 64, ("one operator", "another")
#: Most Python frames of a stage between its reader and its input: its `step`, and what it calls to pull, to be released
#: or to say what it waits for.
FRAMES = 4
#: Python's own limit of recursion.
USUAL_LIMIT = 1_000


def make_room(depth: int) -> None:
    """Let stages pull each other over so many.

    A stage pulls its input by a call, so a deep plan needs more frames than Python allows at first. Since Python 3.11
    calls from Python to Python take none of the C stack, so the limit may be as high as memory permits: a plan of
    `MAX_DEPTH` stages runs in a thread with a stack of 64 KiB. Plans of usual depth leave the limit as it is.
    """
    frames, limit = FRAMES * depth, sys.getrecursionlimit()
    if frames > USUAL_LIMIT // 4:
        sys.setrecursionlimit(max(limit, USUAL_LIMIT + frames))


def _is_linear(node: Plan) -> bool:
    return node.kind not in ("source", *WIRING)


def _take_remote(readers: list[Plan]) -> bool:
    """Whether all readers of an operator's items accept `Remote` ones."""
    return bool(readers) and all(reader.contract.takes_remote for reader in readers)


def _tell(run: Run, functions: list[Callable[[Run], Any] | None]) -> None:
    for function in functions:
        if function is not None:
            function(run)


def _refuse() -> Any:
    raise PlanError("this run is closed; iterate the plan for a new one")


def _close(stages: list[Stage], owned: list[Any]) -> None:
    errors = []
    for close in [stage.close for stage in reversed(stages)] + [ResourceContract(resource).stop for resource in owned]:
        try:
            close()
        except Exception as error:  # close the rest all the same
            errors.append(error)
    if errors:
        raise errors[0]


def _makers(nodes: Collection[Plan], paths: Mapping[int, str]) -> dict[int, str]:
    """The operator whose function returned the items that a node emits, by `id`; "" if that is not certain."""
    found: dict[int, str] = {}
    for node in nodes:
        passes = node.kind in ("filter", "tap") or node.contract.provides == () or isinstance(node.op, Gather)
        if passes and len(node.inputs) == 1:
            found[id(node)] = found[id(node.inputs[0])]
        else:
            found[id(node)] = f"{paths[id(node)]} ({node.site})" if node.kind == "for_each" and not passes else ""
    return found


def resources_of(plan: Plan) -> dict[str, Any]:
    """The resources of a plan, each once, named by type."""
    found: dict[str, Any] = {}
    for node in graph(plan):
        for resource in resources(node.op) if node.kind != "tap" else ():
            if not any(same_resource(resource, other) for other in found.values()):
                name = base = type(resource).__name__
                ordinal = 1
                while name in found:
                    ordinal += 1
                    name = f"{base}-{ordinal}"
                found[name] = saveable(resource)
    return found


def _debugged(plan: Plan) -> tuple[Plan, Callable[[Run], None] | None]:
    """The plan with a debugger that sees every item, if it has breakpoints, and what to call with its run."""
    if all(node.kind != "tap" for node in graph(plan)):
        return plan, None
    from flowrl.inspect.debugger import with_looks

    return with_looks(plan)


def _by_name(on_error: ErrorPolicies) -> Mapping[str, str]:
    return on_error if isinstance(on_error, Mapping) else {"*": on_error}


def _check_policies(policies: Mapping[str, str], known: Collection[str]) -> None:
    for pattern, policy in policies.items():
        if not isinstance(pattern, str):
            raise PlanError(f"on_error is a policy, or policies by the names of operators, got {pattern!r} as a name")
        if policy not in ("stop", "skip", "retry"):
            raise PlanError(f"on_error is 'stop', 'skip' or 'retry', got {policy!r} for {pattern!r}")
        if not any(matches(path, pattern) for path in known):
            raise PlanError(f"on_error: no operator is named {pattern!r}; {did_you_mean(pattern, known)}")
