"""The processes of a manager as one: orders out, answers in, whoever fails reset or renewed meanwhile."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import select
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import gymnasium
import numpy as np

from flowrl.codec import Pickled
from flowrl.envs.faults import During, Kind
from flowrl.envs.hosted import Failure
from flowrl.envs.memory import NOTHING, RESET, Arena, Exchange, memory_file
from flowrl.envs.process import GRACE, EnvProcess, end_all
from flowrl.envs.spaces import check_alike
from flowrl.errors import CheckpointError, ConfigError, EnvFault, did_you_mean

_DAY = 24 * 60 * 60.0


@attrs.frozen
class Limits:
    """How long one step, one reset, and one construction of an environment may take, in seconds."""

    step_timeout: float = 60.0
    reset_timeout: float = 60.0
    launch_timeout: float = 120.0

    def __attrs_post_init__(self) -> None:
        for name, seconds in attrs.asdict(self).items():
            if not 0 < seconds <= _DAY:
                raise ConfigError(f"{name}={seconds}: expected seconds, more than 0 and at most a day")


Report = Callable[[Failure, Sequence[int]], None]
"""Keeps account of a failure and the environments that were lost with it; raises EnvFault where it is one too many."""


class Crew:
    """Keeps environments alive, a few to a process.

    What fails in a step is reset, what fails in a reset is made anew, and a process that is over time or gone is
    renewed with all its environments. `report` hears of each failure, and puts the seed of the reset that follows into
    the exchange. Where it raises EnvFault, that is kept in `errors`, and the process waits for `begin`.
    """

    exchange: Exchange
    kind: type[EnvProcess] = EnvProcess

    def __init__(
        self,
        factories: Sequence[Callable[[], Any]],
        envs_per_process: int | None,
        start_method: str | None,
        limits: Limits,
        report: Report,
    ) -> None:
        self.limits, self.report = limits, report
        self.facts: list[Any] = [None] * len(factories)
        self.errors: list[EnvFault] = []
        method = _checked_method(start_method)
        self.processes = [
            self.kind(host, {env_id: factories[env_id] for env_id in env_ids}, method)
            for host, env_ids in enumerate(_spread(len(factories), envs_per_process))
        ]
        self._shape: tuple[Any, ...] | None = None
        self._files: list[int] = []  # that of the memory, once there is one
        self._quiet = False
        self._poll, self._by_file = select.poll(), dict[int, EnvProcess]()
        self._finalizer = weakref.finalize(self, _end, self.processes, self._files, limits)

    def launch(self) -> None:
        """Makes all environments: observation space, action space and whether returns are raw are in `facts` then."""
        for process in self.processes:
            self._start(process)
        self.settle()

    def share(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        """Lays out the memory that all share."""
        shape = (observation_space, action_space, len(self.facts), len(self.processes))
        self._files.append(memory_file(lambda zeros: Exchange(zeros, *shape)))
        self.exchange = Exchange(Arena(self._files[0]).zeros, *shape)
        self._shape = shape

    def begin(self) -> None:
        """Resets all environments with the seeds in the exchange, making those that there are not."""
        self.quiesce()
        for process in self.processes:
            process.halted, process.resetting = False, set(process.env_ids)
            if process.alive:
                self._go_on(process)
            else:
                self._start(process)
        self.settle()

    def work(self, processes: Iterable[EnvProcess]) -> None:
        """Lets processes obey the commands in the exchange."""
        for process in processes:
            self._wake(process)

    def settle(self) -> None:
        """Until no answer is due."""
        while any(process.busy for process in self.processes):
            self.wait()

    def quiesce(self) -> None:
        """The same, whatever the answers are: nothing is reported, and what failed waits for `begin`."""
        self._quiet = True
        try:
            self.settle()
        finally:
            self._quiet = False

    def wait(self, seconds: float = math.inf) -> None:
        """Hears who answers first, at most so many seconds; renews who is over time."""
        deadline = min(self._deadline(process) for process in self.processes if process.busy)
        left = min(deadline - time.monotonic(), seconds)
        for file, _ in self._poll.poll(max(0, math.ceil(left * 1000))):
            if process := self._by_file.get(file):
                self._hear(process)
        if time.monotonic() >= deadline:
            for process in self.processes:
                if process.busy and self._deadline(process) <= time.monotonic():
                    self._lost(process, "timeout")

    def reset(self, env_ids: Iterable[int]) -> None:
        """Resets these, with the seeds in the exchange."""
        for process in self.processes:
            process.resetting = set(env_ids) & set(process.env_ids)
            self._go_on(process)
        self.settle()

    def save(self, process: EnvProcess) -> dict[int, Pickled | None] | None:
        """The environments of a process, None for those that cannot be saved; None if it was lost over it."""
        saved: dict[int, Pickled | None] | None = self._ask(process, "save")
        return saved

    def load(self, packed: Mapping[int, Pickled]) -> None:
        """Puts saved environments in the place of others. Raises: CheckpointError where one cannot be rebuilt."""
        self.quiesce()
        for process in self.processes:
            process.halted, process.resetting = False, set()
            if process.alive:
                self._go_on(process)
            else:
                self._start(process)
                process.resetting = set()
        self.settle()
        self.raise_errors()
        for process in self.processes:
            mine = {env_id: packed[env_id] for env_id in process.env_ids if env_id in packed}
            self._quiet = True
            try:
                answer = self._ask(process, "load", mine)
            finally:
                self._quiet = False
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                raise CheckpointError(f"a process ended as environments {list(mine)} were loaded into it")

    def raise_errors(self) -> None:
        """Raises: the first EnvFault since this was last called."""
        if self.errors:
            first = self.errors[0]
            self.errors = []
            raise first

    def _ask(self, process: EnvProcess, name: str, *arguments: Any) -> Any:
        """The answer to a rare question, None if the process was lost over it. No other answer may be due."""
        try:
            process.ask(name, *arguments)
            if process.orders.poll(self.limits.reset_timeout):
                return process.hear()
            self._lost(process, "timeout", f"no answer to {name!r} in {self.limits.reset_timeout:g} s")
        except (OSError, EOFError):
            self._lost(process, "exit")
        return None

    def close(self) -> list[Failure]:
        """Ends all processes, those that do not answer by force; what failed as environments closed is returned."""
        failures = self._finalizer() or []
        self._by_file.clear()
        if self._shape:  # whoever holds what was handed out keeps the memory
            del self.exchange
            self._shape = None
        return failures

    def _start(self, process: EnvProcess) -> None:
        process.start()
        self._by_file[process.orders.fileno()] = process
        self._poll.register(process.orders.fileno(), select.POLLIN)
        self._go_on(process)

    def _go_on(self, process: EnvProcess) -> None:
        """What the process has to do next: environments to make, then those to reset."""
        if process.halted:
            return
        try:
            if process.making:
                process.ask("make", process.making[0])
            elif process.resetting and self._shape:
                self.exchange.command[list(process.resetting)] = RESET
                process.resetting = set()
                self._wake(process)
        except OSError:
            self._lost(process, "exit")

    def _wake(self, process: EnvProcess) -> None:
        try:
            if not process.shares and self._shape:
                process.share(self._shape, self._files[0])
            process.wake()
        except OSError:
            self._lost(process, "exit")

    def _hear(self, process: EnvProcess) -> None:
        try:
            heard = process.hear()
        except Exception:  # it is gone, or was interrupted within a message
            self._lost(process, "exit")
            return
        failures: list[Failure] = heard if isinstance(heard, list) else []  # or it answers what was interrupted: save
        if process.making:
            failures = [heard] if isinstance(heard, Failure) else self._made(process.making[0], heard)
            if not failures:
                process.making.pop(0)
        for failure in failures:
            process.resetting.add(failure.env_id)
            if failure.during == "reset":
                process.making.append(failure.env_id)
        for failure in failures:
            self._report(process, failure, [])
        self._go_on(process)

    def _made(self, env_id: int, heard: bytes) -> list[Failure]:
        facts = pickle.loads(heard)
        first = next((known for known in self.facts if known is not None), facts)
        try:
            check_alike(first, facts, env_id)
        except ConfigError as error:
            if self._shape is None:
                raise
            return [Failure.of(env_id, "construction", error)]
        self.facts[env_id] = facts
        return []

    def _lost(self, process: EnvProcess, kind: Kind, message: str = "") -> None:
        """Its environments are gone: those that had nothing to do with it too."""
        env_id, during, _, limit = self._at(process)
        del self._by_file[process.orders.fileno()]
        self._poll.unregister(process.orders.fileno())
        ended = process.kill()
        if not message:
            message = f"over its time limit of {limit:g} s" if kind == "timeout" else f"its process {ended}"
        process.making, process.resetting = list(process.env_ids), set(process.env_ids)
        if self._shape:
            self.exchange.command[process.env_ids] = NOTHING
        collateral = [other for other in process.env_ids if other != env_id]
        self._report(process, Failure(env_id, during, kind, message, process.left_at), collateral)
        if not process.halted:
            self._start(process)

    def _report(self, process: EnvProcess, failure: Failure, collateral: Sequence[int]) -> None:
        if self._quiet:
            process.halted = True
            return
        try:
            self.report(failure, collateral)
        except EnvFault as error:
            self.errors.append(error)
            process.halted = True

    def _at(self, process: EnvProcess) -> tuple[int, During, float, float]:
        """The environment that a process is at, what it does, since when, and how long that may take."""
        limits = self.limits
        if process.making:
            return process.making[0], "construction", process.told, limits.launch_timeout
        env_id, since, resetting = process.env_ids[0], process.told, False
        if self._shape:
            x, host = self.exchange, process.host
            if x.since[host] >= since:
                env_id, since, resetting = int(x.current[host]), float(x.since[host]), bool(x.resetting[host])
            else:
                env_id = next((each for each in process.env_ids if x.command[each] != NOTHING), env_id)
                resetting = x.command[env_id] == RESET
        if resetting:
            return env_id, "reset", since, limits.reset_timeout
        return env_id, "step", since, limits.step_timeout

    def _deadline(self, process: EnvProcess) -> float:
        _, _, since, limit = self._at(process)
        return since + limit


def _end(processes: list[EnvProcess], files: list[int], limits: Limits) -> list[Failure]:
    try:
        return end_all(processes, min(GRACE, max(limits.step_timeout, limits.reset_timeout)))
    finally:
        while files:
            os.close(files.pop())


def _checked_method(start_method: str | None) -> str:
    methods = multiprocessing.get_all_start_methods()
    if start_method is None:
        return "fork" if "fork" in methods else "spawn"
    if start_method not in methods:
        raise ConfigError(f"start_method={start_method!r}: {did_you_mean(start_method, methods)}")
    return start_method


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spread(num_envs: int, envs_per_process: int | None) -> list[list[int]]:
    """The environments of each process, as many as there are cores where nothing is said.

    >>> _spread(5, 2)
    [[0, 1], [2, 3], [4]]
    """
    if envs_per_process is None:
        count = min(cores(), num_envs)
    elif envs_per_process < 1:
        raise ConfigError(f"envs_per_process={envs_per_process}: expected at least 1")
    else:
        count = -(-num_envs // envs_per_process)
    return [part.tolist() for part in np.array_split(np.arange(num_envs), count)]
