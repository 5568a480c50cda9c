"""Aggregators: processes that join batches, so that the driver does not touch the data."""

from __future__ import annotations

import logging
from typing import Any

from flowrl.actors.actors import Actors
from flowrl.actors.resources import Resources
from flowrl.data import Batch
from flowrl.data.steps import joined
from flowrl.engine.context import Context
from flowrl.engine.protocols import StoringWorker
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.local import WORKER_TIMEOUT
from flowrl.errors import is_death

log = logging.getLogger("flowrl")


class Joiner:
    """Joins batches, in the process of the actor."""

    def join(self, *batches: Batch) -> tuple[None, Batch]:
        """An empty answer, and the joined batch: fragments along the environments, rows one after another."""
        return None, joined(batches)


class Aggregators:
    """Joins lists of batches, each list in one of several processes; a worker of the engine.

        fragments.combine(CollectBatches(512)).call(Aggregators(2), "join", in_flight=4).call(learners, "train")

    The batches of a list may be `Remote`; the result is too if the next operator takes `Remote` items.

    Args:
        count: Number of processes, on Ray; 0: this process joins.
        resources: Resources of each process.
        address: Address of a Ray cluster.
        max_restarts: Restarts allowed per process. A death costs only time: its requests are repeated.
        worker_timeout: See `flowrl.actors.actors.Actors`.

    State: none; the `Call` saves the lists in work.
    """

    takes_remote = True
    requires = ()
    repeats = True

    def __init__(
        self,
        count: int = 1,
        *,
        resources: Resources | None = None,
        address: str | None = None,
        max_restarts: int = 10,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        self._actors = Actors(
            [Joiner] * max(1, count),
            kind="aggregator",
            remote=count > 0,
            address=address,
            resources=resources,
            max_restarts=max_restarts,
            worker_timeout=worker_timeout,
        )
        self._turn = 0
        self._requests: list[tuple[int, Any, Future[Any]]] = []  # index and worker; that may be replaced since

    def __repr__(self) -> str:
        return repr(self._actors)

    def schema(self, given: Schema) -> Schema:
        return given.of or UNKNOWN

    @property
    def silent(self) -> float:
        """See `flowrl.engine.protocols.CalleeContract`."""
        return self._actors.silent

    def start(self, context: Context) -> None:
        self._actors.start()

    def submit(self, method: str, batches: list[Any]) -> Future[Any]:
        """Let the next process `join` a list of batches."""
        index = self._turn = (self._turn + 1) % len(self._actors.members)
        worker = self._actors.members[index]
        submit = worker.submit_apart if isinstance(worker, StoringWorker) else worker.submit
        future: Future[Any] = submit(method, *batches)
        self._requests = [each for each in self._requests if not each[-1].done() or each[-1].exception()]
        self._requests.append((index, worker, future))
        return future

    def receive(self, answer: tuple[None, Any]) -> Any:
        """The joined batch of an answer."""
        return answer[1]

    def recover(self, error: BaseException) -> BaseException | None:
        """Restart processes that died; returns the error if it is not a death."""
        if not is_death(error):
            return error
        answered = [each for each in self._requests if each[-1].done()]
        self._requests = [each for each in self._requests if not each[-1].done()]
        for index, worker, future in answered:
            death = future.exception()
            if is_death(death) and self._actors.members[index] is worker:
                log.warning("%s; restarting it", death)
                self._actors.restart(index, death)
        return None

    def stop(self) -> None:
        """End the processes."""
        self._requests.clear()
        self._actors.close()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: there is no state between two requests."""
