"""Runs to go on with, and the command in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.cli.parts import DEADLINE, flowrl
from tests.cli.resume_parts import SMALL, STEPS, checkpoints


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run that nobody interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    done = flowrl("run", "dqn", *SMALL, "--stop-steps", STEPS, "--out", path, "--quiet")
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(whole, folder):
    """A copy of the uninterrupted run as it was on its way: the last checkpoint is gone, what came after is there."""
    path = folder / "run"
    shutil.copytree(whole, path)
    shutil.rmtree(checkpoints(path).paths()[-1])
    (path / "summary.json").unlink()
    return path


@pytest.fixture
def child(folder):
    """Starts the command in a process of its own, with the signal handling of a terminal's foreground job."""
    started = []

    def start(*arguments, code=("-m", "flowrl")):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *code, *map(str, arguments)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE)
