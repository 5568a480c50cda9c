"""Tools to test operators, plans and code that waits: they check the contract that all of them keep.

check_operator(lambda: NStep(n=3, gamma=0.9), items, verb="for_each")
check_plan(make_plan, items=50)
workers = ManualWorkers(2)      # futures that the test completes in the order it chooses
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice
from math import inf
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.graph import paths
from flowrl.engine.held import REMEDY, lost
from flowrl.engine.operator import name_of
from flowrl.engine.plan import Plan, from_items
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, Array, Signal
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.remote import Remote, measured
from flowrl.engine.workers.subplan import SubplanWorker
from flowrl.errors import WorkerDied

if TYPE_CHECKING:
    from flowrl.engine.run import Run


def check_operator(
    make: Callable[[], Any],
    items: Sequence[Any],
    *,
    verb: str = "for_each",
    expected: Sequence[Any] | None = None,
) -> None:
    """Check that an operator resumes at every step, leaves its inputs unchanged, and is copied for each run.

    `make` returns an operator with fresh resources; `expected` holds the items that it should emit.

    Raises:
        AssertionError: names the step and the difference, or the field that is in no checkpoint (D14).
    """
    made, inputs = make(), copy.deepcopy(list(items))
    assert not (found := next(lost(made), "")), f"{name_of(made)}: {found} changes and {REMEDY}"
    with from_items(inputs).then(made, verb).run() as run:
        list(run)
    assert same(inputs, list(items)), "the operator changed its input items in place"
    check_plan(lambda: from_items(inputs).then(make(), verb), expected=expected)


def check_plan(
    make: Callable[[], Plan],
    *,
    items: int | None = None,
    steps: Sequence[int] | int | None = None,
    seed: int = 0,
    expected: Sequence[Any] | None = None,
    through: Callable[[Run], Any] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Check that a plan is deterministic (D1), resumes exactly at every step (D3), that two states taken in a row are
    equal (D5), and that a tap after any operator changes nothing (D4).

    Args:
        make: Returns the plan with fresh resources at each call.
        items: Number of items to check; None: all, of a finite plan.
        steps: The steps at which to save and resume, or their number: then the first step, and random ones from the
            whole run. None: every step.
        seed: Seed of the runs, and of the random steps.
        expected: The items that the plan should emit.
        through: Saves the state of a run and returns it as read back, from a checkpoint on disk, say.

    Returns:
        The items of the uninterrupted run, and its final state.

    Raises:
        AssertionError: names the step and the difference.
    """
    reference = _run(make(), items, seed)
    if expected is not None:
        assert same(reference.items, list(expected)), f"expected {list(expected)!r}, got {reference.items!r}"
    chosen = _spread(steps, reference.steps, seed) if isinstance(steps, int) else steps
    chosen = range(reference.steps) if chosen is None else chosen
    items = None if items is None else len(reference.items)
    again = _run(make(), items, seed, chosen, through)
    assert same(again.items, reference.items), "a second run of the plan gives other items (D1)"
    assert same(again.final, reference.final), "a second run, whose states were taken, ends in another state (D1, D5)"
    for step in chosen:
        emitted, state = again.states[step]
        with make().run(seed=seed) as run:
            run.load_state_dict(copy.deepcopy(state))
            rest = list(islice(run, None if items is None else items - emitted))
            assert same(rest, reference.items[emitted:]), f"resumed at step {step}, it gives other items (D3)"
            assert same(run.state_dict(), reference.final), f"resumed at step {step}, it ends in another state (D3)"
    tapped = _run(_tapped(make()), items, seed, chosen)
    for step in chosen:
        assert same(tapped.states[step], again.states[step]), f"taps change the state at step {step} (D4)"
    assert same(tapped.items, reference.items), "taps change the items (D4)"
    assert same(tapped.final, reference.final), "taps change the state at the end (D4)"
    return reference.items, reference.final


def _spread(count: int, total: int, seed: int) -> list[int]:
    """The first of `total` steps, and a random one from each further part of `count` equal parts."""
    generator = random.Random(seed)
    parts = [range(total * i // count, total * (i + 1) // count) for i in range(1, count)]
    return [0, *(generator.choice(part) for part in parts if part)]


def _tapped(plan: Plan) -> Plan:
    """The plan with a tap after every operator."""
    for path in paths(plan).values():
        plan = plan.tap(path, _look)
    return plan


@attrs.frozen
class _Ran:
    """A finished run; `states` maps some of its steps to the number of items emitted before, and the state."""

    items: list[Any]
    final: dict[str, Any]
    steps: int
    states: dict[int, tuple[int, dict[str, Any]]]


def _run(
    plan: Plan,
    items: int | None,
    seed: int,
    at: Container[int] = (),
    through: Callable[[Run], Any] | None = None,
) -> _Ran:
    """Run a plan to the end, or up to `items` items, and take its state before the steps `at`."""
    emitted: list[Any] = []
    states: dict[int, tuple[int, dict[str, Any]]] = {}
    step = 0
    with plan.run(seed=seed) as run:
        while items is None or len(emitted) < items:
            if step in at:
                state = copy.deepcopy(run.state_dict())
                assert same(state, run.state_dict()), f"two states taken in a row differ at step {step} (D5)"
                kept = state if through is None else through(run)
                assert same(state, kept), f"the state saved at step {step} comes back different (D3)"
                states[step] = len(emitted), kept
            step += 1
            item = run.step()
            if item is DONE:
                break
            assert item is not BLOCKED, "the plan is stuck"
            if item is WAITING:
                run.context.bell.wait(run.deadline_seconds)
            if item.__class__ is not Signal:
                emitted.append(item)
        final = run.state_dict()
        assert same(final, run.state_dict()), "two states taken in a row differ (D5)"
    return _Ran(emitted, final, step, states)


def _look(item: Any) -> None:
    """A tap that does nothing."""


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal to the last bit: nested dicts, lists, tensors, arrays with dtype and shape; NaN
    equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, Array):  # an array, a numpy scalar or a tensor
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        equal: Any = (a == b) | ((a != a) & (b != b))
        return bool(equal.all() if isinstance(equal, Array) else equal)  # numpy strings compare to a Python bool
    equality: Any = type(a).__eq__
    if equality is object.__eq__ and attrs.has(type(a)):
        return same(attrs.asdict(a, recurse=False), attrs.asdict(b, recurse=False))
    if equality is object.__eq__ and hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return bool(a == b) or bool(a != a and b != b)


@attrs.define(eq=False)
class Request:
    """A request that a `ManualWorkers` worker has not answered yet."""

    worker: int
    method: str
    args: tuple[Any, ...]
    future: Future[Any]
    do: Callable[[], Any]
    version: int  #: of the weights at the time of the request


class ManualWorkers:
    """Workers whose answers the test completes in the order it chooses; the test also kills, adds and removes them.

    Each works on its own target, by default a `SubplanWorker`, and sets the target's `index` if it has one. Requests
    wait in `requests`; those that open, save, load or close a subplan, or a shard, are answered at once.

    Args:
        count: Initial number of workers.
        target: Factory of the targets.
        apart: Items stay with the workers; the plan receives a `Remote` instead.
        max_restarts: Restarts allowed per worker.
        on_death: What happens to a worker without restarts left: "stop", or "go_on" without it.

    Attributes:
        version: Version of the weights that a request made now would act with.
        restarts: Number of restarts per worker.
    """

    def __init__(
        self,
        count: int,
        target: Callable[[], Any] = SubplanWorker,
        *,
        apart: bool = False,
        max_restarts: int = 10,
        on_death: str = "stop",
    ) -> None:
        self.requests: list[Request] = []
        self.version = 0
        self.max_restarts, self.on_death = max_restarts, on_death
        self._target, self._apart = target, apart
        self.members: list[_ManualWorker | None] = []
        self.restarts: list[int] = []
        for _ in range(count):
            self.add()

    def __repr__(self) -> str:
        return f"{len(self.members)} manual workers"

    def answer(self, worker: int | None = None) -> Request:
        """Execute the oldest request, of one worker or of all, and complete its future."""
        request = self._pop(worker)
        try:
            request.future.set_result(request.do())
        except Exception as error:
            request.future.set_exception(error)
        return request

    def fail(self, error: Exception, worker: int | None = None) -> Request:
        """Let the oldest request fail without executing it."""
        request = self._pop(worker)
        request.future.set_exception(error)
        return request

    def hang(self, worker: int) -> None:
        """Let a worker answer nothing any more; it has been silent for longer than a state waits."""
        member = self.members[worker]
        assert member is not None, f"worker {worker} was removed"
        member.silent = inf

    def kill(self, worker: int) -> list[Request]:
        """Kill a worker: its requests fail, and so do new ones until it is restarted."""
        member = self.members[worker]
        assert member is not None, f"worker {worker} was removed"
        member.dead = True
        lost = [request for request in self.requests if request.worker == worker]
        self.requests[:] = [request for request in self.requests if request.worker != worker]
        for request in lost:
            request.future.set_exception(member.death())
        return lost

    def restart(self, worker: int, died: WorkerDied | None = None) -> None:
        """Replace a dead worker by a new one without its state."""
        if self.restarts[worker] < self.max_restarts:
            self.restarts[worker] += 1
            self.members[worker] = self._made(worker)
        elif self.on_death == "go_on" and sum(member is not None for member in self.members) > 1:
            self.members[worker] = None
        else:
            why = f"it was restarted {self.restarts[worker]} times already"
            raise WorkerDied(f"worker {worker}", why) from died

    def add(self) -> None:
        """Add a worker."""
        self.restarts.append(0)
        self.members.append(self._made(len(self.members)))

    def remove(self, worker: int) -> None:
        """Remove a worker; its open requests can still be answered."""
        self.members[worker] = None

    def _made(self, index: int) -> _ManualWorker:
        target = self._target()
        if hasattr(target, "index"):
            target.index = index
        return (_ApartWorker if self._apart else _ManualWorker)(self, index, target)

    def _pop(self, worker: int | None) -> Request:
        for i, request in enumerate(self.requests):
            if worker in (None, request.worker):
                return self.requests.pop(i)
        raise AssertionError(f"worker {worker} has no open request; open are {self.requests}")


#: Methods that are answered at once, since the caller waits for them.
_AT_ONCE = ("open_plan", "save_plan", "load_plan", "close_plan", "start", "state_dict", "load_state_dict")


class _ManualWorker:
    def __init__(self, workers: ManualWorkers, index: int, target: Any) -> None:
        self.workers, self.index, self.target = workers, index, target
        self.dead, self.silent = False, 0.0  # see `flowrl.engine.protocols.WorkerContract`

    def death(self) -> WorkerDied:
        return WorkerDied(f"worker {self.index}", "the test killed it")

    def close(self) -> None:
        """Does nothing."""

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self._request(method, args, lambda: methodcaller(method, *args)(self.target))

    def _request(self, method: str, args: tuple[Any, ...], do: Callable[[], Any]) -> Future[Any]:
        request = Request(self.index, method, args, Future(), do, self.workers.version)
        if self.dead:
            request.future.set_exception(self.death())
        elif method in _AT_ONCE and not self.silent:
            request.future.set_result(do())
        else:
            self.workers.requests.append(request)
        return request.future


class _ApartWorker(_ManualWorker):
    def submit_apart(self, method: str, *args: Any) -> Future[Any]:
        def do() -> tuple[Any, Remote]:
            answer, item = methodcaller(method, *args)(self.target)
            return answer, Remote(item, *measured(item))

        return self._request(method, args, do)
