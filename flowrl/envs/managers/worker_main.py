"""The main loop of a process of environments: it executes orders and answers until its parent is gone."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import gymnasium

from flowrl.envs.managers.env_runner import EnvFailure, EnvRunner, plainly
from flowrl.envs.managers.shared_memory import NOTHING, Arena, SharedMemory
from flowrl.envs.wrappers import has_raw_returns, pack, unpack
from flowrl.interrupts import die_with
from flowrl.storage.codec import Pickled

Env = gymnasium.Env[Any, Any]

WORK, MESSAGE = b"w", b"m"
"""The first byte of every order and answer: it is in shared memory, or a pickle follows."""


def run(
    orders: Connection, lifeline: Connection, factories: Mapping[int, Callable[[], Env]], host: int, trace: str
) -> None:
    """Run the process that holds the environments of these ids, until it crashes in C code: its line goes to `trace`.

    Does not return.
    """
    code = 1
    try:
        file = open(trace, "w")  # noqa: SIM115 - for as long as the process lives
        os.unlink(trace)
        faulthandler.enable(file, all_threads=False)
        stand_apart(lifeline)
        if sys.platform != "win32":  # a fork that outlives this process must not hide its death
            os.register_at_fork(after_in_child=orders.close)
        Host(orders, factories, host).serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)  # threads of an environment must not keep the process alive


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the environment may have broken it
            stream.flush()


def stand_apart(lifeline: Connection) -> None:
    """Take an own process group, drop the parent's signal handlers, and die with the parent."""
    if sys.platform != "win32":
        os.setpgid(0, 0)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.set_wakeup_fd(-1)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    die_with(lifeline.fileno())  # elsewhere than on Linux the end of file on the orders must suffice


def kill_group(process: Any) -> None:
    """Kill a process that stands apart, and on POSIX all that its environments started."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


class Host:
    """The environments of one process, and the orders to them."""

    def __init__(self, orders: Connection, factories: Mapping[int, Callable[[], Env]], host: int) -> None:
        self._orders, self._factories, self._host = orders, factories, host
        self._exchange: SharedMemory | None = None
        self._envs: dict[int, Env] = {}
        self._hosted: dict[int, EnvRunner] = {}

    def serve(self) -> None:
        file = self._orders.fileno()
        while order := os.read(file, 1):
            if order == WORK:
                self._work()
                continue
            name, *arguments = self._orders.recv()
            answer = methodcaller(name, *arguments)(self)
            if name != "share":
                self._answer(answer)
            if name == "close":
                return

    def _answer(self, answer: Any) -> None:
        os.write(self._orders.fileno(), MESSAGE)
        self._orders.send(answer)

    def _work(self) -> None:
        commands, failures = self._commands, []
        for env_id, env in self._hosted.items():
            if command := commands[env_id]:
                if failure := env.obey(command):
                    failures.append(failure)
                self._commands[env_id] = NOTHING
        if failures:
            self._answer(failures)
        else:
            os.write(self._orders.fileno(), WORK)

    # The orders with messages.

    def make(self, env_id: int) -> EnvFailure | bytes:
        """Make or remake an environment; answers its spaces and whether its returns are raw (S1)."""
        try:
            if env_id in self._envs:
                self._close(env_id)
            env = self._factories[env_id]()
            if not isinstance(env, gymnasium.Env):
                raise TypeError(f"the factory made a {type(env).__name__}, expected a gymnasium.Env")
            self._put(env_id, env)
            facts = env.observation_space, env.action_space, has_raw_returns(env)
            return cast(bytes, cloudpickle.dumps(facts))
        except BaseException as error:
            return EnvFailure.of(env_id, "construction", error)

    def share(self, *shape: Any) -> None:
        """Take the memory whose descriptor follows, laid out for these spaces and numbers."""
        file = reduction.recv_handle(self._orders)
        self._exchange = SharedMemory(Arena(file).zeros, *shape)
        os.close(file)
        self._commands = plainly(self._exchange.command)
        for env_id, env in self._envs.items():
            self._put(env_id, env)

    def save(self) -> dict[int, Pickled | None]:
        return {env_id: pack(env) for env_id, env in self._envs.items()}

    def load(self, packed: dict[int, Pickled]) -> Exception | set[int]:
        """Load environments; answers those that cannot be rebuilt, or the error for foreign bytes."""
        lost = set()
        try:
            for env_id, pickled in packed.items():
                if (env := unpack(pickled, f"environment {env_id}")) is None:
                    lost.add(env_id)
                    continue
                self._close(env_id)
                self._put(env_id, env)
        except Exception as error:
            return error
        return lost

    def close(self) -> list[EnvFailure]:
        failures = []
        for env_id, env in self._envs.items():
            try:
                env.close()
            except BaseException as error:
                failures.append(EnvFailure.of(env_id, "step", error))
        _flush()
        return failures

    def _put(self, env_id: int, env: Env) -> None:
        self._envs[env_id] = env
        if self._exchange is not None:
            self._hosted[env_id] = EnvRunner(env, env_id, self._host, self._exchange)
            self._hosted = dict(sorted(self._hosted.items()))

    def _close(self, env_id: int) -> None:
        """Close an environment that is no longer needed, and may have failed already."""
        with contextlib.suppress(BaseException):
            self._envs.pop(env_id).close()
