"""Workers of this process, and asking any worker: `submit(method, *args) -> Future`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any

from flowrl.engine.futures import Future, following, wait
from flowrl.engine.protocols import StoringWorker, Worker
from flowrl.errors import Stalled

#: Seconds that closing a run or taking its state waits for what is in flight.
DRAIN_SECONDS = 60.0


class InlineWorker:
    """An object as a worker that works at once, in the caller's thread: exact and easy to debug."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def submit(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self.target, method)(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing to end."""


class ThreadWorker:
    """An object as a worker with a thread of its own. Not bit-exact: it works while the run goes on."""

    def __init__(self, target: Any, name: str = "flowrl") -> None:
        self.target = target
        self.name = name
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=self._begin)
        self._thread = 0
        self._last: Future[Any] | None = None

    def _begin(self) -> None:
        self._thread = threading.get_ident()

    def submit(self, method: str, *args: Any) -> Future[Any]:
        self._last = following(self._pool.submit(methodcaller(method, *args), self.target))
        return self._last

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if threading.get_ident() == self._thread:
            return  # an abandoned run is closed by whichever thread collects it, which cannot wait for itself
        if self._last is not None:
            wait_for([self._last], f"thread {self.name!r} to end")
        self._pool.shutdown(wait=True)


def as_worker(target: Any, *, thread: bool, name: str) -> Any:
    """The object itself if it can be asked, else one that asks it."""
    if isinstance(target, Worker):
        return target
    return ThreadWorker(target, name) if thread else InlineWorker(target)


def ask(worker: Any, method: str, *args: Any) -> Future[Any]:
    """Ask a worker; one that cannot even be asked, because it is dead, say, has failed to answer."""
    try:
        future: Future[Any] = worker.submit(method, *args)
    except Exception as error:
        future = _failed(error)
    return future


def ask_apart(worker: StoringWorker, method: str, *args: Any) -> Future[Any]:
    """Ask a worker with which items stay."""
    try:
        return worker.submit_apart(method, *args)
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def all_of(futures: Sequence[Future[Any]]) -> Future[list[Any]]:
    """Done with all results, or with the first error; it rings from whichever thread completes it."""
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
                combined.set_result([each.result() for each in futures])
            else:
                combined.set_exception(error)

    for future in futures:
        future.add_done_callback(done)
    return combined


def wait_for(futures: Iterable[Future[Any]], what: str, seconds: float = DRAIN_SECONDS) -> None:
    """Wait until all futures are done.

    Raises:
        Stalled: after `seconds`, saying what was waited for.
    """
    if late := wait(futures, seconds):
        raise Stalled(f"waited {seconds:g} s for {what}; {len(late)} requests are still unanswered")
