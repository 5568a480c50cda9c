"""Environments in other processes, of which the quick do not wait for the slow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.data.batch import Batch
from flowrl.envs.managers.base import StepResult, check_number
from flowrl.envs.managers.shared_memory import STEP
from flowrl.envs.managers.subprocess import SubprocessEnvManager
from flowrl.envs.spaces import Observations, make_store, plain_copy
from flowrl.errors import ConfigError, FlowError

_COLUMNS = ("reward", "terminated", "truncated", "ending", "return_", "length", "success")


class AsyncSubprocessEnvManager(SubprocessEnvManager):
    """Steps environments in other processes and hands out what has answered; the rest answers in a later step.

    `step` sends the actions of the environments that are `ready` and returns when `wait_num` have answered, or
    `wait_seconds` after its call if at least one has; `StepResult.acted` says which. An environment that has not is
    not ready: its `obs`, `episode_id` and `t` stay those that it acted from, until its answer is handed out with them
    (T11). Several environments of one process answer together.

    Which environments answer a step depends on the clock, so a run is not repeatable; the transitions of each
    environment, given its actions, are (T3). `state_dict()` and `seed()` wait for the answers due and keep them for
    the next step.

    Args:
        wait_num: Environments; a quarter of them unless said.
        wait_seconds: How long a step waits for so many.

    All else is that of `SubprocessEnvManager`, faults included.

    >>> import gymnasium
    >>> with AsyncSubprocessEnvManager([lambda: gymnasium.make("CartPole-v1")] * 4, wait_num=2) as manager:
    ...     manager.launch(seed=0)
    ...     result = manager.step([0, 1, 0, 1])
    ...     bool((result.acted == manager.ready).all()), bool(result.acted.sum() >= 2)
    (True, True)
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        envs_per_process: int = 1,
        wait_num: int | None = None,
        wait_seconds: float = math.inf,
        start_method: str | None = None,
        step_timeout: float = 60.0,
        reset_timeout: float = 60.0,
        launch_timeout: float = 120.0,
        max_retry: int = 3,
        episode_seeds: Sequence[int] | None = None,
    ) -> None:
        check_number(len(factories))
        self._wait_num = max(1, len(factories) // 4) if wait_num is None else wait_num
        if not 1 <= self._wait_num <= len(factories):
            raise ConfigError(f"wait_num={wait_num}: expected 1 to {len(factories)}, the number of environments")
        if not wait_seconds >= 0:
            raise ConfigError(f"wait_seconds={wait_seconds}: expected seconds, 0 or more")
        self._wait_seconds = wait_seconds
        super().__init__(
            factories,
            envs_per_process=envs_per_process,
            start_method=start_method,
            step_timeout=step_timeout,
            reset_timeout=reset_timeout,
            launch_timeout=launch_timeout,
            max_retry=max_retry,
            episode_seeds=episode_seeds,
        )

    def _place_buffers(self) -> None:
        """Processes write into one store while what was handed out from it is still in use, so it is copied."""
        self._buffers = [make_store(self.observation_space, self.num_envs) for _ in range(3)]

    @property
    def ready(self) -> npt.NDArray[np.bool_]:
        return self._idle()

    def step(self, actions: npt.ArrayLike, wait: npt.NDArray[np.bool_] | None = None) -> StepResult:
        """As `Manager.step`. `wait [N]`: the environments that get no action yet, though they are ready."""
        chosen = self._checked_actions(actions)
        ready = self._idle() if wait is None else self._idle() & ~wait
        if not (ready | self._sent).any():
            raise FlowError("nothing is left to wait for: every environment was told to wait")
        x, self._phase = self._x, "failed"
        x.action[ready] = chosen[ready]
        x.command[ready] = STEP
        self._sent |= ready
        self._crew.work(process for process in self._crew.processes if ready[process.env_ids].any())
        return self._answer(self._wait())

    def _idle(self) -> npt.NDArray[np.bool_]:
        """The environments of processes that owe no answer that was not handed out."""
        idle = ~self._sent
        if idle.any() and len(self._crew.processes) < self.num_envs:
            for process in self._crew.processes:
                idle[process.env_ids] = idle[process.env_ids].all()
        return idle

    def _wait(self) -> npt.NDArray[np.bool_]:
        """The environments that have answered, when they are enough."""
        until = time.monotonic() + self._wait_seconds
        enough = min(self._wait_num, self._sent.sum())
        while True:
            answered = self._sent | self._lost  # a fault may cost one that was told to wait its episode too
            for process in self._crew.processes:
                if process.busy:
                    answered[process.env_ids] = False
            left = until - time.monotonic() if answered.any() else math.inf
            if answered.sum() >= enough or left <= 0:
                return answered
            self._crew.wait(left)

    def _arrived(self, acted: npt.NDArray[np.bool_] | None) -> Observations:
        before, arrived = self._buffers[(self._at - 1) % 3], self._buffers[self._at]
        arrived[:] = before
        arrived[acted] = self._x.stores[0][acted]
        return arrived

    def seed(self, seed: int) -> None:
        if self._phase == "running":
            self._catch_up()
            for env_id in (self._sent & ~self._lost & (self._x.terminated | self._x.truncated)).nonzero()[0].tolist():
                if env_id not in self._noted:  # its next episode has begun with the seed that the old stream gave
                    self._count_one(env_id)
                    self._note_end(env_id)
                    self._noted.add(env_id)
        super().seed(seed)

    def _save_envs(self) -> dict[str, Any]:
        self._catch_up()
        saved = super()._save_envs()
        x = self._x
        return {
            **saved,
            "sent": self._sent.tolist(),
            "lost": self._lost.tolist(),
            "noted": sorted(self._noted),
            "answers": {name: vars(x)[name].copy() for name in _COLUMNS},
            "arrived": plain_copy(x.stores[0]),
            "began": plain_copy(x.began),
        }

    def _load_envs(self, state: dict[str, Any]) -> None:
        super()._load_envs(state)
        x, cut = self._x, np.array([packed is None for packed in state["envs"]])
        for name, column in state["answers"].items():
            vars(x)[name][:] = column
        for store, saved in ((x.stores[0], state["arrived"]), (x.began, state["began"])):
            store[:] = Batch(saved) if isinstance(saved, dict) else saved
        self._sent[:], self._lost[:] = np.array(state["sent"]) & ~cut, np.array(state["lost"]) & ~cut
        self._noted = set(state["noted"]) - set(cut.nonzero()[0].tolist())

    def _kind(self) -> str:
        return "an AsyncSubprocessEnvManager"
