"""Actors in threads in place of processes on Ray: they answer at their own pace, and a test kills them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any, ClassVar

import cloudpickle

from flowrl.actors.actors import Actors
from flowrl.actors.resources import Make, Resources
from flowrl.engine.workers.futures import Future
from flowrl.engine.workers.remote import Remote, measured
from flowrl.errors import WorkerDied


class ThreadActor:
    """An object with a thread, as a worker on Ray: arguments are copies, and items stay."""

    def __init__(self, make: Make, name: str) -> None:
        self.name, self._target, self._dead = name, pickle.loads(cloudpickle.dumps(make))(), False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock, self._open = threading.Lock(), dict[Future[Any], None]()

    def __repr__(self) -> str:
        return self.name

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self._ask(method, args, apart=False)

    def submit_apart(self, method: str, *args: Any) -> Future[Any]:
        return self._ask(method, args, apart=True)

    def _ask(self, method: str, args: tuple[Any, ...], *, apart: bool) -> Future[Any]:
        future: Future[Any] = Future()
        sent = cloudpickle.dumps([arg.fetch() if isinstance(arg, Remote) else arg for arg in args])
        with self._lock:
            self._open[future] = None
            if not self._dead:
                self._thread.submit(self._do, method, sent, apart, future)
        if self._dead:
            self._complete(future, error=WorkerDied(self.name, "the test killed it"))
        return future

    def _do(self, method: str, sent: bytes, apart: bool, future: Future[Any]) -> None:
        try:
            answer = methodcaller(method, *pickle.loads(sent))(self._target)
            if apart:
                answer, item = answer
                answer = answer, Remote(item, *measured(item))
            self._complete(future, answer)
        except Exception as error:
            self._complete(future, error=error)

    def _complete(self, future: Future[Any], value: Any = None, error: Exception | None = None) -> None:
        with self._lock:
            if future not in self._open:
                return  # it died before
            del self._open[future]
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def kill(self) -> None:
        """Fail what it has not answered, and what it is asked from now on."""
        self._dead = True
        for future in list(self._open):
            self._complete(future, error=WorkerDied(self.name, "the test killed it"))

    def end(self) -> None:
        """End the thread, once the last request is done."""
        self._thread.shutdown(wait=True)
        if hasattr(self._target, "close"):
            self._target.close()


class Threads:
    """A `flowrl.actors.actors.Backend`; `living` are all its actors, by name."""

    living: ClassVar[dict[str, ThreadActor]] = {}

    def create(self, makes: Sequence[Make], names: Sequence[str], resources: Resources) -> list[Any]:
        made = [ThreadActor(make, name) for make, name in zip(makes, names)]
        self.living.update(zip(names, made))
        return made

    def replace(self, worker: Any, make: Make, name: str, resources: Resources) -> Any:
        self.close([worker])
        (made,) = self.create([make], [name], resources)
        return made

    def put(self, value: Any) -> Any:
        return pickle.loads(cloudpickle.dumps(value))

    def close(self, workers: Sequence[Any]) -> None:
        for worker in workers:
            worker.kill()
            worker.end()

    def leave(self) -> None:
        """Nothing to leave."""


def use_threads(monkeypatch: Any) -> None:
    """Let actors that would be on Ray be threads."""
    connect = Actors._connect

    def connected(actors: Actors) -> Any:
        return Threads() if actors.remote and actors.address is None else connect(actors)

    monkeypatch.setattr(Actors, "_connect", connected)
