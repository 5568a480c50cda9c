"""Environments in threads of this process, for those that wait for an external program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from flowrl.envs.managers.env_thread import EnvThread, ThreadCrew, call_in
from flowrl.envs.managers.subprocess import SubprocessEnvManager

log = logging.getLogger("flowrl")


class ThreadEnvManager(SubprocessEnvManager):
    """Steps environments in threads of this process, one each, and resets each as soon as its episode ends.

    For environments that wait for something external: a game server, a simulator process, a device. Each spends its
    whole life in its own thread: construction, resets, steps and close. All answer each step, and transitions equal
    those of `EnvManager` with the same seed (T3). Environments that compute run one at a time, like all Python threads;
    take `SubprocessEnvManager` for those.

    It handles faults like `SubprocessEnvManager`, but cannot kill a thread. If one exceeds its time limit, it calls the
    environment's `close()` from outside, which should end the wait, and makes a new environment in a new thread. It
    ignores later output of the old thread. The log names a thread that stays stuck, again at `close()`; it does not
    keep the interpreter from exiting. Code that holds the interpreter lock stops everything, time limits too.

    Args:
        factories: Each makes one environment.
        step_timeout: Seconds that a step may take; `reset_timeout` limits a reset, and `launch_timeout` the creation of
            an environment.
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
                    log.warning("%s is still stuck in %s of its environment", thread.name, call_in(frame))
