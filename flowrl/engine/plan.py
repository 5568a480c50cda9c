"""The plan: an immutable graph of operators, and the verbs that build it. Building does nothing else (F1)."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from flowrl.engine import transforms
from flowrl.engine.graph import WIRING, check_graph, checked_name, depth_of, graph, rebuilt, select
from flowrl.engine.merge import Concurrent, Fork, Reader, Sequential, Zip
from flowrl.engine.operator import name_of, whole
from flowrl.engine.protocols import OperatorContract, SourceOperator, Worker, WorkersContract
from flowrl.engine.run import Run
from flowrl.engine.stages import Generated, Items
from flowrl.engine.workers.calls import Call, Prefetch
from flowrl.engine.workers.gather import Gather, GatherAsync, GatherSync
from flowrl.errors import PlanError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from flowrl.engine.protocols import Decisions, Observer
    from flowrl.engine.schema import Schema

Verb = Literal["for_each", "filter", "combine"]
#: What other libraries call verbs.
SYNONYMS = {"map": "for_each", "flat_map": "combine", "merge": "union", "limit": "take"}
#: The least weight of a branch: a turn in a thousand.
MIN_WEIGHT = 1e-3
#: "stop", "skip" or "retry", or one of them by operator name or glob.
ErrorPolicies = str | Mapping[str, str]


@attrs.frozen(eq=False, repr=False)
class Plan:
    """A lazy stream of items. A plan *is* its last operator; every verb returns a new plan.

    `iter(plan)` starts a run. `kind` is "source", one of the transform verbs, or "stage" for the other
    primitives; `site` is the user's line that added the operator; `on` is the workers that run this part
    of the plan, or None for this process.

    >>> plan = from_items([1, 2, 3]).for_each(lambda x: x * x).filter(lambda x: x > 1)
    >>> list(plan)
    [4, 9]
    """

    op: Any
    inputs: tuple[Plan, ...] = ()
    kind: str = "source"
    name: str = ""
    explicit: bool = False
    site: str = attrs.field(factory=lambda: user_site())
    on: Any = None
    branches: tuple[str, ...] = ()
    #: The operators, and the stages, on the longest way to here.
    operators: int = attrs.field(init=False, default=0)
    depth: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        check_graph(self)
        for name, number in zip(("operators", "depth"), depth_of(self)):
            object.__setattr__(self, name, number)

    @property
    def contract(self) -> OperatorContract:
        """The optional members of the operator."""
        return OperatorContract(self.op)

    def __iter__(self) -> Iterator[Any]:
        return self.run()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            verbs = [verb for verb in dir(type(self)) if verb[0] != "_"]
            meant = f"did you mean {SYNONYMS[name]!r}?" if name in SYNONYMS else did_you_mean(name, verbs)
            raise AttributeError(f"a plan has no {name!r}; {meant}", name=name, obj=self)

    def __repr__(self) -> str:
        count = len(graph(self))
        return f"plan of {count} operator{'s' * (count > 1)}, not running"

    def run(
        self,
        *,
        seed: int = 0,
        on_error: ErrorPolicies = "stop",
        stall_seconds: float = 60.0,
        deadline_seconds: float = 3600.0,
        decisions: Decisions | None = None,
        observer: Observer | None = None,
    ) -> Run:
        """Open a run of this plan.

        Args:
            seed: Root of all random streams of the run.
            on_error: "stop", "skip" (drops, counts and logs the item) or "retry" (sources, calls
                and operators declared pure; the others stop). A source or a request to a worker has no item
                to drop, so there "skip" means "retry". A mapping sets it by operator name or glob.
            stall_seconds: After this time without progress the run logs what it waits for; after this time
                of progress without an item it logs the plan's last operator.
            deadline_seconds: After this time without progress the run raises `Stalled`.
            decisions: A `Recording` that notes what the run decides, or a `Replay` that it follows; see
                `flowrl.engine.recording.journal`.
            observer: Who listens to the run, such as a `flowrl.engine.recording.trace.Trace`.
        """
        waits = {"stall_seconds": stall_seconds, "deadline_seconds": deadline_seconds}
        return Run(self, seed=seed, on_error=on_error, decisions=decisions, observer=observer, **waits)

    # -- transforms

    def for_each(self, op: Callable[[Any], Any], *, name: str | None = None) -> Plan:
        """Apply `op` to each item."""
        return self.then(op, "for_each", name)

    def filter(self, op: Callable[[Any], bool], *, name: str | None = None) -> Plan:
        """Keep the items for which `op` is true."""
        return self.then(op, "filter", name)

    def combine(self, op: Callable[[Any], Sequence[Any]], *, name: str | None = None) -> Plan:
        """Emit each element of the list that `op` returns for an item: none, one or several."""
        return self.then(op, "combine", name)

    def batch(self, n: int, *, name: str | None = None) -> Plan:
        """Lists of `n` items, the last one shorter."""
        return self.then(transforms.Batches(n), "combine", name, default="batch")

    def shuffle(self, buffer_size: int, *, name: str | None = None) -> Plan:
        """The items in random order, each drawn from the `buffer_size` that came first and have not left yet."""
        return self.then(transforms.Shuffle(buffer_size), "combine", name, default="shuffle")

    def flatten(self, *, name: str | None = None) -> Plan:
        """Emit the elements of each item."""
        return self.then(transforms.flatten, "combine", name)

    def take(self, n: int, *, name: str | None = None) -> Plan:
        """The first `n` items, then the end."""
        return self.then(transforms.Take(n), "for_each", name, default="take")

    def then(
        self, op: Any, kind: str, name: str | None = None, *, default: str | None = None, site: str | None = None
    ) -> Plan:
        """Add one operator of a kind; all verbs call this. `default` is its name unless the user gives one."""
        if kind not in ("tap", *get_args(Verb), *WIRING):
            raise PlanError(f"there is no verb {kind!r}; {did_you_mean(kind, get_args(Verb))}")
        if isinstance(op, type) and any("__call__" in vars(base) for base in op.__mro__):
            raise PlanError(
                f"{kind} needs an operator, got the class {op.__name__}; make one of it: {op.__name__}(...)"
            )
        if not callable(op) and kind not in WIRING:
            raise PlanError(f"{kind} needs something to call with an item, got {op!r}")
        verb = OperatorContract(op).verb or kind
        if kind in get_args(Verb) and verb in get_args(Verb) and verb != kind:
            raise PlanError(
                f"{name_of(op)} is for {verb}: use .{verb}({name_of(op)}(...)) in place of {kind}, "
                f"or verb={verb!r} in insert_before and insert_after"
            )
        return Plan(op, (self,), kind, *_named(name, default or name_of(op)), site or user_site(), self.on)

    # -- other primitives

    def union(self, *others: Plan) -> Plan:
        """The items of all plans, each as it is ready, in turn."""
        return merge((self, *others), "union", "async")

    def zip(self, *others: Plan, names: Sequence[str] | None = None) -> Plan:
        """Tuples of one item of each plan, as long as every plan has one; `names` names the branches."""
        plans = (self, *others)
        names = tuple(str(i) for i in range(len(plans))) if names is None else tuple(names)
        if len({checked_name(each, "a branch of zip") for each in names}) != len(plans):
            raise PlanError(f"zip needs {len(plans)} different names, one a plan, got {', '.join(names)}")
        return Plan(Zip(names), plans, "stage", "zip", branches=names)

    def duplicate(self, n: int = 2, *, max_lag: int = 16) -> tuple[Plan, ...]:
        """`n` readers of this stream; the fastest is at most `max_lag` items ahead of the slowest.

        The readers share the item objects: a change in place by one is visible to all.
        """
        n, max_lag = whole("duplicate", "n", n, 1), whole("duplicate", "max_lag", max_lag, 1)
        if self.on is not None:
            raise PlanError(f"duplicate: {self.name} is on the workers; gather first, then duplicate")
        fork = self.then(Fork(n, max_lag), "fork", default="duplicate")
        return tuple(fork.then(Reader(i), "stage", default="reader") for i in range(n))

    def prefetch(self, n: int = 1, *, thread: bool = False) -> Plan:
        """Keep up to `n` items ready; with `thread`, a separate thread produces them (not bit-exact)."""
        return self.then(Prefetch(whole("prefetch", "n", n, 1), thread), "stage", default="prefetch")

    def call(
        self, worker: Any, method: str, in_flight: int = 1, *, thread: bool = False, name: str | None = None
    ) -> Plan:
        """Send each item to `worker.method(item)`, at most `in_flight` at a time; results in order.

        A worker has `submit(method, *args) -> Future`; any other object is called in this process, with
        `thread` in a separate thread (not bit-exact).
        """
        in_flight = whole("call", "in_flight", in_flight, 1)
        if not isinstance(worker, Worker) and not hasattr(worker, method):
            raise PlanError(f"call: {type(worker).__name__} has no method {method!r}")
        return self.then(Call(worker, method, in_flight, thread), "stage", name, default=method)

    def gather_sync(self, merge: Callable[[list[Any]], Any] | None = None) -> Plan:
        """Leave the workers: one item of each, in their order; `merge` turns each round into one item."""
        gathered = self._gathered("gather_sync", GatherSync, rounds=merge is not None)
        return gathered.for_each(merge) if merge is not None else gathered

    def gather_async(
        self, in_flight: int = 1, max_weight_lag: int | None = None, *, pace: tuple[int, int] = (1, 1)
    ) -> Plan:
        """Leave the workers: items as they are ready, each worker with up to `in_flight` requests.

        With `max_weight_lag` workers are asked for no more than can be trained on with weights at most that many
        versions newer than those that they were asked with. For that the stream must know its `pace`: `(items,
        versions)`, where every so many items make at most so many new versions of the weights. `(4, 1)` fits a step on
        each batch of four items.
        """
        if max_weight_lag is not None:
            max_weight_lag = whole("gather_async", "max_weight_lag", max_weight_lag, 0, otherwise=" or None")
        if max_weight_lag is not None and self.on is not None and WorkersContract(self.on).version is None:
            raise PlanError(f"gather_async: {type(self.on).__name__} has no versions of weights for max_weight_lag")
        in_flight = whole("gather_async", "in_flight", in_flight, 1)
        if not isinstance(pace, tuple) or len(pace) != 2:
            raise PlanError(f"gather_async: pace is (items, versions), as (4, 1), got {pace!r}")
        items, versions = pace
        pace = whole("gather_async", "items of pace", items, 1), whole("gather_async", "versions of pace", versions, 1)
        asked = {"in_flight": in_flight, "max_weight_lag": max_weight_lag, "pace": pace}
        return self._gathered("gather_async", GatherAsync, **asked)

    def _gathered(self, name: str, kind: type[Gather], **settings: Any) -> Plan:
        if self.on is None:
            raise PlanError(f"{name}: this plan does not run on workers, there is nothing to gather")
        return Plan(kind(self.on, **settings), (self,), "stage", name)

    # -- inspecting and editing, by operator name

    def explain(self) -> str:
        """The plan as a text tree: operators, configuration, where they run, bounds, file:line."""
        from flowrl.inspect.check import schemas_of
        from flowrl.inspect.explain import explain

        return explain(self, schemas=schemas_of)

    def draw(self, path: str | Path) -> None:
        """Write the plan as a picture: a file ".svg", or ".mmd" for Mermaid text."""
        from flowrl.inspect.draw import draw

        draw(self, path)

    def check(self) -> dict[str, Schema]:
        """The schema of each operator's output, by path: see `flowrl.engine.schema`. Starts no worker.

        Raises:
            PlanError: an operator lacks an input that it needs, or the plan must deadlock; lists all problems.
        """
        from flowrl.inspect.check import check

        return check(self)

    def insert_before(self, where: str, op: Any, verb: Verb = "for_each", *, name: str | None = None) -> Plan:
        """A plan with `op` before the operator named by path, last part or glob."""
        node = self._behind(where)
        return self._edited(node, attrs.evolve(node, inputs=(node.inputs[0].then(op, verb, name),)))

    def insert_after(
        self, where: str, op: Any, verb: Verb = "for_each", *, name: str | None = None, site: str | None = None
    ) -> Plan:
        """A plan with `op` after the operator named by path, last part or glob; `site` replaces the caller's line."""
        return self._appended(where, lambda stream: stream.then(op, verb, name, site=site))

    def replace(self, where: str, op: Any) -> Plan:
        """A plan with another operator there, under the same verb; a plan may replace a source."""
        node = select(self, where)
        if node.kind == "source":
            if isinstance(op, Plan) and node.on is not None:
                raise PlanError(
                    f"replace {where!r}: it is on the workers, and {op.name} is a plan: give the plan's source instead"
                )
            return self._edited(node, op if isinstance(op, Plan) else attrs.evolve(from_items(op), on=node.on))
        if node.kind in WIRING:
            raise PlanError(f"replace {where!r}: {node.name} wires the plan; only sources and transforms can go")
        before = node.inputs[0]
        return self._edited(node, _tapped(before, op) if node.kind == "tap" else before.then(op, node.kind))

    def rewire(self, where: str, through: Callable[[Plan], Plan]) -> Plan:
        """A plan that passes the operator's input stream through a function of plans.

        >>> from flowrl import from_items
        >>> numbers = from_items([1, 2]).for_each(str)
        >>> list(numbers.rewire("str", lambda items: items.union(from_items([3]))))
        ['1', '3', '2']
        """
        node = self._behind(where)
        return self._edited(node, attrs.evolve(node, inputs=(through(node.inputs[0]),)))

    def remove(self, where: str) -> Plan:
        """A plan without that operator."""
        node = select(self, where)
        if node.kind in ("source", *WIRING):
            raise PlanError(f"remove {where!r}: without it its neighbors are not connected; use replace")
        return self._edited(node, node.inputs[0])

    def tap(self, where: str, function: Callable[[Any], Any], *, before: bool = False, site: str | None = None) -> Plan:
        """A plan that also calls `function` with each item that leaves the operator; it changes nothing (D4).

        Args:
            where: The operator, by path, last part or glob.
            function: Called with the item; its result is ignored.
            before: Call it with each item that enters the operator instead, for instance before an update.
            site: Origin of the tap; by default the caller's line.
        """
        if not before:
            return self._appended(where, lambda stream: _tapped(stream, function, site=site))
        node = self._behind(where)
        return self._edited(node, attrs.evolve(node, inputs=(_tapped(node.inputs[0], function, site=site),)))

    def around(self, before: Callable[[Run], Any] | None = None, after: Callable[[Run], Any] | None = None) -> Plan:
        """A plan that calls functions with its run: after it opens, and before it closes, also after an error.

        They change nothing (D4). A run that is abandoned without being closed does not call `after`.
        """
        if self.on is not None:
            raise PlanError(f"around: {self.name} is on the workers; gather first, then add around")
        return self.then(transforms.RunHooks(before, after), "tap", default="around")

    def breakpoint(self, where: str, when: Callable[[Any], bool] | None = None, *, site: str | None = None) -> Plan:
        """A plan that stops at each item that leaves the operator, or at those for which `when` is true.

        There a prompt shows the item, its origin, and the operator's state: see `flowrl.inspect.debugger`. If
        `PYTHONBREAKPOINT` or `sys.breakpointhook` names another debugger, that one opens instead.
        """
        stop = transforms.Breakpoint(where, when)
        return self._appended(where, lambda stream: _tapped(stream, stop, "breakpoint", site))

    def _behind(self, where: str) -> Plan:
        """The operator of that name, if it has exactly one input."""
        node = select(self, where)
        if len(node.inputs) != 1:
            raise PlanError(f"insert_before {where!r}: it has {len(node.inputs)} inputs, so 'before' is not one place")
        if node.inputs[0].kind == "fork":
            raise PlanError(f"insert_before {where!r}: nothing stands between a fork and its reader; use insert_after")
        return node

    def _appended(self, where: str, add: Callable[[Plan], Plan]) -> Plan:
        node = select(self, where)
        if node.kind == "fork":  # what leaves a fork is what enters it, and only its readers may read it
            return self._edited(node, attrs.evolve(node, inputs=(add(node.inputs[0]),)))
        return self._edited(node, add(node))

    def _edited(self, old: Plan, new: Plan) -> Plan:
        """This plan with one node swapped for a new one, in one place."""

        def edited(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
            same = all(a is b for a, b in zip(inputs, node.inputs))
            return new if node is old else node if same else attrs.evolve(node, inputs=inputs)

        return rebuilt(self, edited)


def from_items(items: Any, *, name: str | None = None) -> Plan:
    """A plan over a list, a callable that returns an iterator, a generator function, or a source operator.

    A callable is called once per run. A resumed run calls it again and discards the items consumed before.

    Raises:
        PlanError: for a generator or another iterator: it has no state and runs once.
    """
    if inspect.isgenerator(items) or isinstance(items, Iterator):
        raise PlanError(
            f"a {type(items).__name__} object has no state and runs once; give the function that returns it, or a list"
        )
    if isinstance(items, SourceOperator):
        op = items
    elif isinstance(items, Sequence):
        op = Items(items)
    elif callable(items):
        op = Generated(items)
    else:
        raise PlanError(f"a source is a list, a callable or a source operator, got {items!r}")
    return Plan(op, (), "source", *_named(name, name_of(items if callable(items) else op)), user_site())


def from_workers(workers: Any, source: Any, *, name: str | None = None) -> Plan:
    """A plan whose source runs on each worker; operators follow it there, up to a gather verb."""
    plan = from_items(source, name=name)
    return attrs.evolve(plan, on=workers)


def merge(
    plans: Sequence[Plan] | Mapping[str, Plan],
    name: str,
    mode: Literal["round_robin", "async"],
    weights: Sequence[float | str] | None = None,
    output_indexes: Sequence[int | str] | None = None,
) -> Plan:
    """Several plans into one stream; `Concurrently` and `union` call this."""
    if not isinstance(plans, (Sequence, Mapping)):
        raise PlanError(f"{name} joins a list of plans, or plans by name, got {plans!r}")
    has_names = isinstance(plans, Mapping)
    names = tuple(plans) if isinstance(plans, Mapping) else tuple(str(i) for i in range(len(plans)))
    branches = tuple(plans.values()) if isinstance(plans, Mapping) else tuple(plans)
    if not branches:
        raise PlanError(f"{name} needs at least one branch")
    if mode not in ("round_robin", "async"):
        raise PlanError(f"{name}: mode is 'round_robin' or 'async', got {mode!r}")
    if has_names and not _are_identifiers(names):
        raise PlanError(f"{name}: branch names are identifiers, got {', '.join(map(repr, names))}")
    shares = tuple(1.0 for _ in names) if weights is None else tuple(weights)
    if len(shares) != len(names) or any(
        w != "*" and not (isinstance(w, (int, float)) and MIN_WEIGHT <= w < inf) for w in shares
    ):
        raise PlanError(f"{name}: needs {len(names)} weights, each at least {MIN_WEIGHT} or '*', got {list(shares)}")
    if mode == "async" and weights is not None:
        raise PlanError(f"{name}: weights go with round_robin; in async each ready branch gives one item a turn")
    op = Concurrent(names, mode, shares, _positions(names, output_indexes, name))
    return Plan(op, branches, "stage", name, False, user_site(), branches=names)


def in_sequence(branches: Mapping[str, Plan], name: str, output_indexes: Sequence[int | str] | None) -> Plan:
    """Several plans one after another; `Sequentially` calls this."""
    if not isinstance(branches, Mapping) or not branches or not _are_identifiers(branches):
        raise PlanError(f"{name} needs branches by names that are identifiers, got {branches!r}")
    names = tuple(branches)
    op = Sequential(names, _positions(names, output_indexes, name))
    return Plan(op, tuple(branches.values()), "stage", name, False, user_site(), branches=names)


def _positions(names: Sequence[str], output_indexes: Sequence[int | str] | None, name: str) -> tuple[int, ...]:
    """The numbers of the branches whose items the merge emits."""
    indexes = []
    for index in range(len(names)) if output_indexes is None else output_indexes:
        position = names.index(index) if isinstance(index, str) and index in names else index
        if not isinstance(position, int) or not 0 <= position < len(names):
            raise PlanError(f"{name}: output_indexes names {index!r}, but the branches are {', '.join(names)}")
        indexes.append(position)
    if not indexes:
        raise PlanError(f"{name}: output_indexes is empty, so nothing would ever come out")
    return tuple(indexes)


def _are_identifiers(names: Iterable[Any]) -> bool:
    return all(isinstance(name, str) and name.isidentifier() for name in names)


def _named(name: str | None, default: str) -> tuple[str, bool]:
    """The name of an operator, and whether the user gave it."""
    return (default, False) if name is None else (checked_name(name, "an operator"), True)


def _tapped(plan: Plan, function: Callable[[Any], Any], name: str | None = None, site: str | None = None) -> Plan:
    return plan.then(transforms.Tap(function), "tap", default=name or f"tap({name_of(function)})", site=site)


#: Modules of flowrl that build plans as users do: their lines count as sites.
USERS = ("flowrl.plans", "flowrl.operators.options", "flowrl.testing")


#: The file, different in every process, that a cell of a notebook is compiled as.
NOTEBOOK = re.compile(r"ipykernel_\d+|^<ipython-input-")


def user_site() -> str:
    """file:line of the innermost caller that is not the engine or an operator: the line the user wrote.

    In a notebook it is the line of its cell.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("flowrl.", "attr.")) or module.startswith(USERS):
            break
        frame = frame.f_back
    file = frame.f_code.co_filename
    return f"{'cell' if NOTEBOOK.search(file) else file}:{frame.f_lineno}"
