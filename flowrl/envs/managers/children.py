"""Processes that environments in this process start."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

log = logging.getLogger("flowrl")

#: Seconds that a process which was told to end may take.
END_SECONDS = 0.2
#: Processes that multiprocessing starts on first use and shares with everybody.
_SHARED = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Children:
    """The processes that environments started in their thread. Known on Linux, which keeps a list for each thread."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note those that this thread starts in the block."""
        before = _children("thread-self")
        try:
            yield
        finally:
            self._pids |= _children("thread-self") - before

    def left(self) -> str:
        """Those that still run, in words; waits a moment for them."""
        until, left = monotonic() + END_SECONDS, []
        if self._pids:
            threads = Path("/proc/self/task").iterdir()
            ours = set().union(*(_children(f"self/task/{thread.name}") for thread in threads))
            for pid in sorted(self._pids & ours):
                with suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                    if not any(name in command for name in _SHARED) and not _ends(pid, until - monotonic()):
                        left.append(f"{command[:60].strip()} ({pid})")
        return ", ".join(left)


def warn_of(children: Children) -> None:
    """Log the processes that closed environments leave behind."""
    if left := children.left():
        log.warning("environments were closed, but a process that they started runs on: %s; end it in close()", left)


def _children(of: str) -> set[int]:
    try:
        return {int(pid) for pid in Path(f"/proc/{of}/children").read_text().split()}
    except OSError:  # the thread is gone, or this is no Linux
        return set()


def _ends(pid: int, seconds: float) -> bool:
    """Whether a process ends within a time."""
    file = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(file)
