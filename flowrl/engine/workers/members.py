"""The workers that run a part of a plan: they may die and be restarted, be added, and be removed."""

from __future__ import annotations

import logging
import statistics
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs

from flowrl.engine.protocols import StoringWorker, WorkerContract, WorkersContract
from flowrl.engine.workers.futures import Future, wait
from flowrl.engine.workers.local import DRAIN_SECONDS, InlineWorker, ask, wait_for
from flowrl.errors import WorkerDied

if TYPE_CHECKING:
    from flowrl.engine.meter import Meter
    from flowrl.engine.plan import ErrorPolicies, Plan


log = logging.getLogger("flowrl")


@attrs.define(eq=False)
class PartMember:
    """A worker, the future of opening its part of the plan, and when that was done: a restart takes long.

    `part` is the name of its part in a journal; `stores` says whether it can keep items.
    """

    worker: Any
    opening: Future[Any]
    part: str = ""
    since: float = inf
    stores: bool = attrs.field(init=False)

    @stores.default
    def _stores(self) -> bool:
        return isinstance(self.worker, StoringWorker)  # takes too long to ask for every request

    def __attrs_post_init__(self) -> None:
        self.opening.add_done_callback(self._opened)

    def _opened(self, _: Future[Any]) -> None:
        self.since = clock()


@attrs.define(eq=False)
class SubplanMembers:
    """Opens a part of a plan on each of `workers.members`, and on each new member.

    A restarted worker is a new member at the old index; None replaces a removed member.
    """

    workers: Any
    meter: Meter
    plan: Plan
    paths: list[str]
    learners: list[str]
    on_error: ErrorPolicies
    lose: Callable[[int], None]  #: called when a member is found dead, once
    _members: dict[int, PartMember] = attrs.field(factory=dict)

    def at(self, index: int) -> PartMember:
        """The member at an index, with the request to open the part made: later requests come after it."""
        worker, member = self.workers.members[index], self._members.get(index)
        if member is None or member.worker is not worker:
            context = self.meter.context
            decisions = context.decisions.part(self.meter.path, index)
            observer = context.observer and context.observer.part(inline=isinstance(worker, InlineWorker))
            part = self.plan, self.paths, context.seeds.seed, index, self.on_error, self.learners, decisions, observer
            opening = ask(worker, "open_plan", self.meter.path, *part)
            member = self._members[index] = PartMember(worker, opening, decisions.name)
        return member

    def waits_for_part(self, index: int) -> bool:
        """Whether the worker at an index has not opened the part yet."""
        return index in self._members and not self._members[index].opening.done()

    def present(self) -> list[int]:
        """The indexes with a worker."""
        return [index for index, worker in enumerate(self.workers.members) if worker is not None]

    def each(self, request: Callable[[int], Future[Any]], what: str, unheard: set[int] | None = None) -> dict[int, Any]:
        """The answers of all present workers to a request, by index; restarts and asks again those that die.

        With `unheard`, does without these workers and adds those that do not answer; else they raise Stalled.
        """
        answers: dict[int, Any] = {}
        left_out = set() if unheard is None else unheard
        while futures := {i: request(i) for i in self.present() if i not in answers and i not in left_out}:
            what_for = f"{self.meter.path}: the workers {what}"
            if unheard is None:
                wait_for(futures.values(), what_for)
            else:
                unheard |= self.unheard(futures.items(), what_for)
            errors = {index: future.exception() for index, future in futures.items() if index not in left_out}
            died = [index for index, error in errors.items() if error is not None and self.is_death(error)]
            died = list(self.meter.context.decisions.decide(f"{self.meter.path} {what}", died))
            for index, error in errors.items():
                if index in died:
                    worker = self._members[index].worker
                    self.revive(index, worker, error if isinstance(error, WorkerDied) else died_again(worker))
                elif error is None:
                    answers[index] = futures[index].result()
                else:
                    raise error
        return answers

    def unheard(self, requests: Iterable[tuple[int, Future[Any]]], what: str) -> set[int]:
        """Wait for the answers to requests; returns the workers that do not give one.

        A state is taken without these: where it is loaded they begin anew, as after a death (F10).

        Raises: Stalled: they cannot be restarted.
        """
        silent = silent_ones(self.workers.members) if self._can_restart else set()
        asked = [(index, future) for index, future in requests if index not in silent]
        if not self._can_restart:
            wait_for([future for _, future in asked], what)
        wait([future for _, future in asked], DRAIN_SECONDS)
        return silent | {index for index, future in asked if not future.done()}

    @property
    def _can_restart(self) -> bool:
        return WorkersContract(self.workers).restart is not None

    def is_death(self, error: BaseException) -> TypeGuard[WorkerDied]:
        """Whether an error is a death that costs only requests, because the workers can be restarted (F10)."""
        return isinstance(error, WorkerDied) and self._can_restart

    def revive(self, index: int, worker: Any, error: WorkerDied) -> None:
        """Restart a worker that died, unless it already was restarted.

        Counts: worker_restarts.
        Raises: WorkerDied: it may not be restarted, and the run must not go on without it.
        """
        if self._members[index].worker is worker:  # else it was found dead before
            self.lose(index)
        if self.workers.members[index] is not worker:
            return
        try:
            self.workers.restart(index, error)
        except WorkerDied as final:
            self.meter.blamed(final)
            raise
        if self.workers.members[index] is None:
            log.warning("%s: %s; the others go on without it", self.meter.path, error)
        else:
            self.meter.context.count("worker_restarts")
            log.warning("%s: %s; restarting it", self.meter.path, error)

    def why(self, index: int, member: PartMember, error: BaseException) -> BaseException:
        """The cause of a failed request: the error of opening the part, if that failed too."""
        if isinstance(error, WorkerDied):
            return error
        wait_for([member.opening], f"{self.meter.path}: worker {index} to take its part of the plan")
        return member.opening.exception() or error


def died_again(worker: Any) -> WorkerDied:
    """The death of a worker that a journal has, and that is not repeated."""
    return WorkerDied(repr(worker), "as the journal says")


def silent_ones(members: Sequence[Any]) -> set[int]:
    """The indexes of the members that have been silent for as long as a state waits for anyone."""
    return {index for index, member in enumerate(members) if WorkerContract(member).silent >= DRAIN_SECONDS}


#: A request is late when it takes this many times the usual time ...
LATE_FACTOR = 10.0
#: ... and at least this many seconds: a restarted process has much to import.
LATE_SECONDS = 10.0
#: Number of newest requests that define the usual time.
RECENT = 101
#: Most workers that a report lists one by one.
LISTED = 8


@attrs.define(eq=False)
class Stragglers:
    """Items and seconds of each worker since the run opened, in arrays, since there may be many workers.

    >>> stragglers = Stragglers()
    >>> stragglers.expect(2)
    >>> for worker, seconds in ((0, 0.25), (0, 0.75), (1, 0.5)):
    ...     stragglers.answered(worker, seconds)
    >>> stragglers.usual, stragglers.limit
    (0.5, 10.0)
    >>> stragglers.report({0: 1, 1: 2}, late={1: 30.0})
    '0: 2 items, 1 request, 0.5 s each; 1: 1 item, 2 requests, 0.5 s each, no answer for 30 s'
    """

    items: array[int] = attrs.field(factory=partial(array, "q"))
    seconds: array[float] = attrs.field(factory=partial(array, "d"))
    _recent: deque[float] = attrs.field(factory=lambda: deque(maxlen=RECENT))

    def expect(self, workers: int) -> None:
        """Set the number of workers."""
        for numbers in (self.items, self.seconds):
            numbers.extend([0] * (workers - len(numbers)))

    def answered(self, worker: int, seconds: float) -> None:
        self.items[worker] += 1
        self.seconds[worker] += seconds
        self._recent.append(seconds)

    @property
    def usual(self) -> float:
        """Usual seconds of a request: the median of the newest ones."""
        return statistics.median(self._recent) if self._recent else 0.0

    @property
    def limit(self) -> float:
        """Seconds after which a request is late."""
        return max(LATE_SECONDS, LATE_FACTOR * self.usual)

    def report(self, requests: Mapping[int, int], late: Mapping[int, float]) -> str:
        """A report in words on the workers in `requests`, which holds the unanswered requests of each."""
        if len(requests) <= LISTED:
            return "; ".join(f"{worker}: {self._words(worker, n, late)}" for worker, n in requests.items())
        items = [self.items[worker] for worker in requests]
        total = f"{len(requests)} workers: {min(items)} to {max(items)} items each, {sum(requests.values())} requests"
        present = [worker for worker in late if worker in requests]  # late and not removed meanwhile
        return "; ".join([total, *(f"{worker}: {self._words(worker, requests[worker], late)}" for worker in present)])

    def _words(self, worker: int, requests: int, late: Mapping[int, float]) -> str:
        items = self.items[worker]
        words = [f"{items} item{'s' * (items != 1)}", f"{requests} request{'s' * (requests != 1)}"]
        words += [f"{self.seconds[worker] / items:.2g} s each"] if items else []
        words += [f"no answer for {late[worker]:.0f} s"] if worker in late else []
        return ", ".join(words)
