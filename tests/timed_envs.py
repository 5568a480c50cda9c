"""Environments whose steps take given times, waiting for them or working."""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

#: Of the heavy-tailed step times: that of the logarithm of a lognormal distribution.
SIGMA = 1.5


class TimedEnv(gymnasium.Env[Any, Any]):
    """Observes its own clock as four numbers; step k of its life takes `seconds[k]`, over and over.

    Args:
        seconds: One number, or one for each step of a cycle.
        busy: It works for so much time of its processor; otherwise it sleeps, as one that waits for a server.
        length: Steps of an episode, which is then truncated; a reset takes no time.
    """

    def __init__(self, seconds: float | npt.NDArray[np.float64], busy: bool = False, length: int = 200) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.seconds = np.atleast_1d(seconds).tolist()
        self.busy, self.length = busy, length
        self.clock = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.full(4, self.clock, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seconds = self.seconds[self.clock % len(self.seconds)]
        if self.busy:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
        else:
            time.sleep(seconds)
        self.clock, self.t = self.clock + 1, self.t + 1
        return np.full(4, self.clock, np.float32), 1.0, False, self.t == self.length, {}


def heavy_tailed(index: int, steps: int = 10_000, mean: float = 1e-3) -> npt.NDArray[np.float64]:
    """Lognormal step times `[steps]` in seconds, others for each index: half take a third of the mean or less."""
    generator = np.random.default_rng([index, 0])
    return generator.lognormal(math.log(mean) - SIGMA**2 / 2, SIGMA, steps)
