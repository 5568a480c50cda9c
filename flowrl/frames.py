"""Tracebacks, as far as they are about the user's own code."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

#: The most frames that a short message shows, the innermost ones.
MOST = 5

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+),? in ([^\s;]+)(?:\n +(?! *File ")(.*))?', re.M)


class Frame(NamedTuple):
    """A line of a traceback: where it is, and its code, "" if that is unknown."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f'  File "{self.file}", line {self.line}, in {self.function}' + (f": {self.code}" if self.code else "")


def own_frames(text: str) -> list[Frame]:
    """The frames in a text, such as a formatted traceback, that are the user's: the innermost one is the last.

    >>> text = 'File "' + __file__ + '", line 1, in step\\n    f()\\n  File "mine.py", line 3, in step\\n    1 / 0\\n'
    >>> [str(frame) for frame in own_frames(text)]
    ['  File "mine.py", line 3, in step: 1 / 0']
    """
    frames = [Frame(file, int(line), name, code or "") for file, line, name, code in _FRAME.findall(text)]
    if "(most recent call first)" in text:  # of faulthandler
        frames.reverse()
    return [frame for frame in frames if is_own(frame.file)]


def in_lines(frames: Sequence[Frame]) -> list[str]:
    """The innermost frames, a line each."""
    left_out = len(frames) - MOST
    return [f"  ... {left_out} more lines of yours"] * (left_out > 0) + [str(frame) for frame in frames[-MOST:]]


def is_own(file: str) -> bool:
    """Whether a file is none of Python's, of flowrl's, or of the libraries between it and the user's code."""
    standard = file.startswith(_STANDARD) and "site-packages" not in file
    return file[:1] not in ("", "<") and not standard and not file.startswith(_libraries())


_STANDARD = sysconfig.get_path("stdlib")


@cache
def _libraries() -> tuple[str, ...]:
    """The folders of flowrl, with those that are linked into it, and of the libraries."""
    here = Path(__file__).parent
    folders = [here, *(each.resolve() for each in (here, here / "operators", here / "plans"))]
    for name in ("gymnasium", "click", "ray"):
        found = find_spec(name)
        if found is not None and found.origin is not None:
            folders.append(Path(found.origin).parent)
    return tuple(f"{folder}{os.sep}" for folder in folders)
