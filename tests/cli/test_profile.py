"""flowrl profile: of a plan, and of what a run has written."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.inspect.profile import Profile
from flowrl.runs import kept
from flowrl.runs.directory import PROFILE, RunDirectory
from flowrl.runs.kept import KeptRun
from flowrl.runs.progress import Quiet
from tests.cli.parts import TINY, flowrl, results_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY)
    return tmp_path


def test_a_plan_is_run_and_its_run_read_again(folder: Path) -> None:
    """E1: all entries of a thread sum to its time; the run directory says the same later."""
    done = flowrl("profile", "tiny.py", "--out", "out", "--seconds", "60", "--trace", "trace.json")
    assert done.exit_code == 0, done.output
    head, _, *lines = done.stdout.splitlines()[1:]
    assert head.endswith(" s")
    assert "env_steps per second, without the first" in head
    assert any(line.startswith("driver, ") for line in lines)
    assert [line.split()[-1] for line in lines if line.split()[:1] == ["sum"]] == ["100.0%"]
    assert any(line.startswith("Bottleneck: ") for line in lines)
    names = {event["name"] for event in json.loads((folder / "trace.json").read_text())["traceEvents"]}
    assert {"process_name", "thread_name", "keep"} <= names
    again = flowrl("profile", "out")
    assert again.stdout.splitlines() == done.stdout.splitlines()[1:]
    values = json.loads(flowrl("profile", "out", "--json").stdout)
    account = values["accounts"]["driver"]
    assert sum([*account["busy"].values(), *account["waits"].values(), account["engine"]]) == pytest.approx(1)


def test_a_run_that_was_killed_has_the_profile_of_its_last_second(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: without a checkpoint, too."""
    monkeypatch.setattr(RunDirectory, "finish", lambda *_: None)
    monkeypatch.setattr(KeptRun, "_checkpoint", lambda *_: None)
    assert flowrl("run", "tiny.py", "--out", "out").exit_code == 0
    assert not (folder / "out" / "summary.json").exists()
    assert flowrl("profile", "out").exit_code == 0


def test_a_disk_that_takes_no_profile_ends_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = kept.write_json

    def refuse(path: Path, value: Any) -> None:
        if path.name == PROFILE:
            raise OSError(errno.ENOSPC, "full")
        written(path, value)

    monkeypatch.setattr(kept, "write_json", refuse)
    assert flowrl("run", "tiny.py", "--out", "out", "--set", "n=4").exit_code == 0
    assert len(results_of(folder / "out")) == 4


def test_a_look_that_fails_ends_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last one, and the log says so."""

    def fail(_: Quiet, profile: Profile) -> None:
        raise ValueError("no words")

    monkeypatch.setattr(Quiet, "look", fail)
    monkeypatch.setattr(kept, "LOOK_SECONDS", 0.0)
    assert flowrl("run", "tiny.py", "--out", "out", "--quiet").exit_code == 0
    assert len(results_of(folder / "out")) == 4
    assert (folder / "out" / "log.txt").read_text().count("looked at no more: ValueError: no words") == 1


def test_what_has_no_profile_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    done = flowrl("profile", "empty")
    assert (done.exit_code, done.stderr) == (
        2,
        "Error: empty has no profile.json: a run of flowrl writes it once a second\n",
    )
    (folder / "empty" / "profile.json").write_text("{}")
    assert "it is no profile" in flowrl("profile", "empty").stderr
    done = flowrl("profile", "empty", "--seconds", "3")
    assert done.stderr == ("Error: empty is the directory of a run, which has its settings: leave --seconds out\n")
