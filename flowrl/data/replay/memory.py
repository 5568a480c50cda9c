"""Where rows lie: how much memory there is, and files in its place."""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.data.types import Array, New

_BLOCK = 2**20


def memory() -> int | None:
    """Bytes of memory that this process may have at most: the machine's, or the limit of its container (cgroup).

    None if the system does not say.
    """
    found = []
    with suppress(AttributeError, OSError, ValueError):  # not on Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(Path(limit).read_text()))
    return min(found, default=None)


def in_directory(directory: str | Path) -> New:
    """Allocates arrays in files of their full size, which vanish with the arrays, however the process ends.

    Raises: OSError if the disk has no room; nothing remains on it.
    """

    def new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                _fill(file, size)
                return np.ndarray(shape, dtype, mmap.mmap(file.fileno(), size))
        except OSError as error:
            message = f"no room for a buffer of {size:,} bytes a column: {error.strerror}"
            raise OSError(error.errno, message, str(directory)) from error

    return new


def _fill(file: Any, size: int) -> None:
    """Give a file its full size: writing to a mapped file without room would kill the process."""
    if sys.platform == "linux":
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        for at in range(0, size, _BLOCK):
            file.write(bytes(min(_BLOCK, size - at)))
        file.flush()
