"""Whose code a line of a traceback is."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path

import gymnasium

import flowrl

_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (flowrl, gymnasium))
_STANDARD = sysconfig.get_path("stdlib")


def own_line(frames: Sequence[tuple[str, int, str]]) -> str:
    """Of frames (file, line, function), outermost first, the innermost that is the environment's own; "" if none is.

    >>> own_line([("mine.py", 3, "step"), (gymnasium.__file__, 1, "step")])
    'in step, mine.py:3'
    """
    for file, line, name in reversed(frames):
        standard = file.startswith(_STANDARD) and "site-packages" not in file
        if not file.startswith(_LIBRARIES) and not standard and file[:1] != "<":
            return f"in {name}, {file}:{line}"
    return ""
