"""Work in a process of its own, so that whatever hangs or dies in it can be told."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from flowrl.cli.doctor.places import own_line
from flowrl.envs.managers.worker_main import stand_apart

Tell = Callable[[Any], None]

#: Seconds that a process has to write where it hangs, and to end.
GRACE = 2.0


def run_in_child(work: Callable[[Tell], None], timeout: float) -> tuple[list[Any], str]:
    """What `work(tell)` told, and in words how its process ended if that was not well, else "".

    It must tell something every `timeout` seconds; otherwise it is killed, with all that it started.
    """
    forks = "fork" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if forks else None)
    ours, theirs = context.Pipe(duplex=False)
    lifeline, held = context.Pipe(duplex=False)
    told: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace")
        child = context.Process(target=_child, args=(work, theirs, lifeline, held if forks else None, str(trace)))
        child.start()
        theirs.close()
        lifeline.close()
        try:
            while ours.poll(timeout):
                told.append(ours.recv())
            _ask_where(child, trace)
            return told, f"no answer within {timeout:g} s{_where(trace)}"
        except EOFError:
            wait([child.sentinel], GRACE)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # what its environments started goes too
            child.kill()
            child.join()
            code = child.exitcode
            child.close()
            ours.close()
            held.close()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return told, f"its process ended {how}{_where(trace)}" if code else ""


def _child(
    work: Callable[[Tell], None], pipe: Connection, lifeline: Connection, held: Connection | None, trace: str
) -> None:
    if held is not None:
        held.close()  # this end is the parent's alone
    stand_apart(lifeline)
    os.dup2(2, 1)  # what an environment prints is no part of the report
    sys.stdout = sys.stderr
    with Path(trace).open("w") as file:
        faulthandler.enable(file, all_threads=False)
        if hasattr(signal, "SIGUSR1"):
            faulthandler.register(signal.SIGUSR1, file, all_threads=False)
        work(pipe.send)
        faulthandler.disable()
    sys.stderr.flush()
    os._exit(0)  # threads of an environment may not keep the process


def _ask_where(child: Any, trace: Path) -> None:
    """Has the child write its stack, as it can even in the middle of C code."""
    if hasattr(signal, "SIGUSR1"):
        os.kill(child.pid, signal.SIGUSR1)
        child.join(GRACE / 4)  # it does not end; that is how long it has to write


def _where(trace: Path) -> str:
    """The innermost line of a stack that is the environment's own."""
    text = trace.read_text() if trace.exists() else ""
    frames = [(file, int(line), name) for file, line, name in re.findall(r'File "(.+)", line (\d+) in (.+)', text)]
    line = own_line(frames[::-1])
    return f", {line}" if line else ""
