"""Aggregators: processes that make one batch of many, so that the driver need not touch what it passes on."""

from __future__ import annotations

import logging
from typing import Any

from flowrl.actors.actors import Actors, Resources
from flowrl.data import Batch
from flowrl.data.steps import joined
from flowrl.engine.context import Context
from flowrl.engine.futures import Future
from flowrl.engine.protocols import StoringWorker
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.errors import is_death

log = logging.getLogger("flowrl")


class Joiner:
    """Joins batches, where it is."""

    def join(self, *batches: Batch) -> tuple[None, Batch]:
        """An empty answer, and the batches as one: fragments along the environments, rows one after another."""
        return None, joined(batches)


class Aggregators:
    """Join lists of batches, each list in one of several processes: a worker of the engine.

        fragments.combine(CollectBatches(512)).call(Aggregators(2), "join", in_flight=4).call(learners, "train")

    The batches of a list may be `Remote`, and so is what comes of them where the next operator takes that.

    Args:
        count: Of processes, on Ray; 0: this one.
        resources: Of each.
        address: Of a Ray cluster.
        max_restarts: How often each may be made again after its death, which costs nothing but time: what it was asked
            is asked again.

    State: none; lists that are joined are a `Call`'s.
    """

    takes_remote = True
    requires = ()

    def __init__(
        self,
        count: int = 1,
        *,
        resources: Resources | None = None,
        address: str | None = None,
        max_restarts: int = 10,
    ) -> None:
        self._actors = Actors(
            [Joiner] * max(1, count),
            kind="aggregator",
            remote=count > 0,
            address=address,
            resources=resources,
            max_restarts=max_restarts,
        )
        self._turn = 0
        self._asked: list[tuple[int, Any, Future[Any]]] = []  # who was asked: another may have its place by now

    def __repr__(self) -> str:
        return repr(self._actors)

    def schema(self, given: Schema) -> Schema:
        return given.of or UNKNOWN

    def start(self, context: Context) -> None:
        self._actors.start()

    def submit(self, method: str, batches: list[Any]) -> Future[Any]:
        """Have the next of them `join` a list of batches."""
        index = self._turn = (self._turn + 1) % len(self._actors.members)
        worker = self._actors.members[index]
        submit = worker.submit_apart if isinstance(worker, StoringWorker) else worker.submit
        future: Future[Any] = submit(method, *batches)
        self._asked = [each for each in self._asked if not each[-1].done() or each[-1].exception()]
        self._asked.append((index, worker, future))
        return future

    def receive(self, answer: tuple[None, Any]) -> Any:
        """The batch of an answer."""
        return answer[1]

    def recover(self, error: BaseException) -> BaseException | None:
        """Make those that died again; the error if it was none of a death."""
        if not is_death(error):
            return error
        answered = [each for each in self._asked if each[-1].done()]
        self._asked = [each for each in self._asked if not each[-1].done()]
        for index, worker, future in answered:
            death = future.exception()
            if is_death(death) and self._actors.members[index] is worker:
                log.warning("%s; it is made again", death)
                self._actors.restart(index, death)
        return None

    def stop(self) -> None:
        """End the processes."""
        self._asked.clear()
        self._actors.close()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is kept between two requests."""
