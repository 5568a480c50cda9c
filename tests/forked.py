"""New processes of Python in a fraction of a second: forked from a server that has imported what takes long."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

DEADLINE = 120.0
DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE

#: Held where an exit code may be read, which the start of another process does too: of two that read it at a time one
#: would find 255.
READING = threading.RLock()
#: Nothing of flowrl, so each process has the source that it finds itself.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("anyio", "attrs", "click", "cloudpickle", "gymnasium", "gymnasium.envs.classic_control", "hypothesis"),
        *("numpy", "pytest", "_pytest.doctest", "rich", "scipy.special", "torch", "torch._dynamo", "typeguard"),
        "xdist.plugin",
    ]
)


class Python:
    """What `subprocess.Popen([sys.executable, *words], text=True, ...)` is: `-m MODULE`, `-c CODE` or a file.

    Its streams go to ours where nothing is said, and are buffered by the line; `begin` is called there first. It ends
    without what the interpreter of a program does last.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdin: int = DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        begin: Callable[[], object] | None = None,
        start_new_session: bool = False,
    ) -> None:
        theirs: list[Connection] = []
        ours: list[IO[str] | None] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            mode, file = "r" if number else "w", None
            if stream == PIPE:
                ends = os.pipe() if number else os.pipe()[::-1]
                file, stream = os.fdopen(ends[0], mode), ends[1]
            elif stream == DEVNULL:
                stream = os.open(os.devnull, os.O_RDWR)
            else:
                stream = os.dup(number if stream is None else stream)
            ours.append(file)
            theirs.append(Connection(stream))
        self.stdin, self.stdout, self.stderr = ours
        env = dict(os.environ if env is None else env)
        self._process = SERVER.Process(target=_run, args=(list(words), theirs, env, begin, start_new_session))
        with READING:
            self._process.start()
        for each in theirs:
            each.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        with READING:
            if (code := self._process.exitcode) is not None:
                self._process.join()  # or it is held, with its pipes, until the next one starts
            return code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = DEADLINE) -> int:
        wait([self._process.sentinel], timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def communicate(self, input: str = "", timeout: float = DEADLINE) -> tuple[str, str]:
        """What it prints until it has ended, which a timeout makes it."""
        if self.stdin is not None:
            self.stdin.write(input)
            self.stdin.close()
        late = threading.Timer(timeout, self.kill)
        late.start()
        with ThreadPoolExecutor() as pool:
            try:
                out, err = pool.map(lambda file: "" if file is None else file.read(), (self.stdout, self.stderr))
            except BaseException:
                self.kill()  # so that what is read ends
                raise
            finally:
                late.cancel()
        self.wait(timeout)
        return out, err

    def __enter__(self) -> Python:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()


def _run(
    words: list[str],
    streams: list[Connection],
    env: Mapping[str, str],
    begin: Callable[[], object] | None,
    start_new_session: bool,
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start_new_session:
        os.setsid()
    if begin is not None:
        begin()
    execute(words)


def execute(words: list[str]) -> None:
    """What Python does with these words of its command line."""
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    if words[0] == "-m":
        sys.path.insert(0, "")
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = [words[0], *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
