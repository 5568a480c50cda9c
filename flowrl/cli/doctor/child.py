"""Work in a separate process, so that the parent can report a hang or a death, with its line."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

import gymnasium

import flowrl
from flowrl.envs.managers.worker_main import stand_apart
from flowrl.errors import SchemaError

Work = Callable[[], Iterator[Any]]

#: Seconds that a process gets to write its traceback, and to end.
GRACE = 2.0

_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (flowrl, gymnasium))
_STANDARD = sysconfig.get_path("stdlib")


def run_in_child(work: Work, timeout: float) -> tuple[list[Any], str]:
    """Run `work()` in a child process; return everything that it yields, and how the process failed, else "".

    The work must yield something every `timeout` seconds; otherwise the process is killed, with all that it started.
    """
    context = multiprocessing.get_context("fork")
    answers, theirs = context.Pipe(duplex=False)
    lifeline, held = context.Pipe(duplex=False)
    yielded: list[Any] = []
    with tempfile.TemporaryFile("w+") as trace, answers, held:
        child: Any = context.Process(target=_child, args=(work, theirs, lifeline, held, trace))
        child.start()
        theirs.close()
        lifeline.close()
        try:
            while answers.poll(timeout):
                yielded.append(answers.recv())
            os.kill(child.pid, signal.SIGUSR1)  # the child writes its traceback, even in the middle of C code
            wait([child.sentinel], GRACE / 4)
            return yielded, f"no answer within {timeout:g} s{_where(trace)}"
        except EOFError:
            wait([child.sentinel], GRACE)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # ends processes of its environments too
            child.kill()
            child.join()
            code = child.exitcode
            child.close()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return yielded, f"its process ended {how}{_where(trace)}" if code else ""


def _child(work: Work, answers: Connection, lifeline: Connection, held: Connection, trace: IO[str]) -> None:
    held.close()  # this end belongs to the parent
    stand_apart(lifeline)
    os.dup2(2, 1)  # keeps the environment's prints out of the report
    sys.stdout = sys.stderr
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    for each in work():
        answers.send(each)
    sys.stderr.flush()
    os._exit(0)  # threads of an environment cannot keep the process alive


def _where(trace: IO[str]) -> str:
    trace.seek(0)
    return own_line(trace.read())


def described(error: BaseException) -> str:
    """An error in one line, with the environment's line that raised it; flowrl's own need none."""
    if isinstance(error, SchemaError):
        return str(error)
    line = own_line("".join(reversed(traceback.format_tb(error.__traceback__))))
    return f"{type(error).__name__}: {str(error) or 'no message'}{line}".replace("\n", " ")


def own_line(stack: str) -> str:
    """The first line of a stack in the environment's own code, not in flowrl, gymnasium or Python; "" if none is.

    >>> own_line(f'File "{gymnasium.__file__}", line 1, in step; File "mine.py", line 3, in step')
    ', in step, mine.py:3'
    """
    for file, line, name in re.findall(r'File "([^"]+)", line (\d+),? in ([^\s;]+)', stack):
        standard = file.startswith(_STANDARD) and "site-packages" not in file
        if not file.startswith(_LIBRARIES) and not standard and file[:1] != "<":
            return f", in {name}, {file}:{line}"
    return ""
