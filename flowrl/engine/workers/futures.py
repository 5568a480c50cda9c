"""Futures, the answers of workers to requests. Lighter than those of concurrent.futures, since there may be many."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Event, RLock
from time import perf_counter as clock
from typing import Any, Generic, TypeVar, cast

log = logging.getLogger("flowrl")

T = TypeVar("T")

#: One lock for all futures, held only briefly; reentrant, as garbage collection under it may complete a future.
_LOCK = RLock()


class Future(Generic[T]):
    """The eventual answer to a request, or its error. Thread-safe.

    It has the part of `concurrent.futures.Future` that flowrl needs, and a worker may return one of those instead.
    Those consist of a dozen objects, with a condition and two lists, and ten thousand of them overflow a processor's
    cache. This one is a single object.

    >>> future = Future()
    >>> future.add_done_callback(lambda done: print("the answer:", done.result()))
    >>> future.set_result(3)
    the answer: 3
    """

    __slots__ = ("__weakref__", "_callback", "_done", "_error", "_others", "_value", "pickling")

    def __init__(self) -> None:
        self._done = False
        self.pickling = 0.0  #: seconds for which the answer is pickled and unpickled, as far as its backend knows
        self._callback: Callable[[Future[T]], object] | None = None
        self._others: tuple[Callable[[Future[T]], object], ...] = ()
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> T:
        """The answer.

        Raises: the request's error; TimeoutError: no answer within `timeout` seconds.
        """
        error = self.exception(timeout)
        if error is None:
            return cast(T, self._value)
        try:
            raise error
        finally:
            del self, error  # the error's traceback would hold this frame, and it the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The request's error, None if it succeeded. Raises: TimeoutError: no answer within `timeout` seconds."""
        if not self._done:
            completed = Event()
            self.add_done_callback(lambda _: completed.set())
            if not completed.wait(timeout):
                raise TimeoutError
        return self._error

    def add_done_callback(self, call: Callable[[Future[T]], object]) -> None:
        """Call a function with this future once it is done, in the thread that completes it; at once if it is done."""
        with _LOCK:
            if not self._done:
                if self._callback is None:
                    self._callback = call
                else:
                    self._others += (call,)
                return
        self._tell(call)

    def set_result(self, value: T) -> None:
        self._complete(value, None)

    def set_exception(self, error: BaseException) -> None:
        self._complete(None, error)

    def _complete(self, value: T | None, error: BaseException | None) -> None:
        with _LOCK:
            assert not self._done, "a future is completed once"
            self._value, self._error, self._done = value, error, True
        if self._callback is not None:
            self._tell(self._callback)
            for call in self._others:
                self._tell(call)
            self._callback, self._others = None, ()

    def _tell(self, call: Callable[[Future[T]], object]) -> None:
        try:
            call(self)
        except Exception:  # the other callbacks must run all the same
            log.exception("a callback of a future failed")


def completed(value: T) -> Future[T]:
    """A future with its answer, which nobody else has yet."""
    future: Future[T] = Future()
    future._value, future._done = value, True
    return future


def failed(error: BaseException) -> Future[Any]:
    """A future that failed."""
    future: Future[Any] = Future()
    future._error, future._done = error, True
    return future


def pickling_of(future: Any) -> float:
    """Seconds for which its answer is pickled and unpickled; 0.0 for what is no future of flowrl's."""
    return future.pickling if isinstance(future, Future) else 0.0


def following(other: concurrent.futures.Future[T]) -> Future[T]:
    """A future that completes with another one; a cancelled one fails."""
    future: Future[T] = Future()

    def follow(done: concurrent.futures.Future[T]) -> None:
        if done.cancelled():
            future.set_exception(concurrent.futures.CancelledError())
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    other.add_done_callback(follow)
    return future


def wait(futures: Iterable[Future[Any]], seconds: float) -> list[Future[Any]]:
    """Wait until all are done, at most `seconds` in total; returns those that are not."""
    futures, deadline = list(futures), clock() + seconds
    for future in futures:
        with suppress(TimeoutError, concurrent.futures.CancelledError):
            future.exception(max(0.0, deadline - clock()))
    return [future for future in futures if not future.done()]
