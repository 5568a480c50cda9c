"""Signals of the operating system, heard for as long as something runs."""

from __future__ import annotations

import os
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
    """Have signals handled by a function; then all is as it was. In another than the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():  # no other one may set handlers
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)  # None: not set from Python


class Interrupts:
    """SIGINT and SIGTERM end a run at its next step, the second one at once.

    Attributes:
        asked: Whether one has come.
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
        # Not print, which refuses to be entered again; nor click, which would write past the live display.
        # Where standard error was closed, its number may be that of another file, and a reader may have left.
        if sys.__stderr__ is not None:
            with suppress(OSError):
                os.write(2, b"stopping after this step; once more to stop at once\n")
