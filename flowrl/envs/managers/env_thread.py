"""Environments in threads, in the place of processes: one thread for those of a process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from flowrl.envs.managers import env_runner, worker_main
from flowrl.envs.managers.children import Children, warn_of
from flowrl.envs.managers.shared_memory import SharedMemory
from flowrl.envs.managers.supervisor import EnvProcess, Supervisor
from flowrl.envs.managers.worker_main import Host

log = logging.getLogger("flowrl")

#: Seconds for an abandoned thread to return from where it is stuck, after its environment is closed.
PATIENCE = 0.4

_CALLS = {"make": "construction", "_reset": "reset", "_step": "step", "close": "close", "save": "save", "load": "load"}
"""The activity of a thread, by the function here that called the environment."""


class _ThreadHost(Host):
    """The code of the thread."""

    def live(self) -> None:
        children = Children()
        with contextlib.suppress(OSError), self._orders, children.noted():  # its answer is no longer wanted
            self.serve()
        warn_of(children)

    def share(self, *shape: Any) -> None:
        self._shape = shape
        super().share(*shape)

    def cut_off(self) -> None:
        """Discard what it still writes: the columns belong to a new thread."""
        if self._exchange is None:
            return
        nowhere = SharedMemory(np.zeros, *self._shape)
        self._commands = env_runner.plainly(nowhere.command)
        for env in self._hosted.values():
            env.attach(nowhere)

    def close_from_outside(self) -> None:
        """Call `close()` of the environments in another thread, since it may block too."""

        def close() -> None:
            for env in list(self._envs.values()):
                with contextlib.suppress(BaseException):  # the environment is in the middle of a call
                    env.close()

        closing = threading.Thread(target=close, name=f"flowrl-close-{self._host}", daemon=True)
        closing.start()
        closing.join(PATIENCE)


class EnvThread(EnvProcess):
    """A thread in place of a process. An abandoned thread may live on, but without effect."""

    _given_up: Sequence[threading.Thread] = ()

    def start(self) -> None:
        theirs = self._begin()
        self._host = _ThreadHost(theirs, self._factories, self.host)
        # A daemon: the interpreter can exit even if it stays stuck; else it is joined.
        self._thread = threading.Thread(target=self._host.live, name=f"flowrl-env-{self.env_ids[0]}", daemon=True)
        before = [thread for thread in self._given_up if thread.is_alive()]
        self._given_up = [*before, self._thread]
        try:
            self._thread.start()
        except BaseException:  # no further thread can start
            self.alive = False
            self.let_go()
            theirs.close()
            raise

    @property
    def pid(self) -> int:
        return os.getpid()

    def kill(self) -> str:
        """Abandon the thread: close its environments if it does not return by itself."""
        if not self.alive:
            return ""
        was_busy, self.alive, self.busy, self.left_at = self.busy, False, False, ""
        self.let_go()
        self._thread.join(0 if was_busy else PATIENCE)
        frame = sys._current_frames().get(self._thread.ident or 0)
        if self._thread.is_alive() and frame is not None:
            self.left_at = "".join(traceback.format_stack(frame))
            call = call_in(frame)
            self._host.cut_off()
            self._host.close_from_outside()
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                log.warning("%s is stuck in %s of its environment, and is given up", self._thread.name, call)
        del self._host  # and the memory that it shares
        return "has ended"

    def let_go(self) -> None:
        self.orders.close()

    def stuck(self) -> list[tuple[threading.Thread, FrameType]]:
        """The abandoned threads that are still alive, and where they are."""
        frames = sys._current_frames()
        alive = [thread for thread in self._given_up if thread.is_alive()]
        return [(thread, frames[thread.ident]) for thread in alive if thread.ident in frames]


class ThreadCrew(Supervisor):
    """A supervisor of threads."""

    kind = EnvThread

    def _together(self, process: EnvProcess) -> Iterable[int]:
        return range(len(self.facts))


def call_in(frame: FrameType | None) -> str:
    """The environment's method that a thread is in."""
    while frame is not None:
        if frame.f_code.co_filename in (worker_main.__file__, env_runner.__file__) and frame.f_code.co_name in _CALLS:
            return f"the {_CALLS[frame.f_code.co_name]}"
        frame = frame.f_back
    return "a call"
