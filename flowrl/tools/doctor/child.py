"""Work in a separate process, so that the parent can report a hang or a death, with its line."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from flowrl.envs.managers.supervisor import start_method
from flowrl.envs.managers.worker_main import kill_group, stand_apart
from flowrl.frames import own_line

Work = Callable[[], Iterator[Any]]

#: Seconds that a process gets to write its traceback, and to end.
GRACE = 2.0


def run_in_child(work: Work, timeout: float) -> tuple[list[Any], str]:
    """Run `work()` in a child process; return everything that it yields, and how the process failed, else "".

    The work must yield something every `timeout` seconds; otherwise the process is killed, with all that it started.
    """
    method = start_method()
    context: Any = multiprocessing.get_context(method)
    answers, theirs = context.Pipe(duplex=False)
    lifeline, held = context.Pipe(duplex=False)
    yielded: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, answers, held:
        trace = Path(folder, "traceback")
        job: Any = work
        if method != "fork":  # a fork takes any work as it is; a new interpreter gets a pickle of it
            job = CloudpickleWrapper(job)
        child = context.Process(target=_child, args=(job, theirs, lifeline, held, str(trace)))
        child.start()
        theirs.close()
        lifeline.close()
        try:
            while answers.poll(timeout):
                yielded.append(answers.recv())
            if sys.platform != "win32":
                os.kill(child.pid, signal.SIGUSR1)  # the child writes its traceback, even in the middle of C code
            wait([child.sentinel], GRACE / 4)
            return yielded, f"no answer within {timeout:g} s{_where(trace)}"
        except EOFError:
            wait([child.sentinel], GRACE)
        finally:
            kill_group(child)
            child.join()
            code = child.exitcode
            child.close()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return yielded, f"its process ended {how}{_where(trace)}" if code else ""


def _child(work: Work, answers: Connection, lifeline: Connection, held: Connection, trace: str) -> None:
    held.close()  # this end belongs to the parent
    stand_apart(lifeline)
    os.dup2(2, 1)  # keeps the environment's prints out of the report
    sys.stdout = sys.stderr
    file = os.open(trace, os.O_WRONLY | os.O_CREAT)
    faulthandler.enable(file, all_threads=False)
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    for each in work():
        answers.send(each)
    sys.stderr.flush()
    os._exit(0)  # threads of an environment cannot keep the process alive


def _where(trace: Path) -> str:
    try:
        return own_line(trace.read_text("utf-8"))
    except OSError:  # it ended before it had begun
        return ""
