"""Signals of the operating system, handled while something runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.engine.run import Run

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handling(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals by a function, then restore their handlers. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)  # None: not set from Python


def die_with(lifeline: int) -> None:
    """Let the kernel kill this process group when a pipe has lost its last writer, even while C code holds Python.

    Does nothing elsewhere than on Linux.

    Args:
        lifeline: The descriptor of the pipe's reading end, which stays open.
    """
    if sys.platform != "linux":
        return
    import fcntl

    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # the writer was gone before the kernel watched
        os._exit(1)


class Interrupts:
    """SIGINT and SIGTERM end a run at its next step; a second signal ends it at once.

    Attributes:
        asked: Whether a signal has arrived.
    """

    def __init__(self, run: Run) -> None:
        self.asked = False
        self._run = run
        self._handling: AbstractContextManager[None] = handling((signal.SIGINT, signal.SIGTERM), self._handle)

    def __enter__(self) -> Interrupts:
        self._handling.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handling.__exit__(*error)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._run.interrupt()
        # Not print, which is not reentrant; nor click, which would write past the live display.
        # If standard error was closed, its descriptor may belong to another file; a pipe may have lost its reader.
        if sys.__stderr__ is not None:
            with suppress(OSError):
                os.write(2, b"stopping after this step; once more to stop at once\n")
