"""What a worker gives for a request: a future. Lighter than those of concurrent.futures, since there may be many."""

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

#: One for all futures, since nobody holds it for long; a collection of garbage in it may complete another future.
_LOCK = RLock()


class Future(Generic[T]):
    """The answer to a request, or the error that it came to, once it is there. Thread-safe.

    It does what flowrl needs of `concurrent.futures.Future`, and a worker may give one of those instead. That has a
    condition and two lists of its own, a dozen objects; ten thousand of them are more than a processor's cache holds.
    This one is a single object.

    >>> future = Future()
    >>> future.add_done_callback(lambda done: print("here it is:", done.result()))
    >>> future.set_result(3)
    here it is: 3
    """

    __slots__ = ("__weakref__", "_callback", "_done", "_error", "_others", "_value")

    def __init__(self) -> None:
        self._done = False
        self._callback: Callable[[Future[T]], object] | None = None
        self._others: tuple[Callable[[Future[T]], object], ...] = ()
        self._value: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> T:
        """The answer.

        Raises: the error that it came to; TimeoutError: it is not there after so many seconds.
        """
        error = self.exception(timeout)
        if error is None:
            return cast(T, self._value)
        try:
            raise error
        finally:
            del self, error  # the error's traceback would hold this frame, and it the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, None if there was none. Raises: TimeoutError: it is not there after so many seconds."""
        if not self._done:
            there = Event()
            self.add_done_callback(lambda _: there.set())
            if not there.wait(timeout):
                raise TimeoutError
        return self._error

    def add_done_callback(self, call: Callable[[Future[T]], object]) -> None:
        """Call it with this future when that is done, in the thread that completes it; at once if it is done."""
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
        except Exception:  # it must not keep the others from being told
            log.exception("a callback of a future failed")


def following(other: concurrent.futures.Future[T]) -> Future[T]:
    """A future that is done when another one is; one that was cancelled has failed."""
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
    """Wait until all are done, for so many seconds in all; those that are not."""
    waited, deadline = list(futures), clock() + seconds
    for future in waited:
        with suppress(TimeoutError, concurrent.futures.CancelledError):
            future.exception(max(0.0, deadline - clock()))
    return [future for future in waited if not future.done()]
