"""log.txt in a run directory."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import pytest

from flowrl.runs.run_log import RunLog

log = logging.getLogger("flowrl")


def _lines(path: Path) -> list[str]:
    """The lines without their times."""
    return [line.split(" ", 2)[2] if line[:2] == "20" else line for line in path.read_text().splitlines()]


def test_the_file_has_records_and_warnings_from_the_start_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the terminal shows what it does without."""
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own
    monkeypatch.setattr(log, "handlers", [])
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", show := lambda message, *_: shown.append(str(message)))
    for number in (1, 2):  # the run, and then its resumption
        with RunLog() as kept, warnings.catch_warnings():
            warnings.simplefilter("always")
            log.warning("before %d", number)
            kept.open(tmp_path / "log.txt")
            log.info("two\nlines")
            warnings.warn_explicit("old", UserWarning, "own_env.py", 3)
            kept.keep(logging.ERROR, "Traceback")
    log.warning("after")
    expected = ["WARNING before 1", "INFO two", "lines", "WARNING own_env.py:3: UserWarning: old", "ERROR Traceback"]
    assert _lines(tmp_path / "log.txt") == [*expected, "WARNING before 2", *expected[1:]]
    assert capsys.readouterr().err.splitlines() == ["before 1", "before 2", "after"]
    assert shown == ["old", "old"]
    assert (warnings.showwarning, log.level, log.handlers) == (show, logging.NOTSET, [])


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    with RunLog() as kept:
        kept.open(Path("/dev/full"))
        log.warning("lost")
        kept.keep(logging.ERROR, "lost too")
