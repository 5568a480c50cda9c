"""The workers that member a part of a plan: they may die and be started again, be added, and be removed."""

from __future__ import annotations

import logging
import statistics
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs

from flowrl.engine.futures import Future
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.workers import ask, wait_for
from flowrl.errors import WorkerDied

if TYPE_CHECKING:
    from flowrl.engine.meter import Meter
    from flowrl.engine.plan import ErrorPolicies, Plan


log = logging.getLogger("flowrl")


@attrs.define(eq=False)
class Member:
    """A worker that was given the part, its answer to that, and when it came: one that is started again takes long."""

    worker: Any
    opening: Future[Any]
    since: float = inf

    def __attrs_post_init__(self) -> None:
        self.opening.add_done_callback(self._opened)

    def _opened(self, _: Future[Any]) -> None:
        self.since = clock()


@attrs.define(eq=False)
class SubplanMembers:
    """Gives a part of a plan to each of `workers.members`, whenever there is a new one in a index.

    A index is the index of a member, which it has for ever. Who is started again is another member in the same index;
    where one was removed there is None.
    """

    workers: Any
    meter: Meter
    plan: Plan
    paths: list[str]
    on_error: ErrorPolicies
    _asked: dict[int, Member] = attrs.field(factory=dict)

    def at(self, index: int) -> Member:
        """The worker of a index, with the part: what it is asked comes after that."""
        worker, member = self.workers.members[index], self._asked.get(index)
        if member is None or member.worker is not worker:
            part = self.plan, self.paths, self.meter.context.seeds.seed, index, self.on_error
            member = self._asked[index] = Member(worker, ask(worker, "open_plan", self.meter.path, *part))
        return member

    def waits_for_part(self, index: int) -> bool:
        """Whether the worker of a index was not there yet to take the part."""
        return index in self._asked and not self._asked[index].opening.done()

    def present(self) -> list[int]:
        """The indexes that are not empty."""
        return [index for index, worker in enumerate(self.workers.members) if worker is not None]

    def each(self, request: Callable[[int], Future[Any]], what: str) -> dict[int, Any]:
        """What all present answer to a request by index; who dies meanwhile is started again and asked again."""
        answers: dict[int, Any] = {}
        while asked := {index: request(index) for index in self.present() if index not in answers}:
            wait_for(asked.values(), f"{self.meter.path}: the workers {what}")
            for index, future in asked.items():
                error = future.exception()
                if error is None:
                    answers[index] = future.result()
                elif self.is_death(error):
                    self.revive(index, self._asked[index].worker, error)
                else:
                    raise error
        return answers

    def is_death(self, error: BaseException) -> TypeGuard[WorkerDied]:
        """A death that costs requests and nothing else, since there is who starts workers again (F10)."""
        return isinstance(error, WorkerDied) and WorkersContract(self.workers).restart is not None

    def revive(self, index: int, worker: Any, error: WorkerDied) -> None:
        """Have a worker that died started again, unless that was done already.

        Counts: worker_restarts.
        Raises: WorkerDied: it may not be started again, and the run shall not go on without it.
        """
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
            log.warning("%s: %s; it is started again", self.meter.path, error)

    def why(self, index: int, member: Member, error: BaseException) -> BaseException:
        """What a request failed of: of a worker that did not take the part it is why it did not."""
        if isinstance(error, WorkerDied):
            return error
        wait_for([member.opening], f"{self.meter.path}: worker {index} to take its part of the plan")
        return member.opening.exception() or error


#: A request is late when it takes so many times as long as requests usually do ...
LATE_FACTOR = 10.0
#: ... and so many seconds: a process that was started again has much to import.
LATE_SECONDS = 10.0
#: Newest requests that say what is usual.
RECENT = 101
#: Workers that a report lists one by one.
LISTED = 8


@attrs.define(eq=False)
class Stragglers:
    """Items and seconds of each worker since the run opened: numbers side by side, for there may be many workers.

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
        """There are so many workers from now on."""
        for numbers in (self.items, self.seconds):
            numbers.extend([0] * (workers - len(numbers)))

    def answered(self, worker: int, seconds: float) -> None:
        self.items[worker] += 1
        self.seconds[worker] += seconds
        self._recent.append(seconds)

    @property
    def usual(self) -> float:
        """Seconds of one request: the median of the newest ones."""
        return statistics.median(self._recent) if self._recent else 0.0

    @property
    def limit(self) -> float:
        """Seconds after which a request is late."""
        return max(LATE_SECONDS, LATE_FACTOR * self.usual)

    def report(self, requests: Mapping[int, int], late: Mapping[int, float]) -> str:
        """In words, for the workers of `requests`, which says how many each has not answered yet."""
        if len(requests) <= LISTED:
            return "; ".join(f"{worker}: {self._words(worker, n, late)}" for worker, n in requests.items())
        items = [self.items[worker] for worker in requests]
        total = f"{len(requests)} workers: {min(items)} to {max(items)} items each, {sum(requests.values())} requests"
        there = [worker for worker in late if worker in requests]  # and was not removed meanwhile
        return "; ".join([total, *(f"{worker}: {self._words(worker, requests[worker], late)}" for worker in there)])

    def _words(self, worker: int, requests: int, late: Mapping[int, float]) -> str:
        items = self.items[worker]
        words = [f"{items} item{'s' * (items != 1)}", f"{requests} request{'s' * (requests != 1)}"]
        words += [f"{self.seconds[worker] / items:.2g} s each"] if items else []
        words += [f"no answer for {late[worker]:.0f} s"] if worker in late else []
        return ", ".join(words)
