"""The parent's side of processes with environments: start, command, hear, kill and replace them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import multiprocessing
import multiprocessing.util  # its exit handler joins children, so it must be registered before ours
import os
import pickle
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import reduction
from operator import itemgetter
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from flowrl.envs.managers import worker_main
from flowrl.envs.managers.env_runner import EnvFailure
from flowrl.envs.managers.faults import ONE_EACH, During, Kind
from flowrl.envs.managers.shared_memory import NOTHING, RESET, Arena, SharedMemory, memory_file
from flowrl.envs.managers.worker_main import MESSAGE, WORK, kill_group
from flowrl.envs.spaces import check_alike
from flowrl.errors import CheckpointError, ConfigError, EnvFault, did_you_mean
from flowrl.storage.codec import Pickled

log = logging.getLogger("flowrl")

#: Libraries by their modules: their threads do not survive a fork, which waits for ever where one of them held a lock.
_THREADED = {"jaxlib": "JAX", "tensorflow": "TensorFlow", "jpype": "JPype"}


def start_method(asked: str | None = None) -> str:
    """How processes start: by default by fork on Linux, which is quick and takes any factory. A fork is unsafe
    elsewhere, and where a library with threads is loaded by now (R8).

    Raises: ConfigError for a fork of such a library, and for a new interpreter that would run the whole program again.
    """
    loaded = [name for module, name in _THREADED.items() if module in sys.modules]
    if asked == "fork" and loaded:
        raise ConfigError(
            f"start_method='fork': the threads of {loaded[0]}, which is loaded, do not survive a fork: take 'spawn'"
        )
    method = asked or ("fork" if sys.platform == "linux" and not loaded else "spawn")
    if method != "fork" and (main := _runs_again()):
        why = f", since the threads of {loaded[0]} do not survive a fork" if loaded and asked is None else ""
        raise ConfigError(
            f"start_method={method!r}{why}: a new process runs {main} again, so put what it does under "
            "if __name__ == '__main__': or take env_manager='local' or 'vector'"
        )
    return method


GRACE = 5.0  # seconds for operations that are instant on a healthy machine
_started: weakref.WeakSet[EnvProcess] = weakref.WeakSet()


def _runs_again() -> str:
    """The program of this process, if a new interpreter, which imports it, would do all that it does; else ""."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None:
        return ""
    if not Path(file).is_file():  # <stdin>, or a module in an archive
        return file if getattr(main, "__spec__", None) is None else ""
    return "" if b"__main__" in Path(file).read_bytes() else str(file)


class EnvProcess:
    """One process, and the environments in it by id. It restarts as needed; `orders` is the pipe of the current one.

    `making` holds the environments still to be made, the first in progress; `resetting` those to reset after that;
    `busy` tells whether an answer is due, for an order sent at `told`; `shares` whether it has the shared memory;
    `halted` whether it rests until all environments begin anew. `left_at` is the traceback of where it was killed or
    crashed, if known.
    """

    left_at = ""

    def __init__(self, host: int, factories: Mapping[int, Callable[[], Any]], method: str | None) -> None:
        self.host, self.env_ids = host, list(factories)
        self.making: list[int] = []
        self.resetting: set[int] = set()
        self.busy, self.alive, self.shares, self.halted = False, False, False, False
        self.told, self.owner = 0.0, os.getpid()
        self._method = method
        self._factories = {env_id: CloudpickleWrapper(factory) for env_id, factory in factories.items()}

    def start(self) -> None:
        context: Any = multiprocessing.get_context(start_method(self._method))  # that fits what is loaded by now
        lifeline, self._lifeline = context.Pipe(duplex=False)
        theirs = self._begin()
        trace, self._trace_path = tempfile.mkstemp(prefix="flowrl-trace-")
        self._trace, self.left_at = os.fdopen(trace), ""
        arguments = (theirs, lifeline, self._factories, self.host, self._trace_path)
        try:
            self._process: Any = context.Process(
                target=worker_main.run, args=arguments, name=f"flowrl-envs-{self.host}"
            )
            self._process.start()
        except BaseException as error:
            self.alive = False
            self.let_go()
            self._forget_trace()
            theirs.close()
            lifeline.close()
            if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
                raise ConfigError(f"the factories of environments {self.env_ids} cannot be pickled: {error}") from error
            raise
        theirs.close()
        lifeline.close()

    def _begin(self) -> Any:
        """The process's end of a new pipe `orders`; all environments are to be made."""
        self.orders, theirs = multiprocessing.Pipe()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # half a message must not block forever
            with socket.socket(fileno=os.dup(self.orders.fileno())) as end:
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(GRACE), 0))
        _started.add(self)
        self.alive, self.busy, self.shares, self.owner = True, False, False, os.getpid()
        self.making, self.resetting = list(self.env_ids), set(self.env_ids)
        return theirs

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        pid: int = self._process.pid
        return pid

    def ask(self, name: str, *arguments: Any) -> None:
        """Send an order with a message. Raises: OSError if the process is gone."""
        self.told, self.busy = time.monotonic(), True
        self._send(name, *arguments)

    def share(self, shape: tuple[Any, ...], file: int) -> None:
        """Hand over memory; no answer follows. Raises: OSError if the process is gone."""
        self._send("share", *shape)
        reduction.send_handle(self.orders, file, self.pid)
        self.shares = True

    def _send(self, name: str, *arguments: Any) -> None:
        os.write(self.orders.fileno(), MESSAGE)
        self.orders.send((name, *arguments))

    def wake(self) -> None:
        """Start work on the commands in shared memory. Raises: OSError if the process is gone."""
        self.told, self.busy = time.monotonic(), True
        os.write(self.orders.fileno(), WORK)

    def hear(self) -> Any:
        """The answer, None if shared memory holds it. Raises: OSError or EOFError if the process is gone."""
        answer = os.read(self.orders.fileno(), 1)
        if not answer:
            raise EOFError
        heard = None if answer == WORK else self.orders.recv()
        self.busy = False
        return heard

    def kill(self) -> str:
        """Kill the process and all that its environments started; describes how it ended if it had ended before."""
        if not self.alive:
            return ""
        kill_group(self._process)  # before joining: until then the id is certainly its own
        self._process.join(GRACE)
        code = self._process.exitcode
        self.let_go()
        self.alive = self.busy = False  # not earlier: if interrupted before, kill() may run again
        self.left_at = self._trace.read()
        self._forget_trace()
        if code is None:
            return "does not end"
        self._process.close()
        return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def _forget_trace(self) -> None:
        self._trace.close()
        with contextlib.suppress(FileNotFoundError):  # the process removes it, unless it ended before
            os.unlink(self._trace_path)

    def let_go(self) -> None:
        """Close this end of the pipe; the kernel then kills the process."""
        self.orders.close()
        self._lifeline.close()


def end_all(processes: Iterable[EnvProcess], seconds: float = GRACE) -> list[EnvFailure]:
    """Let processes close their environments, then kill them; returns failures of closing.

    Does nothing in a fork of the process that started them, which may have inherited this call.
    """
    ours = [process for process in processes if process.alive and process.owner == os.getpid()]
    if not ours:
        return []
    deadline = time.monotonic() + seconds
    failures: list[EnvFailure] = []
    due: dict[int, int] = {}
    poll = select.poll()
    by_file = {process.orders.fileno(): process for process in ours}
    try:
        for file, process in by_file.items():
            due[file] = 1 + process.busy
            with contextlib.suppress(OSError):
                process.ask("close")
            poll.register(file, select.POLLIN)
        while due and (left := deadline - time.monotonic()) > 0:
            for file, _ in poll.poll(left * 1000):
                due[file] -= 1
                try:
                    heard = by_file[file].hear()
                except Exception:
                    heard, due[file] = None, 0
                if not due[file]:
                    failures += heard or []
                    poll.unregister(file)
                    del due[file]
        for file in due:
            log.warning("environments %s were not closed in %.2g s, and are ended", by_file[file].env_ids, seconds)
    finally:
        _kill_all(ours)
    return failures


def _kill_all(processes: Sequence[EnvProcess]) -> None:
    """Kill all of them, even if a second Ctrl-C arrives meanwhile."""
    try:
        for process in processes:
            process.kill()
    except BaseException:
        for process in processes:
            process.kill()
        raise


def _forget() -> None:
    """In a fork: close our ends of the pipes, or the processes would not notice the death of this one."""
    for process in list(_started):
        if process.alive:
            process.let_go()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: end_all(list(_started)))


_DAY = 24 * 60 * 60.0


@attrs.frozen
class Limits:
    """Time limits of one step, one reset, and one construction of an environment, in seconds."""

    step_timeout: float = 60.0
    reset_timeout: float = 60.0
    launch_timeout: float = 120.0

    def __attrs_post_init__(self) -> None:
        for name, seconds in attrs.asdict(self).items():
            if not isinstance(seconds, int | float) or not 0 < seconds <= _DAY:
                raise ConfigError(f"{name}={seconds!r}: expected seconds, more than 0 and at most a day")


Report = Callable[[EnvFailure, Sequence[int]], None]
"""Records a failure and the environments lost with it; raises EnvFault if it is one too many."""


class Supervisor:
    """Keeps environments alive, several to a process.

    It resets an environment that fails in a step, recreates one that fails in a reset, and replaces a process that
    exceeds its time or dies, with all its environments. It calls `report` for each failure, which writes the seed of
    the following reset to shared memory. If that raises EnvFault, `errors` keeps it, and the process waits for `begin`.
    """

    exchange: SharedMemory
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
        self._files: list[int] = []  # of the shared memory, once it exists
        self._quiet = False
        self._resumed = -math.inf  # when this process last went on after it was suspended, perhaps with the others
        self._poll, self._by_file = select.poll(), dict[int, EnvProcess]()
        self._finalizer = weakref.finalize(self, _end, self.processes, self._files, limits)

    def launch(self) -> None:
        """Make all environments; `facts` then holds observation space, action space and whether returns are raw."""
        for process in self.processes:
            self._start(process)
        self.settle()
        failed = [self._together(process) for process in self.processes if process.halted]
        if any(self.facts[env_id] for env_ids in failed for env_id in env_ids):
            self.errors = [EnvFault(f"{error}; {ONE_EACH}") for error in self.errors]

    def _together(self, process: EnvProcess) -> Iterable[int]:
        """The environments that are where this process makes its own."""
        return process.env_ids

    def share(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        """Lay out the shared memory."""
        shape = (observation_space, action_space, len(self.facts), len(self.processes))
        self._files.append(memory_file(lambda zeros: SharedMemory(zeros, *shape)))
        self.exchange = SharedMemory(Arena(self._files[0]).zeros, *shape)
        self._shape = shape

    def begin(self) -> None:
        """Reset all environments with the seeds in shared memory, making missing ones."""
        self.quiesce()
        for process in self.processes:
            process.halted, process.resetting = False, set(process.env_ids)
            if process.alive:
                self._go_on(process)
            else:
                self._start(process)
        self.settle()

    def work(self, processes: Iterable[EnvProcess]) -> None:
        """Let processes execute the commands in shared memory."""
        for process in processes:
            self._wake(process)

    def settle(self) -> None:
        """Wait until no answer is due."""
        while any(process.busy for process in self.processes):
            self.wait()

    def quiesce(self) -> None:
        """`settle` without reporting failures: a failed environment waits for `begin`."""
        self._quiet = True
        try:
            self.settle()
        finally:
            self._quiet = False

    def wait(self, seconds: float = math.inf) -> None:
        """Handle the first answers, waiting at most `seconds`; replace processes that exceed their time."""
        deadline = min(self._deadline(process) for process in self.processes if process.busy)
        asleep = time.monotonic()
        left = min(deadline - asleep, seconds)
        answers = self._poll.poll(max(0, math.ceil(left * 1000)))
        if (now := time.monotonic()) > asleep + max(0.0, left) + GRACE:
            self._resumed = now
        for file, _ in answers:
            if process := self._by_file.get(file):
                self._hear(process)
        if time.monotonic() >= deadline:
            for process in self.processes:
                if process.busy and self._deadline(process) <= time.monotonic():
                    self._lost(process, "timeout")

    def process_of(self, env_id: int) -> EnvProcess:
        """The process that an environment is in."""
        return next(process for process in self.processes if env_id in process.env_ids)

    def wait_for(self, process: EnvProcess) -> None:
        """Handle the next answer of one process; replace it if it exceeds its time."""
        if process.orders.poll(max(0.0, self._deadline(process) - time.monotonic())):
            self._hear(process)
        else:
            self._lost(process, "timeout")

    def lose(self, env_id: int, during: During, kind: Kind) -> None:
        """Replace the process of an environment, as where it was lost at this environment."""
        process = self.process_of(env_id)
        while process.busy and process.orders.poll(self.limits.reset_timeout):  # it is not lost here
            process.hear()
        self._lost(process, kind, "lost, as the journal says", (env_id, during))

    def reset(self, env_ids: Iterable[int]) -> None:
        """Reset these environments, with the seeds in shared memory."""
        for process in self.processes:
            process.resetting = set(env_ids) & set(process.env_ids)
            self._go_on(process)
        self.settle()

    def save(self, process: EnvProcess) -> dict[int, Pickled | None] | None:
        """The pickled environments of a process, None for those that cannot be; None if the process died of it."""
        saved: dict[int, Pickled | None] | None = self._ask(process, "save")
        return saved

    def restore(self) -> None:
        """Make missing environments, also of processes that died; resets none."""
        self._quiet = True
        try:
            self.settle()
            for file, _ in self._poll.poll(0):
                self._lost(self._by_file[file], "exit")
        finally:
            self._quiet = False
        for process in self.processes:
            process.halted, process.resetting = False, set()
            if process.alive:
                self._go_on(process)
            else:
                self._start(process)
                process.resetting = set()
        self.settle()
        self.raise_errors()

    def load(self, packed: Mapping[int, Pickled]) -> set[int]:
        """Replace environments by saved ones; returns those that cannot be rebuilt. Raises: CheckpointError."""
        lost: set[int] = set()
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
            lost |= answer
        return lost

    def raise_errors(self) -> None:
        """Raise the first EnvFault since the last call."""
        if self.errors:
            first = self.errors[0]
            self.errors = []
            raise first

    def _ask(self, process: EnvProcess, name: str, *arguments: Any) -> Any:
        """The answer to an order with a message, None if the process died of it. No other answer may be due."""
        try:
            process.ask(name, *arguments)
            if process.orders.poll(self.limits.reset_timeout):
                return process.hear()
            self._lost(process, "timeout", f"no answer to {name!r} in {self.limits.reset_timeout:g} s")
        except (OSError, EOFError):
            self._lost(process, "exit")
        return None

    def close(self) -> list[EnvFailure]:
        """End all processes, by force if they do not answer; returns failures of closing."""
        failures = self._finalizer() or []
        self._by_file.clear()
        if self._shape:  # arrays that were handed out keep the memory alive
            del self.exchange
            self._shape = None
        return failures

    def _start(self, process: EnvProcess) -> None:
        process.start()
        self._by_file[process.orders.fileno()] = process
        self._poll.register(process.orders.fileno(), select.POLLIN)
        self._go_on(process)

    def _go_on(self, process: EnvProcess) -> None:
        """Give the process its next task: environments to make, then those to reset."""
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
        except Exception:  # the process died, or was interrupted within a message
            self._lost(process, "exit")
            return
        failures: list[EnvFailure] = heard if isinstance(heard, list) else []  # or the answer to an interrupted save
        if process.making:
            failures = [heard] if isinstance(heard, EnvFailure) else self._made(process.making[0], heard)
            if not failures:
                process.making.pop(0)
        for failure in failures:
            process.resetting.add(failure.env_id)
            if failure.during == "reset":
                process.making.append(failure.env_id)
        for failure in failures:
            self._report(process, failure, [])
        self._go_on(process)

    def _made(self, env_id: int, heard: bytes) -> list[EnvFailure]:
        facts = pickle.loads(heard)
        known = ((index, each) for index, each in enumerate(self.facts) if each is not None)
        (first_id, first), (other_id, other) = sorted(
            [next(known, (env_id, facts)), (env_id, facts)], key=itemgetter(0)
        )
        try:
            check_alike(first, other, other_id, first_id)
        except ConfigError as error:
            if self._shape is None:
                raise
            return [EnvFailure.of(env_id, "construction", error)]
        self.facts[env_id] = facts
        return []

    def _lost(self, process: EnvProcess, kind: Kind, message: str = "", at: tuple[int, During] | None = None) -> None:
        """Report a process that was lost `at` an environment: all are gone, also those without a fault."""
        env_id, during, _, limit = self._at(process)
        env_id, during = at or (env_id, during)
        del self._by_file[process.orders.fileno()]
        self._poll.unregister(process.orders.fileno())
        ended = process.kill()
        if not message:
            message = f"over its time limit of {limit:g} s" if kind == "timeout" else f"its process {ended}"
        process.making, process.resetting = list(process.env_ids), set(process.env_ids)
        if self._shape:
            self.exchange.command[process.env_ids] = NOTHING
        collateral = [other for other in process.env_ids if other != env_id]
        self._report(process, EnvFailure(env_id, during, kind, message, process.left_at), collateral)
        if not process.halted:
            self._start(process)

    def _report(self, process: EnvProcess, failure: EnvFailure, collateral: Sequence[int]) -> None:
        if self._quiet:
            process.halted = True
            return
        try:
            self.report(failure, collateral)
        except EnvFault as error:
            self.errors.append(error)
            process.halted = True

    def _at(self, process: EnvProcess) -> tuple[int, During, float, float]:
        """The current environment of a process, its activity, its start time, and its time limit."""
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
        return max(since, self._resumed) + limit


def _end(processes: list[EnvProcess], files: list[int], limits: Limits) -> list[EnvFailure]:
    try:
        return end_all(processes, min(GRACE, max(limits.step_timeout, limits.reset_timeout)))
    finally:
        while files:
            os.close(files.pop())


def _checked_method(asked: str | None) -> str | None:
    if sys.platform == "win32":
        raise ConfigError(
            "environments in other processes or threads need Linux or macOS: on Windows take env_manager='local' or "
            "'vector', or several workers, or run in WSL"
        )
    methods = multiprocessing.get_all_start_methods()
    if asked is not None and asked not in methods:
        raise ConfigError(f"start_method={asked!r}: {did_you_mean(asked, methods)}")
    return asked


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _spread(num_envs: int, envs_per_process: int | None) -> list[list[int]]:
    """The environments of each process; by default as many processes as cores.

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
