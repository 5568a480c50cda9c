"""The columns that the processes or threads of a manager share, in anonymous memory."""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from flowrl.envs.spaces import array_form, make_store

Zeros = Callable[[tuple[int, ...], Any], npt.NDArray[Any]]

NOTHING, STEP, RESET = 0, 1, 2
"""The commands to an environment."""

BEGAN = 3
"""The place of `began` after the three stores."""

OWN_END, RECORDED_END, INNER_END = 0, 1, 2
"""The source of an ended episode's return: summed rewards, its recorder, or none if it goes on inside (T9)."""


class SharedMemory:
    """The columns through which N environments and their manager communicate; `zeros` allocates them.

    To the environments: `command [N]`, `action [N, ...]`, the seed of a commanded reset (`seed [N]`) and of the reset
    after the end of an episode (`next_seed [N]`), and `at [1]`, the index of the one of three `stores [N, ...]` that a
    step writes to.

    From them: the observation arrived in, in that store; `reward`, `terminated`, `truncated` `[N]`; the first
    observation of a new episode in `began [N, ...]`; for an ended episode `ending`, `return_`, `length`, `success` (-1
    if unknown) `[N]`; return and length after each step too, where there is a recorder. The activity of each of P
    processes: `current [P]`, the environment, `resetting [P]`, and `since [P]`, in seconds of the monotonic clock.
    """

    def __init__(
        self,
        zeros: Zeros,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        num_envs: int,
        num_processes: int,
    ) -> None:
        def column(dtype: Any, rows: int = num_envs) -> npt.NDArray[Any]:
            return zeros((rows,), dtype)

        *self.stores, self.began = (make_store(observation_space, num_envs, zeros=zeros) for _ in range(4))
        shape, dtype = array_form(action_space, "action")
        self.action = zeros((num_envs, *shape), dtype)
        self.command, self.seed, self.next_seed = column(np.int8), column(np.int64), column(np.int64)
        self.at = column(np.int64, 1)
        self.reward = column(np.float64)
        self.terminated, self.truncated = column(np.bool_), column(np.bool_)
        self.ending, self.success = column(np.int8), column(np.int8)
        self.return_, self.length = column(np.float64), column(np.int64)
        self.since = column(np.float64, num_processes)
        self.current, self.resetting = column(np.int64, num_processes), column(np.bool_, num_processes)


class Arena:
    """Allocates arrays in a file's memory in sequence: the same calls give the same arrays in every process."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, os.fstat(file).st_size)
        self._used = 0

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        start = self._used
        self._used += _padded(shape, np.dtype(dtype))
        return np.frombuffer(self._memory, dtype, math.prod(shape), start).reshape(shape)


def memory_file(fill: Callable[[Zeros], Any]) -> int:
    """The descriptor of a file with room for the arrays of `fill`. It has no name, so it ends with its last user."""
    needed = 0

    def measure(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        nonlocal needed
        needed += _padded(shape, np.dtype(dtype))
        return np.broadcast_to(np.zeros((), dtype), shape)

    fill(measure)
    if sys.platform == "linux":
        file = os.memfd_create("flowrl")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, needed)
    return file


def _padded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    line = 64  # two processes that write to one cache line slow each other down
    return (math.prod(shape) * dtype.itemsize // line + 1) * line
