"""The processes of a SubprocessEnvManager: none outlives its manager, nor its program."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.errors import FlowError
from tests.clock_envs import ClockEnv, collect
from tests.faulty_envs import BUSY, descendants, descriptors, footprint
from tests.forked import Python
from tests.managers import in_processes


class Busybody(ClockEnv):
    """Prints, and starts a thread and processes that never end."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        print("a line from an environment")
        os.write(1, b"and one past all buffers\n")
        self.thread = threading.Thread(target=time.sleep, args=(3600,))
        self.thread.start()
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        self.other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        self.other.start()


def test_a_process_of_a_process_would_be_seen() -> None:
    """F15: what the tests here look for, the footprint shows."""
    command = ["sh", "-c", "sleep 3600 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        try:
            assert shell.stdout is not None
            assert {shell.pid, int(shell.stdout.readline())} <= descendants()
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_workers_of_a_ray_that_tests_share_are_not_seen() -> None:
    """It begins and ends them when it likes; Ray itself is."""
    import ray

    worker, raylet = ray.get(ray.remote(lambda: (os.getpid(), os.getppid())).remote(), timeout=60)
    assert raylet in descendants()
    assert worker not in descendants()


def test_the_network_of_a_ray_that_tests_share_is_not_seen() -> None:
    """Ray opens and closes its ways to workers when it likes; what a manager could open is seen."""
    before = descriptors()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5) as way:
        worker, _ = server.accept()
        assert descriptors() == before
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        worker.close()  # as if it was killed
        with pytest.raises(ConnectionResetError):
            way.recv(1)
        assert descriptors() == before
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert {*descriptors()} - {*before} == {str(ours.fileno()), str(theirs.fileno())}


def test_nothing_is_left_of_a_program_that_a_test_has_run() -> None:
    """Or the next footprint would take what closes later for its own."""
    with Python(["-c", ""]):
        pass  # the first one begins the server
    multiprocessing.active_children()  # forgets those that have ended
    before = descriptors()
    with Python(["-c", ""]) as program:
        assert program.wait() == 0
    del program
    assert descriptors() == before


def test_nothing_is_left_of_what_environments_start() -> None:
    """F15: their threads and processes go with them."""
    before = footprint()
    with in_processes(kind=Busybody) as manager:
        manager.launch(0)
        collect(manager, 4)
    del manager
    assert footprint() == before


def test_a_manager_that_nobody_holds_is_closed_at_once() -> None:
    """F15: it is in no cycle, so it need not wait for the garbage collector."""
    before = footprint()
    gc.disable()
    try:
        manager = in_processes()
        manager.launch(0)
        manager.step([0, 0, 0])
        processes = manager._crew.processes
        del manager
        assert not any(process.alive for process in processes)
        del processes
    finally:
        gc.enable()
    assert footprint() == before


def test_two_managers_leave_each_other_alone() -> None:
    """F15: a process that holds an end of its sibling's pipe would keep it alive."""
    before = footprint()
    first = in_processes()
    second = in_processes()
    first.launch(0)
    first.close()
    second.launch(0)
    collect(second, 3)
    second.close()
    del first, second
    assert footprint() == before


def test_a_fork_may_not_step() -> None:
    """F15: it shares the memory with its parent, which goes on; it is told so, and closing there costs nothing."""
    with in_processes() as manager:
        manager.launch(0)
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                for call in (lambda: manager.step([0, 0, 0]), manager.reset, lambda: manager.obs):
                    with pytest.raises(FlowError, match="a fork of the process that owns the environments"):
                        call()
                manager.close()
                os.write(writer, b"refused")
            finally:
                os._exit(0)
        os.close(writer)
        assert os.read(reader, 100) == b"refused"
        os.close(reader)
        collect(manager, 5)
        assert manager.drain_faults() == []


def test_a_second_ctrl_c_does_not_stop_the_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: interrupted as it waits for the first process, it ends all of them nevertheless."""
    before = footprint()
    manager = in_processes(envs_per_process=1)
    join, calls = multiprocessing.Process.join, iter([KeyboardInterrupt])

    def interrupted(process: Any, timeout: float | None = None) -> None:
        for error in calls:
            raise error
        join(process, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.process.BaseProcess, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.close()
    del manager
    assert footprint() == before


class BadlyClosed(ClockEnv):
    def close(self) -> None:
        if self.index == 1:
            raise OSError("stuck")
        if self.index == 2:
            time.sleep(3600)


def test_environments_are_closed_with_a_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """F15: one that fails or hangs as it closes keeps no process, and is named."""
    before = footprint()
    manager = in_processes(kind=BadlyClosed, envs_per_process=1, step_timeout=0.3, reset_timeout=0.3)
    manager.launch(0)
    start = time.monotonic()
    manager.close()
    manager.close()
    assert time.monotonic() - start < BUSY
    assert caplog.messages[0] == "environments [2] were not closed in 0.3 s, and are ended"
    assert "environment 1 failed as it closed: OSError: stuck" in caplog.messages[1]
    del manager
    assert footprint() == before


SCRIPT = """
import functools, sys, time, ctypes, os
from flowrl.envs import SubprocessEnvManager
from tests.clock_envs import ClockEnv, TERMINATED

class Env(ClockEnv):
    def step(self, action):
        os.write(1, b"stepping\\n")
        {step}
        return super().step(action)
    def close(self):
        os.write(1, b"closed\\n")

if __name__ == "__main__":
    manager = SubprocessEnvManager([functools.partial(Env, i, [(9, TERMINATED)]) for i in range(2)], envs_per_process=1)
    os.write(1, " ".join(str(process.pid) for process in manager._crew.processes).encode() + b"\\n")
    manager.launch(0)
    {end}
"""


@contextlib.contextmanager
def script(step: str, end: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A program with two environments that is about to step them, and the file descriptors of their processes."""
    code = SCRIPT.format(step=step, end=end)
    root = Path(__file__).parents[3]
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        bufsize=0,  # `communicate` would not see what `readline` has read ahead
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    assert program.stdout is not None
    files = [os.pidfd_open(int(pid)) for pid in program.stdout.readline().split()]
    try:
        yield program, files
    finally:  # a test that fails leaves nothing behind either
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        for file in files:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
            os.close(file)
        program.communicate(timeout=5)


def have_ended(files: list[int]) -> bool:
    """Whether these processes end within a few seconds."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    left, deadline = set(files), time.monotonic() + BUSY
    while left and (seconds := deadline - time.monotonic()) > 0:
        for file, _ in poll.poll(seconds * 1000):
            poll.unregister(file)
            left.discard(file)
    return not left


def read_two_steps(program: subprocess.Popen[bytes]) -> None:
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == [b"stepping\n"] * 2


def test_processes_die_with_their_parent_even_inside_c_code() -> None:
    """F15: killed, it cannot say goodbye, and nobody listens while C code holds the interpreter."""
    with script("ctypes.PyDLL(None).sleep(3600)", "manager.step([0, 0])") as (program, files):
        read_two_steps(program)
        program.kill()
        assert have_ended(files)


def test_a_fork_does_not_keep_the_processes_alive() -> None:
    """F15: another child of the parent inherits its ends of the pipes, but not its say."""
    code = "if os.fork() == 0: time.sleep(3600)\n    else: manager.step([0, 0])"
    with script("ctypes.PyDLL(None).sleep(3600)", code) as (program, files):
        read_two_steps(program)
        program.kill()
        assert have_ended(files)


def test_ctrl_c_reaches_the_parent_alone_and_closes_all() -> None:
    """F15: environments finish their step and are closed."""
    ctrl_c = "if self.index == 1: os.killpg(os.getpgid(os.getppid()), 2)\n        time.sleep(0.5)"
    with script(ctrl_c, "with manager: manager.step([0, 0])") as (program, files):
        out, err = program.communicate(timeout=60)
        assert sorted(out.splitlines()) == [*[b"closed"] * 2, *[b"stepping"] * 2]
        assert b"KeyboardInterrupt" in err
        assert have_ended(files)


def test_a_program_may_end_without_closing() -> None:
    """F15: no hang at exit, and environments are closed."""
    with script("pass", "manager.step([0, 0]); kept = manager") as (program, files):
        out, err = program.communicate(timeout=60)
        assert sorted(out.splitlines()) == [*[b"closed"] * 2, *[b"stepping"] * 2]
        assert (program.returncode, err) == (0, b"")
        assert have_ended(files)
