"""Environments in other processes, where fast ones do not wait for slow ones."""

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

#: The point of a journal with the environments that answered a step, as a mask, and its faults.
ANSWERED = "@answered"

_COLUMNS = ("reward", "terminated", "truncated", "ending", "return_", "length", "success")


class AsyncSubprocessEnvManager(SubprocessEnvManager):
    """Steps environments in other processes and returns those that have answered; the rest answers a later step.

    `step` sends the actions of the `ready` environments, and returns once `wait_num` have answered, or after
    `wait_seconds` if at least one has; `StepResult.acted` marks them. The others are not ready: they keep the `obs`,
    `episode_id` and `t` that they acted from until a step returns their answer (T11). Environments of one process
    answer together.

    The clock decides which environments answer a step, so runs are not repeatable; but the transitions of each
    environment are, given its actions (T3). `state_dict()` and `seed()` wait for outstanding answers and keep them for
    the next step.

    Args:
        wait_num: Answers that a step waits for; None: a quarter of the environments.
        wait_seconds: Longest wait for them.

    The rest, faults included, is that of `SubprocessEnvManager`.

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
        """Returned observations are copies: processes write to the store while they are in use."""
        self._buffers = [make_store(self._stored_space, self.num_envs) for _ in range(3)]

    @property
    def ready(self) -> npt.NDArray[np.bool_]:
        return self._idle()

    def step(self, actions: npt.ArrayLike, wait: npt.NDArray[np.bool_] | None = None) -> StepResult:
        """Like `Manager.step`. `wait [N]`: environments that get no action yet, although they are ready."""
        chosen = self._checked_actions(actions)
        ready = self._idle() if wait is None else self._idle() & ~wait
        if not (ready | self._sent).any():
            raise FlowError("nothing is left to wait for: every environment was told to wait")
        x, self._phase = self._x, "failed"
        x.action[ready] = chosen[ready]
        x.command[ready] = STEP
        self._sent |= ready
        self._reported.clear()
        self._crew.work(process for process in self._crew.processes if ready[process.env_ids].any())
        return self._answer(self._follow() if self.decisions.replays else self._wait())

    def _follow(self) -> npt.NDArray[np.bool_]:
        """The environments that have answered in the journal, and the faults that came before."""
        mask, *faults = self.decisions.decide(ANSWERED, ()) or [0]
        self._repeat_faults(faults)
        answered = np.array([bool(mask >> env_id & 1) for env_id in range(self.num_envs)])
        for process in self._crew.processes:
            while process.busy and answered[process.env_ids].any():
                self._crew.wait_for(process)
        if self._reported != faults or (answered & ~self._sent & ~self._lost).any() or not mask:
            self.decisions.depart("Rollouts", "other environments answer a step than in the journal")
        return answered

    def _idle(self) -> npt.NDArray[np.bool_]:
        """The environments of processes without outstanding answers."""
        idle = ~self._sent
        if idle.any() and len(self._crew.processes) < self.num_envs:
            for process in self._crew.processes:
                idle[process.env_ids] = idle[process.env_ids].all()
        return idle

    def _wait(self) -> npt.NDArray[np.bool_]:
        """The environments that have answered, once there are enough."""
        until = time.monotonic() + self._wait_seconds
        enough = min(self._wait_num, self._sent.sum())
        while True:
            answered = self._sent | self._lost  # a fault may also cut the episode of one that waits
            for process in self._crew.processes:
                if process.busy:
                    answered[process.env_ids] = False
            left = until - time.monotonic() if answered.any() else math.inf
            if answered.sum() >= enough or left <= 0:
                mask = sum(1 << env_id for env_id in answered.nonzero()[0].tolist())
                self.decisions.decide(ANSWERED, [mask, *self._reported])
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
                if env_id not in self._noted:  # its next episode has begun with a seed of the old stream
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
        x, cut = self._x, self._cut_at_load
        for name, column in state["answers"].items():
            vars(x)[name][:] = column
        for store, saved in ((x.stores[0], state["arrived"]), (x.began, state["began"])):
            store[:] = Batch(saved) if isinstance(saved, dict) else saved
        self._sent[:], self._lost[:] = np.array(state["sent"]) & ~cut, np.array(state["lost"]) & ~cut
        self._noted = set(state["noted"]) - set(cut.nonzero()[0].tolist())

    def _kind(self) -> str:
        return "an AsyncSubprocessEnvManager"
