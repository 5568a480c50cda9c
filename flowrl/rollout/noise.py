"""Uniform numbers for acting, from one stream per environment."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Steps drawn ahead at once: a call of a generator costs as much as a hundred of its numbers.
BLOCK = 64


def split_seed(seed: int) -> tuple[int, int]:
    """Independent seeds for environments and for noise: each spawns a stream for each environment."""
    env_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return int(env_seed) >> 1, int(noise_seed) >> 1


class NoiseStreams:
    """`next()` gives `[N, draws]` uniform numbers in [0, 1), row i from the stream of environment i (D2).

    State: the generators as they were before the current block, and the place in it.
    """

    def __init__(self, seed: int, num_envs: int, draws: int) -> None:
        self.draws = draws
        sequences = [np.random.SeedSequence(seed, spawn_key=(env_id,)) for env_id in range(num_envs)]
        self._generators = [np.random.Generator(np.random.PCG64(sequence)) for sequence in sequences]
        self._block = np.empty((BLOCK, num_envs, draws))
        self._refill()

    def next(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The numbers of the next step; the array stays as it is for at least as long as the step."""
        if self._at == BLOCK:
            self._refill()
        self._at += 1
        noise: np.ndarray[Any, np.dtype[np.float64]] = self._block[self._at - 1]
        return noise

    def _refill(self) -> None:
        self._before = [generator.bit_generator.state for generator in self._generators]
        for env_id, generator in enumerate(self._generators):
            self._block[:, env_id] = generator.random((BLOCK, self.draws))
        self._at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"generators": self._before, "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for generator, saved in zip(self._generators, state["generators"]):
            generator.bit_generator.state = saved
        self._refill()
        self._at = state["at"]
