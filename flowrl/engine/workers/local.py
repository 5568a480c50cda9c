"""Workers in this process, and requests to any worker: `submit(method, *args) -> Future`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any

from flowrl.engine.protocols import StoringWorker, Worker
from flowrl.engine.workers.futures import Future, completed, failed, following, pickling_of, wait
from flowrl.errors import Stalled

#: Seconds for which closing a run, or taking its state, waits for requests in flight.
DRAIN_SECONDS = 60.0
#: Default seconds after which a worker in another process that answers nothing counts as dead: longer than its
#: environments may take to fail several times, and to be made anew.
WORKER_TIMEOUT = 1800.0


class InlineWorker:
    """An object as a worker that answers at once, in the caller's thread: exact and easy to debug."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def submit(self, method: str, *args: Any) -> Future[Any]:
        try:
            return completed(getattr(self.target, method)(*args))
        except Exception as error:
            return failed(error)

    def close(self) -> None:
        """Does nothing."""


class ThreadWorker:
    """An object as a worker with a separate thread. Not bit-exact: it works while the run goes on."""

    def __init__(self, target: Any, name: str = "flowrl") -> None:
        self.target = target
        self.name = name
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=self._begin)
        self.ident = 0  #: of the thread, once it has begun
        self._last: Future[Any] | None = None

    def _begin(self) -> None:
        self.ident = threading.get_ident()

    @property
    def runs_here(self) -> bool:
        """Whether the current thread is the worker's."""
        return threading.get_ident() == self.ident

    def submit(self, method: str, *args: Any) -> Future[Any]:
        self._last = following(self._pool.submit(methodcaller(method, *args), self.target))
        return self._last

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.runs_here:
            return  # garbage collection closes an abandoned run in any thread, and this one cannot wait for itself
        if self._last is not None:
            wait_for([self._last], f"thread {self.name!r} to end")
        self._pool.shutdown(wait=True)


def as_worker(target: Any, *, thread: bool, name: str) -> Any:
    """The object itself if it is a worker, else a worker for it."""
    if isinstance(target, Worker):
        return target
    return ThreadWorker(target, name) if thread else InlineWorker(target)


def ask(worker: Any, method: str, *args: Any) -> Future[Any]:
    """Send a request to a worker; an error of sending, for instance to a dead worker, fails the future."""
    try:
        future: Future[Any] = worker.submit(method, *args)
    except Exception as error:
        future = failed(error)
    return future


def ask_apart(worker: StoringWorker, method: str, *args: Any) -> Future[Any]:
    """Send a request to a worker that keeps items."""
    try:
        return worker.submit_apart(method, *args)
    except Exception as error:
        return failed(error)


def all_of(futures: Sequence[Future[Any]]) -> Future[list[Any]]:
    """A future of all results, or of the first error; its callbacks run in whichever thread completes it."""
    combined: Future[list[Any]] = Future()
    lock, missing = threading.Lock(), len(futures)

    def done(future: Future[Any]) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            error = future.exception()
            if combined.done() or (missing and error is None):
                return
            if error is None:
                combined.pickling = sum(pickling_of(each) for each in futures)
                combined.set_result([each.result() for each in futures])
            else:
                combined.set_exception(error)

    for future in futures:
        future.add_done_callback(done)
    return combined


def wait_for(futures: Iterable[Future[Any]], what: str, seconds: float = DRAIN_SECONDS) -> None:
    """Wait until all futures are done.

    Raises:
        Stalled: after `seconds`; names `what`.
    """
    if late := wait(futures, seconds):
        raise Stalled(f"waited {seconds:g} s for {what}; {len(late)} requests are still unanswered")
