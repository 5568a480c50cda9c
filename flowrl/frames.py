"""Tracebacks, as far as they are about the user's own code."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from flowrl.errors import FlowError

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


def own_line(stack: str) -> str:
    """The innermost line of a stack in the environment's own code, see `own_frames`; "" if none is.

    >>> import gymnasium
    >>> own_line(f'File "{gymnasium.__file__}", line 1, in step\\nFile "mine.py", line 3, in step')
    ', in step, mine.py:3'
    """
    return next((f", in {each.function}, {each.file}:{each.line}" for each in reversed(own_frames(stack))), "")


def one_line(error: BaseException) -> str:
    """A user's error in one line, with the line of code that raised it; flowrl's own need none."""
    if isinstance(error, FlowError):
        return str(error).replace("\n", " ")
    text, where = text_of(error), own_line("".join(traceback.format_tb(error.__traceback__)))
    if isinstance(error, SyntaxError):  # the line that cannot be read is in no frame
        text, where = error.msg, f", {error.filename}:{error.lineno}"
    return f"{type(error).__name__}: {text or 'no message'}{where}{outgrown(error)}".replace("\n", " ")


def text_of(error: BaseException) -> str:
    """What a user's error says, in one line, whatever its own `__str__` does."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return "its message cannot be read"


def outgrown(error: BaseException) -> str:
    """What to install where an error is that of a library which the installed MuJoCo has left behind; else ""."""
    stack = "".join(traceback.format_exception(error))
    library = next((name for name in _OF_MUJOCO_3 if f"{os.sep}{name}{os.sep}" in stack), None)
    try:
        found = version("mujoco") if library else "0"
    except PackageNotFoundError:
        return ""
    if int(found.partition(".")[0]) < 4:
        return ""
    return f"; {library} needs MuJoCo 3, but {found} is installed: pip install 'mujoco<4'"


def is_own(file: str) -> bool:
    """Whether a file is none of Python's, of flowrl's, or of the libraries between it and the user's code."""
    standard = file.startswith(_STANDARD) and "site-packages" not in file
    return file[:1] not in ("", "<") and not standard and not file.startswith(_libraries())


#: Libraries that call what MuJoCo has no more from 4.0 on.
_OF_MUJOCO_3 = ("dm_control", "gymnasium_robotics", "metaworld")
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
