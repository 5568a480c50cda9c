"""Environments in other processes, which all answer each step."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.envs.managers.base import Manager, StepResult, check_number
from flowrl.envs.managers.env_runner import EnvFailure
from flowrl.envs.managers.env_thread import ThreadCrew
from flowrl.envs.managers.faults import DURING, KINDS, Fault, FaultLog
from flowrl.envs.managers.shared_memory import STEP
from flowrl.envs.managers.supervisor import Limits, Report, Supervisor
from flowrl.envs.spaces import Observations
from flowrl.errors import ConfigError, FlowError
from flowrl.storage.codec import Pickled

#: The point of a journal with the faults of a step, see `flowrl.engine.recording.journal`.
FAULTS = "@faults"
#: The start method of environments in threads of this process.
THREADS = "thread"


class SubprocessEnvManager(Manager):
    """Steps environments in other processes, several to a process, and resets each as soon as its episode ends.

    Transitions equal those of `EnvManager` with the same seed (T3): this process draws the seeds of all episodes. All
    data goes through shared memory, so a step costs each process one wake-up.

    A fault cuts the episode of its environment alone: an environment that fails in a step is reset, one that fails in
    a reset is recreated. One that exceeds its time limit, even inside C code, or crashes its process also costs the
    episodes of those in the same process (`Fault.collateral`); the process is replaced.

    Args:
        factories: Each makes one environment. Under "spawn" they travel as cloudpickles.
        envs_per_process: Environments per process; None: as many as give one process per core.
        start_method: Of `multiprocessing`; None: "fork" on Linux, but "spawn" elsewhere and where a library is loaded
            whose threads do not survive a fork, such as JAX. "thread": threads of this process in their place, for a
            debugger, or to follow a journal.
        step_timeout: Seconds that one step of one environment may take; `reset_timeout` limits a reset, and
            `launch_timeout` the start of a process or the creation of one environment.
        max_retry: Faults that an environment may have without finishing an episode in between.
        episode_seeds: Fixed seeds of the episodes, see `Manager`.

    Raises: ConfigError if the environments differ in their spaces, or for an invalid limit; EnvFault if one cannot be
    made.

    >>> import gymnasium
    >>> with SubprocessEnvManager([lambda: gymnasium.make("CartPole-v1")] * 2) as manager:
    ...     manager.launch(seed=0)
    ...     manager.step([0, 1]).next_obs.shape
    (2, 4)
    """

    _crew_type = Supervisor

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        envs_per_process: int | None = None,
        start_method: str | None = None,
        step_timeout: float = 60.0,
        reset_timeout: float = 60.0,
        launch_timeout: float = 120.0,
        max_retry: int = 3,
        episode_seeds: Sequence[int] | None = None,
    ) -> None:
        check_number(len(factories))
        if max_retry < 0:
            raise ConfigError(f"max_retry={max_retry}: expected 0 or more")
        limits, faults = Limits(step_timeout, reset_timeout, launch_timeout), FaultLog(len(factories), max_retry)
        self._reported: list[int] = []  # the faults of this step, as a journal has them
        crew = self._crew_type
        if start_method == THREADS:
            crew, start_method = ThreadCrew, None
        self._crew = crew(factories, envs_per_process, start_method, limits, _note_into(faults))
        try:
            self._crew.launch()
            self._crew.raise_errors()
            observation_space, action_space, _ = self._crew.facts[0]
            super().__init__(
                len(factories), observation_space, action_space, episode_seeds=episode_seeds, faults=faults
            )
            self._crew.share(self._stored_space, self.action_space)
        except BaseException:
            self._crew.close()
            raise
        self._crew.report = _weak(self._report)
        self.raw_returns = all(raw for _, _, raw in self._crew.facts)
        self._x = self._crew.exchange
        self._sent = np.zeros(self.num_envs, np.bool_)  # those whose action has no answer yet
        self._lost = np.zeros(self.num_envs, np.bool_)  # a new episode answers instead
        self._noted: set[int] = set()  # those whose ended episode is recorded already
        self._place_buffers()
        _living.add(self)

    def _place_buffers(self) -> None:
        self._buffers = list(self._x.stores)  # the processes write here, so nothing is copied

    def step(self, actions: npt.ArrayLike) -> StepResult:
        chosen = self._checked_actions(actions)
        x, self._phase = self._x, "failed"  # until the step succeeds
        x.action[:] = chosen
        x.at[0] = (self._at + 1) % 3
        x.command.fill(STEP)
        self._sent.fill(True)
        self._reported.clear()
        self._crew.work(self._crew.processes)
        if self.decisions.replays:
            self._repeat_faults(self.decisions.decide(FAULTS, ()))
            self._crew.settle()
        else:
            self._crew.settle()
            self.decisions.decide(FAULTS, self._reported)
        return self._answer(None)

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._tell_coming_seeds(range(self.num_envs))

    # Answers.

    def _answer(self, answered: npt.NDArray[np.bool_] | None) -> StepResult:
        """Return the results of the processes, of the environments in a mask `[N]` or of all."""
        lost = self._lost if answered is None else self._lost & answered
        acted = answered
        if np.count_nonzero(lost):  # faster than any()
            acted = ~lost if answered is None else answered & ~lost
        reward, terminated, truncated = (
            column.copy() if acted is None else np.where(acted, column, False)
            for column in (self._x.reward, self._x.terminated, self._x.truncated)
        )
        self._at = (self._at + 1) % 3
        arrived = self._arrived(acted)
        self.done = terminated | truncated
        self._count(acted, reward)
        for env_id in self.done.nonzero()[0].tolist():
            if env_id not in self._noted:
                self._note_end(env_id)
        fresh = self.done | lost
        if np.count_nonzero(fresh):
            self._at = (self._at + 1) % 3
            self._buffers[self._at][:] = arrived
            self._take_began(fresh)
        self._settled(answered)
        self._crew.raise_errors()
        self._phase = "running"
        return self._result(arrived, reward.astype(np.float64, copy=False), terminated, truncated, acted)

    def _arrived(self, acted: npt.NDArray[np.bool_] | None) -> Observations:
        """The observations arrived in, in the buffer at `self._at`."""
        return self._buffers[self._at]

    def _take_began(self, fresh: npt.NDArray[np.bool_]) -> None:
        self._buffers[self._at][fresh] = self._x.began[fresh]

    def _settled(self, answered: npt.NDArray[np.bool_] | None) -> None:
        if answered is None:
            self._sent.fill(False)
            self._lost.fill(False)
            self._noted.clear()
        else:
            self._sent &= ~answered
            self._lost &= ~answered
            self._noted -= set(answered.nonzero()[0].tolist())

    def _count(self, acted: npt.NDArray[np.bool_] | None, reward: npt.NDArray[np.float64]) -> None:
        if acted is None and not self._noted:
            self.t += 1
            self._return = [total + gain for total, gain in zip(self._return, reward.tolist())]
            return
        counted = np.ones(self.num_envs, np.bool_) if acted is None else acted
        for env_id in counted.nonzero()[0].tolist():
            if env_id not in self._noted:
                self._count_one(env_id)

    def _count_one(self, env_id: int) -> None:
        self.t[env_id] += 1
        self._return[env_id] += self._x.reward.item(env_id)

    def _note_end(self, env_id: int) -> None:
        """Record an ended episode; the process has begun the next one already, with the seed it got."""
        x = self._x
        episode = env_id, self.episode_id.item(env_id), self._return[env_id], self.t.item(env_id)
        self._next_episode(env_id)
        self._draw_seed(env_id)
        self._tell_coming_seeds([env_id])
        columns = (x.ending, x.return_, x.length, x.success)
        self._finish(*episode, *(column.item(env_id) for column in columns))

    def _recorded(self, env_id: int) -> tuple[float, int]:
        return self._x.return_.item(env_id), self._x.length.item(env_id)

    # Faults.

    def _repeat_faults(self, noted: Sequence[int]) -> None:
        """Let the faults of a journal come again: those of processes are made, the others have to come by themselves.

        Each is four numbers: environment, during what, kind, and a mask of the environments that were cut with it.
        """
        for at in range(0, len(noted), 4):
            env_id, during, kind = noted[at], DURING[noted[at + 1]], KINDS[noted[at + 2]]
            if kind in ("exit", "timeout"):
                self._crew.lose(env_id, during, kind)
            process = self._crew.process_of(env_id)
            while process.busy and len(self._reported) <= at:
                self._crew.wait_for(process)
            if self._reported[: at + 4] != list(noted[: at + 4]):
                self.decisions.depart("Rollouts", f"environment {env_id} does not fail as in the journal, by {kind}")

    def _report(self, failure: EnvFailure, collateral: Sequence[int]) -> None:
        env_id = failure.env_id
        mask = sum(1 << each for each in collateral)
        self._reported += [env_id, DURING.index(failure.during), KINDS.index(failure.kind), mask]
        if failure.during == "reset" and self._sent[env_id] and not self._lost[env_id] and env_id not in self._noted:
            self._count_one(env_id)  # its step is a transition; only the next episode failed to begin
            self._note_end(env_id)
            self._noted.add(env_id)
        cut = [env_id, *collateral]
        for each in cut:
            self._lost[each] |= each not in self._noted
        try:
            self._fault(env_id, failure.during, failure.kind, failure.message, failure.traceback, collateral)
        finally:
            self._tell_seeds(cut)

    def _tell_seeds(self, env_ids: Sequence[int]) -> None:
        """Draw the seeds of episodes that are about to begin."""
        for env_id in env_ids:
            self._x.seed[env_id] = self._draw_seed(env_id)
        self._tell_coming_seeds(env_ids)

    def _tell_coming_seeds(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._x.next_seed[env_id] = self._coming_seed(env_id)

    # Beginning, saving, ending.

    def _begin_all(self) -> None:
        self._crew.quiesce()
        self._forget()
        self._tell_seeds(range(self.num_envs))
        self._crew.begin()
        self._forget()
        self._crew.raise_errors()
        self._take_began(np.ones(self.num_envs, np.bool_))

    def _forget(self) -> None:
        """Forget all outstanding answers."""
        self._settled(None)

    def _save_envs(self) -> dict[str, Any]:
        envs: dict[int, Pickled | None] = {}
        for process in self._crew.processes:
            while (saved := self._crew.save(process)) is None:
                self._catch_up()
            envs |= saved
        return {"envs": [envs[env_id] for env_id in range(self.num_envs)]}

    def _catch_up(self) -> None:
        """Take the first observations of environments that lost their episodes between two steps."""
        self._phase = "failed"
        self._crew.settle()
        self._crew.raise_errors()
        self._phase = "running"
        fresh = self._lost & ~self._sent
        if not fresh.any():
            return
        before, self._at = self._buffers[self._at], (self._at + 1) % 3
        self._buffers[self._at][:] = before
        self._take_began(fresh)
        self._lost &= ~fresh

    def _prepare_to_load(self) -> None:
        if not self._streams:  # never launched
            self._sow(0)
        self._crew.restore()

    def _load_envs(self, state: dict[str, Any]) -> None:
        lost = self._crew.load({env_id: packed for env_id, packed in enumerate(state["envs"]) if packed is not None})
        self._forget()
        cut = np.array([packed is None or env_id in lost for env_id, packed in enumerate(state["envs"])])
        self._cut_at_load, env_ids = cut, cut.nonzero()[0].tolist()
        self._cut(env_ids)
        self._tell_coming_seeds(range(self.num_envs))
        self._tell_seeds(env_ids)
        self._crew.reset(env_ids)
        self._crew.raise_errors()
        self._take_began(cut | self._lost)
        self._forget()

    def _kind(self) -> str:
        return "an EnvManager"  # their states are interchangeable

    def _close(self) -> None:
        failures = self._crew.close()
        self._buffers = []
        del self._x
        if failures:
            raise FlowError(
                "; ".join(f"environment {each.env_id} failed as it closed: {each.message}" for each in failures)
            )


_living: weakref.WeakSet[SubprocessEnvManager] = weakref.WeakSet()


def _disown() -> None:
    """In a fork: leave the memory alone, which the parent shares and goes on using."""
    for manager in list(_living):
        manager._phase = "closed" if manager._phase == "closed" else "forked"


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_disown)


def _note_into(faults: FaultLog) -> Report:
    """Report into a fault log before there are episodes."""

    def report(failure: EnvFailure, collateral: Sequence[int]) -> None:
        about = attrs.asdict(failure)
        faults.add(Fault(**about, episode_id=0, t=0, seed=None, collateral=tuple(collateral)))

    return report


def _weak(report: Report) -> Report:
    """A weak reference: else a manager would hold itself, and its processes would outlive it until collected."""
    reference = weakref.WeakMethod(report)

    def call(failure: EnvFailure, collateral: Sequence[int]) -> None:
        if method := reference():
            method(failure, collateral)

    return call
