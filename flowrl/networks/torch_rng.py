"""The only user of global generators: swaps a stream's state in, and restores the old state after (D6)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from flowrl.networks.sampling import Array

_one_at_a_time = threading.RLock()


class TorchStream:
    """A random stream for torch code that can only draw from the global generator.

    A policy builds its networks inside `swapped_in()`; a forward that draws (dropout, say) runs there too.

    State: that of the generator; the next block continues where the last one ended.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._inside = False

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Run a block on this stream; a block of another thread (of a learner, say) waits."""
        with _one_at_a_time:
            outside = torch.get_rng_state()
            torch.set_rng_state(self._generator.get_state())
            self._inside = True
            try:
                yield
            finally:
                self._inside = False
                self._generator.set_state(torch.get_rng_state())
                torch.set_rng_state(outside)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Normally distributed numbers, float32."""
        drawn: Array = torch.randn(shape, generator=None if self._inside else self._generator).numpy()
        return drawn

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Uniform numbers in [0, 1), float32."""
        drawn: Array = torch.rand(shape, generator=None if self._inside else self._generator).numpy()
        return drawn

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["state"])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block whose draws from the global generators of torch and numpy follow from a seed; restores both after."""
    outside = np.random.get_state()  # noqa: NPY002 - for code that uses it
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        with TorchStream(seed).swapped_in():
            yield
    finally:
        np.random.set_state(outside)  # noqa: NPY002
