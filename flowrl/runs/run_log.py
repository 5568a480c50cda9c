"""log.txt in a run directory: everything that the log of flowrl and Python's warnings say while the run lasts."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Self, TextIO

log = logging.getLogger("flowrl")


class RunLog(logging.Handler):
    """Writes the records of the logger `flowrl`, from level INFO on, and Python's warnings to a file.

    What comes before `open` is written then. A line that the disk refuses is lost, and nothing else. The terminal
    shows what it shows without a log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._turn = threading.RLock()
        self._file: FileIO | None = None
        self._kept: list[str] = []
        self._level = logging.NOTSET
        self._show: Callable[..., None] = warnings.showwarning

    def __enter__(self) -> Self:
        self._level, self._show = log.level, warnings.showwarning
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)
        log.addHandler(self)
        warnings.showwarning = self._warned
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self)
        log.setLevel(self._level)
        if warnings.showwarning == self._warned:
            warnings.showwarning = self._show
        self.close()

    def open(self, path: Path) -> None:
        """Append to a file from now on. Raises: OSError."""
        file = FileIO(path, "ab")
        with self._turn:
            if self._file is not None:
                self._file.close()
            self._file, kept, self._kept = file, self._kept, []
            for line in kept:
                self._write(line)

    def keep(self, level: int, text: str) -> None:
        """Write a text to the file alone."""
        self._write(self.format(logging.LogRecord(log.name, level, "", 0, "%s", (text,), None)))

    def _write(self, text: str) -> None:
        with self._turn:
            if self._file is None:
                self._kept.append(text)
                return
            with suppress(OSError):  # a full disk, which ends no training
                self._file.write(f"{text.rstrip()}\n".encode(errors="backslashreplace"))

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))
        last = logging.lastResort  # Python's own handler, which is not asked where a logger has one
        if last is not None and record.levelno >= last.level and log.handlers == [self] and not logging.root.handlers:
            last.handle(record)

    def close(self) -> None:
        with self._turn:
            if self._file is not None:
                self._file.close()
                self._file = None
        super().close()

    def _warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self.keep(logging.WARNING, warnings.formatwarning(message, category, filename, lineno, line).rstrip())
        self._show(message, category, filename, lineno, file, line)
