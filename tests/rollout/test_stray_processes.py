"""F15: whatever becomes of the process that asks, nothing that it started stays."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 120  # two helpers of Ray's try for a minute to tell a driver that was killed of its death
ENDS = ([], "close"), (["busy"], "close"), ([], "raise"), ([], signal.SIGTERM)

SCRIPT = """
import signal, sys
from flowrl.actors.actors import Actors
from flowrl.envs import make_manager

class Player:
    def __init__(self):
        self.manager = make_manager("CartPole-v1", 2, kind="subprocess")
        self.manager.launch(0)
    def work(self):
        print("working", flush=True)
        signal.pause()
    def hello(self):
        return "hello"
    def close(self):
        self.manager.close()

actors = Actors([Player] * 2, kind="player", remote=True)
actors.start()
if "busy" in sys.argv:
    actors.members[0].submit("work")
try:
    print("ready", flush=True)
    command = input()
except KeyboardInterrupt:
    print(actors.members[1].submit("hello").result(30), flush=True)
    command = input()
if command == "close":
    actors.close()
if command == "raise":
    raise ZeroDivisionError
print("closed", flush=True)
signal.pause()
"""


@pytest.fixture
def driver(request):
    """A process that has two actors with environments in processes of their own."""
    words = [sys.executable, "-c", SCRIPT, *getattr(request, "param", [])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, bufsize=0, start_new_session=True, **pipes) as process:
        try:
            assert _said(process) == b"ready\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def _said(driver):
    """Its next line."""
    assert select.select([driver.stdout], [], [], SECONDS)[0], f"it said nothing for {SECONDS} s"
    return driver.stdout.readline()


def _tell(driver, command):
    driver.stdin.write(f"{command}\n".encode())


def _below(pid):
    """All processes that a process began, and those that they began."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]


def _wait_until_gone(pids):
    """Those that are still there when the deadline has passed."""
    until, left = time.monotonic() + SECONDS, {os.pidfd_open(pid): pid for pid in pids if Path(f"/proc/{pid}").exists()}
    while left and (seconds := until - time.monotonic()) > 0:
        for descriptor in select.select(list(left), [], [], seconds)[0]:
            del left[descriptor]
            os.close(descriptor)
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in left.values()]


@pytest.mark.parametrize(
    ("driver", "end"),
    [
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ENDS),
        pytest.param(["busy"], signal.SIGKILL, marks=pytest.mark.exhaustive),  # waits for `SECONDS / 2`
    ],
    indirect=["driver"],
)
def test_nothing_stays(driver, end):
    pids = _below(driver.pid)
    assert len(pids) > 6  # Ray's own, two actors, their environments
    if isinstance(end, str):
        _tell(driver, end)
    else:
        os.kill(driver.pid, end)
    assert _wait_until_gone(pids) == []
    driver.kill()
    errors = driver.communicate()[1]
    assert errors == b"" or errors.endswith(b"ZeroDivisionError\n")


@pytest.mark.slow
def test_an_interrupt_is_the_drivers_affair(driver):
    """Ctrl-C goes to every process of the terminal: actors and Ray work on, in silence, until the driver decides."""
    pids = _below(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)
    assert _said(driver) == b"hello\n"
    _tell(driver, "close")
    assert _said(driver) == b"closed\n"
    assert _wait_until_gone(pids) == []
    driver.kill()
    assert driver.communicate()[1] == b""
