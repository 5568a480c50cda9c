"""The parent's handle on one process of environments: start, tell, hear, kill."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util  # its own exit handler joins children, so it must be registered before ours
import os
import pickle
import select
import signal
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from flowrl.envs import child
from flowrl.envs.child import MESSAGE, WORK
from flowrl.envs.hosted import Failure
from flowrl.errors import ConfigError

GRACE = 5.0  # seconds for what takes no time unless the machine is in trouble
_started: weakref.WeakSet[EnvProcess] = weakref.WeakSet()


class EnvProcess:
    """One process, and the environments in it by id. It starts as often as it must; `orders` are those of the last.

    `making` holds the environments still to be made, the first being made now; `resetting` those to be reset then;
    `busy` is whether an answer is due, for something told at `told`; `shares` whether it has the shared memory;
    `halted` whether it rests until all environments begin anew. `left_at` is the traceback of where it was killed, if
    that can be known.
    """

    left_at = ""

    def __init__(self, host: int, factories: Mapping[int, Callable[[], Any]], start_method: str) -> None:
        self.host, self.env_ids = host, list(factories)
        self.making: list[int] = []
        self.resetting: set[int] = set()
        self.busy, self.alive, self.shares, self.halted = False, False, False, False
        self.told, self.owner = 0.0, os.getpid()
        self._context: Any = multiprocessing.get_context(start_method)
        self._factories = {env_id: CloudpickleWrapper(factory) for env_id, factory in factories.items()}

    def start(self) -> None:
        lifeline, self._lifeline = self._context.Pipe(duplex=False)
        theirs = self._begin()
        arguments = (theirs, lifeline, self._factories, self.host)
        try:
            self._process = self._context.Process(target=child.run, args=arguments, name=f"flowrl-envs-{self.host}")
            self._process.start()
        except BaseException as error:
            self.alive = False
            self.let_go()
            theirs.close()
            lifeline.close()
            if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
                raise ConfigError(f"the factories of environments {self.env_ids} cannot be pickled: {error}") from error
            raise
        theirs.close()
        lifeline.close()

    def _begin(self) -> Any:
        """The end of new `orders` that the process gets; all is to be done."""
        self.orders, theirs = self._context.Pipe()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # half a message must not keep us for ever
            with socket.socket(fileno=os.dup(self.orders.fileno())) as end:
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(GRACE), 0))
        _started.add(self)
        self.alive, self.busy, self.shares, self.owner = True, False, False, os.getpid()
        self.making, self.resetting = list(self.env_ids), set(self.env_ids)
        return theirs

    @property
    def pid(self) -> int:
        """Its number, which is that of its process group too."""
        pid: int = self._process.pid
        return pid

    def ask(self, name: str, *arguments: Any) -> None:
        """Sends an order that has a message. Raises: OSError if nobody is there."""
        self.told, self.busy = time.monotonic(), True
        self._send(name, *arguments)

    def share(self, shape: tuple[Any, ...], file: int) -> None:
        """Hands over memory; no answer is due. Raises: OSError if nobody is there."""
        self._send("share", *shape)
        reduction.send_handle(self.orders, file, self.pid)
        self.shares = True

    def _send(self, name: str, *arguments: Any) -> None:
        os.write(self.orders.fileno(), MESSAGE)
        self.orders.send((name, *arguments))

    def wake(self) -> None:
        """Sends it to work on the commands in the exchange. Raises: OSError if nobody is there."""
        self.told, self.busy = time.monotonic(), True
        os.write(self.orders.fileno(), WORK)

    def hear(self) -> Any:
        """The answer, None where the exchange says it all. Raises: OSError or EOFError if the process is gone."""
        answer = os.read(self.orders.fileno(), 1)
        if not answer:
            raise EOFError
        heard = None if answer == WORK else self.orders.recv()
        self.busy = False
        return heard

    def kill(self) -> str:
        """Ends it at once, with all that its environments started; says how it ended if that was before."""
        if not self.alive:
            return ""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # before it is joined: until then the number is surely its own
        self._process.kill()
        self._process.join(GRACE)
        code = self._process.exitcode
        self.let_go()
        self.alive = self.busy = False  # last: whoever is interrupted before may ask again
        if code is None:
            return "does not end"
        self._process.close()
        return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def let_go(self) -> None:
        """Closes this end; the kernel kills the process then."""
        self.orders.close()
        self._lifeline.close()


def end_all(processes: Iterable[EnvProcess], seconds: float = GRACE) -> list[Failure]:
    """Lets processes close their environments, then kills them; what failed as they closed is returned.

    A fork of the process that started them may have inherited this call; it has no say.
    """
    ours = [process for process in processes if process.alive and process.owner == os.getpid()]
    deadline = time.monotonic() + seconds
    failures: list[Failure] = []
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
    finally:
        _kill_all(ours)
    return failures


def _kill_all(processes: Sequence[EnvProcess]) -> None:
    """All of them, also when a second Ctrl-C comes meanwhile."""
    try:
        for process in processes:
            process.kill()
    except BaseException:
        for process in processes:
            process.kill()
        raise


def _forget() -> None:
    """In a fork: whoever holds our ends keeps the processes from noticing that we are gone."""
    for process in list(_started):
        if process.alive:
            process.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: end_all(list(_started)))
