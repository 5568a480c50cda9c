"""An asynchronous manager in this process whose answers, and faults, come in the order that a test chose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.envs import EnvManager, StepResult
from flowrl.envs.managers.faults import FaultLog


class ScheduledManager(EnvManager):
    """Steps each environment when the schedule says that it answers.

    Args:
        answers: For each step the ids that answer, as far as they are stepping; where none of them is, all who are.
            The list begins anew when it is over.
        faults: `(env_id, n)`: the n-th step of that environment, from 0, fails instead.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        answers: Sequence[Iterable[int]],
        faults: Iterable[tuple[int, int]] = (),
        max_retry: int = 3,
    ) -> None:
        super().__init__(envs)
        self._faults = FaultLog(len(envs), max_retry)
        self._answers, self._failing = [list(ids) for ids in answers], set(faults)
        self._turn = 0
        self._taken = [0] * len(envs)
        self._stepping: dict[int, Any] = {}  # actions without an answer

    @property
    def ready(self) -> npt.NDArray[np.bool_]:
        return np.array([env_id not in self._stepping for env_id in range(self.num_envs)])

    def step(self, actions: npt.ArrayLike, wait: npt.NDArray[np.bool_] | None = None) -> StepResult:
        chosen, ready = self._checked_actions(actions), self.ready
        sent = np.flatnonzero(ready if wait is None else ready & ~wait).tolist()
        self._stepping |= {env_id: chosen[env_id].copy() for env_id in sent}
        told = self._answers[self._turn % len(self._answers)]
        self._turn += 1
        return self._answer([i for i in told if i in self._stepping] or list(self._stepping))

    def _answer(self, env_ids: list[int]) -> StepResult:
        arrived, after = self._buffers[(self._at + 1) % 3], self._buffers[(self._at + 2) % 3]
        arrived[:] = after[:] = self._buffers[self._at]
        reward, acted = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        terminated, truncated = np.zeros_like(acted), np.zeros_like(acted)
        self.done = np.zeros_like(acted)
        for env_id in env_ids:
            action, number = self._stepping.pop(env_id), self._taken[env_id]
            self._taken[env_id] += 1
            if (env_id, number) in self._failing:
                self._fault(env_id, "step", "exception", "as planned", f"Traceback of {env_id}")
                self._begin(env_id, after)
                continue
            arrived[env_id], reward[env_id], *ends, info = self._steps[env_id](action)
            acted[env_id], (terminated[env_id], truncated[env_id]) = True, ends
            self.t[env_id] += 1
            self._return[env_id] += reward[env_id]
            after[env_id] = arrived[env_id]
            if any(ends):
                self._end(env_id, info, after)
        self._at = (self._at + 2) % 3
        return StepResult(arrived, reward, terminated, truncated, acted)

    def _begin_all(self) -> None:
        self._stepping = {}
        super()._begin_all()

    def _save_envs(self) -> dict[str, Any]:
        return {**super()._save_envs(), "mine": [self._turn, list(self._taken), dict(self._stepping)]}

    def _load_envs(self, state: dict[str, Any]) -> None:
        super()._load_envs(state)
        self._turn, self._taken, self._stepping = state["mine"][0], list(state["mine"][1]), dict(state["mine"][2])
