"""Runs a program as if this were another operating system, as far as a program can tell by what Python has there.

`python -m tests.emulated win32 PROGRAM` first imports other libraries, which know this system, and then takes away what
the other one lacks: modules, functions and signals. It cannot show how that system's kernel behaves.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.abc
import os
import select
import signal
import sys
from types import ModuleType
from typing import Any

#: What asks for the system as it is imported, or later for what this one has.
LIBRARIES = (
    "asyncio multiprocessing.connection multiprocessing.util subprocess tempfile "
    "attrs click cloudpickle gymnasium.vector numpy ray rich.live rich.progress scipy.signal scipy.stats torch "
    "threadpoolctl typeguard"
)
POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
LINUX_ONLY: dict[ModuleType, str] = {
    os: "eventfd memfd_create pidfd_open posix_fallocate sched_getaffinity sched_setaffinity",
    signal: "SIGPOLL SIGPWR sigtimedwait",
    select: "epoll",
}
POSIX_ONLY: dict[ModuleType, str] = {
    os: "O_ASYNC fork forkpty getloadavg getpgid getpgrp killpg mkfifo register_at_fork setpgid setsid statvfs uname",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGPIPE SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 alarm pause pthread_kill "
    "setitimer sigwait",
    select: "poll",
    faulthandler: "register",
}


class Refused(importlib.abc.MetaPathFinder):
    """Finds no POSIX module for flowrl's own files."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename and frame.f_back is not None:
            frame = frame.f_back
        if name in POSIX_MODULES and frame.f_globals.get("__name__", "").startswith("flowrl"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def emulate(platform: str) -> None:
    """Make this process look like one on `win32` or `darwin`. flowrl must not be imported yet."""
    assert "flowrl" not in sys.modules
    for name in LIBRARIES.split():
        importlib.import_module(name)
    lacks = [LINUX_ONLY, POSIX_ONLY] if platform == "win32" else [LINUX_ONLY, {os: "fork"}]
    for module, names in (item for table in lacks for item in table.items()):
        for name in names.split():
            vars(module).pop(name, None)
    if platform == "win32":
        sys.meta_path.insert(0, Refused())
        for name in POSIX_MODULES:
            sys.modules.pop(name, None)
    sys.platform = platform


if __name__ == "__main__":
    _, platform, program = sys.argv
    emulate(platform)
    exec(compile(program, "program", "exec"), {"__name__": "program"})
