"""The workers that host a part of a plan: they may die and be started again, be added, and be removed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs

from flowrl.errors import WorkerDied
from flowrl.futures import Future
from flowrl.workers import ask, wait_for

if TYPE_CHECKING:
    from flowrl.link import Link
    from flowrl.plan import ErrorPolicies, Plan

log = logging.getLogger("flowrl")


@attrs.define(eq=False)
class Hosted:
    """A worker that was given the part, its answer to that, and when it came: one that is started again takes long."""

    worker: Any
    opening: Future[Any]
    since: float = inf

    def __attrs_post_init__(self) -> None:
        self.opening.add_done_callback(self._opened)

    def _opened(self, _: Future[Any]) -> None:
        self.since = clock()


@attrs.define(eq=False)
class Hosting:
    """Gives a part of a plan to each of `workers.members`, whenever there is a new one in a place.

    A place is the index of a member, which it has for ever. Who is started again is another member in the same place;
    where one was removed there is None.
    """

    workers: Any
    link: Link
    plan: Plan
    paths: list[str]
    on_error: ErrorPolicies
    _hosted: dict[int, Hosted] = attrs.field(factory=dict)

    def at(self, place: int) -> Hosted:
        """The worker of a place, with the part: what it is asked comes after that."""
        worker, hosted = self.workers.members[place], self._hosted.get(place)
        if hosted is None or hosted.worker is not worker:
            part = self.plan, self.paths, self.link.context.seeds.seed, place, self.on_error
            hosted = self._hosted[place] = Hosted(worker, ask(worker, "open_plan", self.link.path, *part))
        return hosted

    def waits_for_part(self, place: int) -> bool:
        """Whether the worker of a place was not there yet to take the part."""
        return place in self._hosted and not self._hosted[place].opening.done()

    def present(self) -> list[int]:
        """The places that are not empty."""
        return [place for place, worker in enumerate(self.workers.members) if worker is not None]

    def each(self, request: Callable[[int], Future[Any]], what: str) -> dict[int, Any]:
        """What all present answer to a request by place; who dies meanwhile is started again and asked again."""
        answers: dict[int, Any] = {}
        while asked := {place: request(place) for place in self.present() if place not in answers}:
            wait_for(asked.values(), f"{self.link.path}: the workers {what}")
            for place, future in asked.items():
                error = future.exception()
                if error is None:
                    answers[place] = future.result()
                elif self.is_death(error):
                    self.revive(place, self._hosted[place].worker, error)
                else:
                    raise error
        return answers

    def is_death(self, error: BaseException) -> TypeGuard[WorkerDied]:
        """A death that costs requests and nothing else, since there is who starts workers again (F10)."""
        return isinstance(error, WorkerDied) and hasattr(self.workers, "restart")

    def revive(self, place: int, worker: Any, error: WorkerDied) -> None:
        """Have a worker that died started again, unless that was done already.

        Counts: worker_restarts.
        Raises: WorkerDied: it may not be started again, and the run shall not go on without it.
        """
        if self.workers.members[place] is not worker:
            return
        try:
            self.workers.restart(place, error)
        except WorkerDied as final:
            self.link.blamed(final)
            raise
        if self.workers.members[place] is None:
            log.warning("%s: %s; the others go on without it", self.link.path, error)
        else:
            self.link.context.count("worker_restarts")
            log.warning("%s: %s; it is started again", self.link.path, error)

    def why(self, place: int, hosted: Hosted, error: BaseException) -> BaseException:
        """What a request failed of: of a worker that did not take the part it is why it did not."""
        if isinstance(error, WorkerDied):
            return error
        wait_for([hosted.opening], f"{self.link.path}: worker {place} to take its part of the plan")
        return hosted.opening.exception() or error
