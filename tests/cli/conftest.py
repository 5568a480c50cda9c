"""Runs to go on with, and the command in a process of its own."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import pytest

from tests.cli.parts import flowrl
from tests.cli.resume_parts import SMALL, STEPS, checkpoints
from tests.forked import PIPE, Python


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
    with ExitStack() as started:

        def start(*arguments, code=("-m", "flowrl"), begin=None):
            words = ["-W", "error", *code, *map(str, arguments)]
            return started.enter_context(Python(words, stdout=PIPE, stderr=PIPE, begin=begin))

        yield start
