"""Objects as workers: in this process, or each in a separate process on this or another machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flowrl.actors.resources import Make, Resources
from flowrl.engine.protocols import WorkerContract
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.local import WORKER_TIMEOUT, InlineWorker, ThreadWorker
from flowrl.engine.workers.remote import Remote, measured
from flowrl.errors import ConfigError, WorkerDied


class Backend(Protocol):
    """The place of actors: `Here`, or `flowrl.actors.ray_backend.Cluster`."""

    def create(self, makes: Sequence[Make], names: Sequence[str], resources: Resources) -> list[Any]:
        """Create a worker per factory; returns once all exist, or raises."""
        ...

    def replace(self, worker: Any, make: Make, name: str, resources: Resources) -> Any:
        """Replace a worker; requests wait until the new one exists."""
        ...

    def put(self, value: Any) -> Any:
        """A reference to the value, for use as an argument of `submit`."""
        ...

    def close(self, workers: Sequence[Any]) -> None:
        """End workers."""
        ...

    def leave(self) -> None:
        """Release the backend."""
        ...


#: The address of actors that are objects of this process, also where they would be on Ray.
HERE = "here"


class ActorHere:
    """An object of this process as a worker that keeps items as one on Ray does.

    It answers at once, in the caller's thread, unless it works with others that wait for it: then in a thread.
    """

    def __init__(self, target: Any, name: str) -> None:
        self.target, self.name = target, name
        self._worker: InlineWorker | ThreadWorker = InlineWorker(target)

    def work_with_others(self) -> None:
        """See `flowrl.engine.protocols.JointWorker`."""
        if isinstance(self._worker, InlineWorker):
            self._worker = ThreadWorker(self.target, self.name)

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self._worker.submit(method, *(arg.fetch() if isinstance(arg, Remote) else arg for arg in args))

    def submit_apart(self, method: str, *args: Any) -> Future[Any]:
        """Request a method that returns (answer, item): the item becomes a `Remote`."""
        kept: Future[Any] = Future()

        def keep(asked: Future[Any]) -> None:
            if error := asked.exception():
                kept.set_exception(error)
            else:
                answer, item = asked.result()
                kept.set_result((answer, Remote(item, *measured(item))))

        self.submit(method, *args).add_done_callback(keep)
        return kept

    def close(self) -> None:
        self._worker.close()
        if hasattr(self.target, "close"):
            self.target.close()


class Here:
    """Actors as objects of this process."""

    def create(self, makes: Sequence[Make], names: Sequence[str], resources: Resources) -> list[Any]:
        return [ActorHere(make(), name) for make, name in zip(makes, names)]

    def replace(self, worker: Any, make: Make, name: str, resources: Resources) -> Any:
        worker.close()
        return ActorHere(make(), name)

    def put(self, value: Any) -> Any:
        return value

    def close(self, workers: Sequence[Any]) -> None:
        for worker in workers:
            worker.close()

    def leave(self) -> None:
        """Does nothing."""


class Actors:
    """Objects as workers of one kind; each has an index for ever.

    >>> with Actors([list, list], kind="list", remote=False) as actors:
    ...     actors.members[1].submit("append", actors.put(3)).result()
    ...     [worker.submit("copy").result() for worker in actors.members]
    [[], [3]]

    Args:
        makes: Factories, called where each actor lives.
        kind: Name of each in messages, followed by its index, such as "worker".
        remote: Whether each has a separate process on Ray; else all live in this one.
        address: Of the Ray cluster, "host:port" or "ray://host:port"; None: a local Ray, which is started
            unless one runs, and ended with its last user; "here": no Ray, all live in this process.
        resources: Resources of each.
        max_restarts: Restarts allowed per actor.
        worker_timeout: Seconds for which an actor on Ray may leave a request unanswered and answer nothing; then it
            hangs, and counts as dead. Those in which this process was suspended do not count.

    Raises (at `start`):
        ConfigError: no cluster answers, it cannot give the resources, or has another flowrl.
        PlanError: a factory cannot be pickled; names the reason.

    Attributes:
        members: The workers; None where one was removed. Empty unless started.
        restarts: How often each was restarted.
    """

    def __init__(
        self,
        makes: Sequence[Make],
        *,
        kind: str,
        remote: bool,
        address: str | None = None,
        resources: Resources | None = None,
        max_restarts: int = 10,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        if not worker_timeout > 0:
            raise ConfigError(f"worker_timeout={worker_timeout!r}: expected seconds, more than 0")
        self.makes, self.kind, self.remote, self.address = list(makes), kind, remote, address
        self.resources, self.max_restarts = resources or Resources(), max_restarts
        self.worker_timeout = worker_timeout
        self.members: list[Any] = []
        self.restarts: list[int] = []
        self._backend: Backend | None = None

    def __repr__(self) -> str:
        return f"{len(self.makes)} of {self.kind}{' on Ray' if self.remote else ''}"

    def __enter__(self) -> Actors:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Create them all at once; does nothing if they are started."""
        if self._backend is not None:
            return
        self._backend = self._connect()
        try:
            names = [self.name(index) for index in range(len(self.makes))]
            self.members = self._backend.create(self.makes, names, self.resources)
        except BaseException:
            self.close()
            raise
        self.restarts = [0] * len(self.makes)

    def _connect(self) -> Backend:
        if not self.remote or self.address == HERE:
            return Here()
        from flowrl.actors.ray_backend import Cluster

        return Cluster(self.address, self.worker_timeout)

    @property
    def _started(self) -> Backend:
        assert self._backend is not None, f"{self!r} are not started"
        return self._backend

    @property
    def silent(self) -> float:
        """The longest silence among them, in seconds, see `flowrl.engine.protocols.WorkerContract`."""
        return max((WorkerContract(each).silent for each in self.members if each is not None), default=0.0)

    def name(self, index: int) -> str:
        return f"{self.kind} {index}"

    def put(self, value: Any) -> Any:
        """A reference to the value as an argument of `submit`, sent once for all its receivers."""
        return self._started.put(value)

    def restart(self, index: int, died: WorkerDied | None = None) -> None:
        """Restart one in a new process; requests wait until that exists.

        Raises:
            WorkerDied: `died`, or a similar error: it was restarted `max_restarts` times already.
        """
        if self.restarts[index] >= self.max_restarts:
            why = f"{died.why if died else 'it is gone'}; it was restarted {self.restarts[index]} times already"
            raise WorkerDied(self.name(index), f"{why}, max_restarts={self.max_restarts}") from died
        self.restarts[index] += 1
        worker = self.members[index]
        self.members[index] = self._started.replace(worker, self.makes[index], self.name(index), self.resources)

    def add(self, make: Make) -> int:
        """Add one; returns its index."""
        self.members += self._started.create([make], [self.name(len(self.makes))], self.resources)
        self.makes.append(make)
        self.restarts.append(0)
        return len(self.makes) - 1

    def remove(self, index: int) -> None:
        """End one; the others keep their indices."""
        worker, self.members[index] = self.members[index], None
        self._started.close([worker])

    def close(self) -> None:
        """End them all; a later start creates new ones."""
        if self._backend is None:
            return
        backend, self._backend = self._backend, None
        members, self.members = self.members, []
        try:
            backend.close([worker for worker in members if worker is not None])
        finally:
            backend.leave()
