"""Environments in threads of this process, for those that drive an external client."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import gymnasium
import numpy as np

from flowrl.envs.managers import env_runner, worker_main
from flowrl.envs.managers.shared_memory import SharedMemory
from flowrl.envs.managers.subprocess import SubprocessEnvManager
from flowrl.envs.managers.supervisor import EnvProcess, Supervisor
from flowrl.envs.managers.worker_main import Host

log = logging.getLogger("flowrl")

#: Seconds that a thread which is given up has, once its environment is closed, to come back from where it is stuck.
PATIENCE = 0.4

_CALLS = {"make": "construction", "_reset": "reset", "_step": "step", "close": "close", "save": "save", "load": "load"}
"""What a thread is at, by the function of ours that called the environment."""


class _ThreadHost(Host):
    """What runs in the thread."""

    def live(self) -> None:
        with contextlib.suppress(OSError), self._orders:  # nobody wants its answer any more
            self.serve()

    def share(self, *shape: Any) -> None:
        self._shape = shape
        super().share(*shape)

    def cut_off(self) -> None:
        """What it still writes goes nowhere: the columns belong to a new thread."""
        if self._exchange is None:
            return
        nowhere = SharedMemory(np.zeros, *self._shape)
        self._commands = env_runner.plainly(nowhere.command)
        for env in self._hosted.values():
            env.attach(nowhere)

    def close_from_outside(self) -> None:
        """Calls `close()` of the environments, in another thread: it may be stuck too."""

        def close() -> None:
            for env in list(self._envs.values()):
                with contextlib.suppress(BaseException):  # it is in the middle of something else
                    env.close()

        closing = threading.Thread(target=close, name=f"flowrl-close-{self._host}", daemon=True)
        closing.start()
        closing.join(PATIENCE)


class EnvThread(EnvProcess):
    """A thread where there would be a process. One that is given up may live on, but has no say any more."""

    _given_up: Sequence[threading.Thread] = ()

    def start(self) -> None:
        theirs = self._begin()
        self._host = _ThreadHost(theirs, self._factories, self.host)
        # A daemon, for if it stays stuck the interpreter must be able to exit; else it is joined.
        self._thread = threading.Thread(target=self._host.live, name=f"flowrl-env-{self.env_ids[0]}", daemon=True)
        before = [thread for thread in self._given_up if thread.is_alive()]
        self._given_up = [*before, self._thread]
        try:
            self._thread.start()
        except BaseException:  # there are as many as there may be
            self.alive = False
            self.let_go()
            theirs.close()
            raise

    @property
    def pid(self) -> int:
        return os.getpid()

    def kill(self) -> str:
        """Gives it up: closes its environments where it does not come back by itself."""
        if not self.alive:
            return ""
        was_busy, self.alive, self.busy, self.left_at = self.busy, False, False, ""
        self.let_go()
        self._thread.join(0 if was_busy else PATIENCE)
        frame = sys._current_frames().get(self._thread.ident or 0)
        if self._thread.is_alive() and frame is not None:
            self.left_at = "".join(traceback.format_stack(frame))
            call = _call(frame)
            self._host.cut_off()
            self._host.close_from_outside()
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                log.warning("%s is stuck in %s of its environment, and is given up", self._thread.name, call)
        del self._host  # and with it what it shares
        return "has ended"

    def let_go(self) -> None:
        self.orders.close()

    def stuck(self) -> list[tuple[threading.Thread, FrameType]]:
        """The threads that are still alive, and where they are."""
        frames = sys._current_frames()
        alive = [thread for thread in self._given_up if thread.is_alive()]
        return [(thread, frames[thread.ident]) for thread in alive if thread.ident in frames]


class ThreadCrew(Supervisor):
    """The threads of a manager as one."""

    kind = EnvThread


class ThreadEnvManager(SubprocessEnvManager):
    """Steps environments in threads of this process, one each, and resets each as soon as its episode ends.

    For environments that wait for something outside: a game's server, a simulator's process, a device. Each spends its
    whole life in its own thread: construction, resets, steps and close. All answer each step, and transitions are those
    of `EnvManager` with the same seed (T3). Environments that compute do so one after the other, as Python threads do;
    `SubprocessEnvManager` is for those.

    Faults are treated as by `SubprocessEnvManager`, but a thread cannot be killed. Where one is over its time limit its
    environment's `close()` is called from outside, which should end what it waits for, and a new environment is made in
    a new thread. What still comes from the old thread is ignored. One that stays stuck is named in the log, again by
    `close()`, and does not keep the interpreter from exiting. What holds the interpreter's lock stops everything, time
    limits too.

    Args:
        factories: Each makes one environment.
        step_timeout: Seconds that a step may take; `reset_timeout` and `launch_timeout` the same for a reset, and for
            the making of an environment.
        max_retry: Faults that an environment may have without finishing an episode in between.
        episode_seeds: Fixed seeds of the episodes, see `Manager`.

    >>> import gymnasium
    >>> with ThreadEnvManager([lambda: gymnasium.make("CartPole-v1")] * 2) as manager:
    ...     manager.launch(seed=0)
    ...     manager.step([0, 1]).next_obs.shape
    (2, 4)
    """

    _crew_type = ThreadCrew

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        step_timeout: float = 60.0,
        reset_timeout: float = 60.0,
        launch_timeout: float = 120.0,
        max_retry: int = 3,
        episode_seeds: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            factories,
            envs_per_process=1,
            step_timeout=step_timeout,
            reset_timeout=reset_timeout,
            launch_timeout=launch_timeout,
            max_retry=max_retry,
            episode_seeds=episode_seeds,
        )

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            for process in self._crew.processes:
                assert isinstance(process, EnvThread)
                for thread, frame in process.stuck():
                    log.warning("%s is still stuck in %s of its environment", thread.name, _call(frame))


def _call(frame: FrameType | None) -> str:
    """The call of the environment in which a thread is."""
    while frame is not None:
        if frame.f_code.co_filename in (worker_main.__file__, env_runner.__file__) and frame.f_code.co_name in _CALLS:
            return f"the {_CALLS[frame.f_code.co_name]}"
        frame = frame.f_back
    return "a call"
