"""F15: processes that environments start, and leave behind when they are closed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from flowrl.envs import make, make_manager
from tests.clock_envs import TERMINATED, EchoEnv

started: list[subprocess.Popen[bytes]] = []


class Serving(EchoEnv):
    """Starts two processes, and ends one of them in `close`."""

    def __init__(self) -> None:
        super().__init__(0, [(3, TERMINATED)])
        started.append(subprocess.Popen(["sleep", "71"]))

    def reset(self, **kwargs: Any) -> Any:
        if len(started) == 1:
            started.append(subprocess.Popen(["sleep", "72"]))
        return super().reset(**kwargs)

    def close(self) -> None:
        started[1].kill()
        started[1].wait()


@pytest.fixture(autouse=True)
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of theirs."""
    with subprocess.Popen(["sleep", "73"]) as process:
        yield process
        for each in (*started, process):
            each.kill()
            each.wait()
        started.clear()


@pytest.mark.parametrize("kind", ["local", "vector", "thread"])
def test_one_that_stays_is_named_and_nothing_is_killed(
    kind: str, other: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """F15: only what the environment started is named."""
    with make_manager(Serving, 1, kind=kind) as manager:
        manager.launch(0)
        manager.step([0])
        with subprocess.Popen(["sleep", "74"]) as later:
            manager.close()
            later.kill()
    (record,) = [record for record in caplog.records if "runs on" in record.getMessage()]
    assert f"runs on: sleep 71 ({started[0].pid}); end it" in record.getMessage()
    assert [process.poll() for process in (started[0], other)] == [None, None]


def test_those_that_nobody_closed_are_closed_at_the_end_of_the_interpreter() -> None:
    """But for an environment that was passed as an object: it is somebody else's."""
    closed: list[str] = []

    class Named(EchoEnv):
        def __init__(self, name: str = "made here") -> None:
            super().__init__(0, [(3, TERMINATED)])
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    managers = [make_manager(Named, 1), make_manager(Named("passed"), 1)]
    make._close_those_here()
    assert closed == ["made here"]
    for manager in managers:
        manager.close()
    assert closed == ["made here", "passed"]
