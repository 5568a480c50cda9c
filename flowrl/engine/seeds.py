"""The seed tree: every random stream of a run follows from one seed and the path of its user."""

from __future__ import annotations

import copy
import hashlib
import math
from typing import TYPE_CHECKING, Any

from flowrl.saved import Saved, random_generator

if TYPE_CHECKING:
    import numpy as np


class SeedTree:
    """Independent, reproducible random streams by path (rule D6).

    A stream is `SeedSequence(seed, spawn_key=hash(path))`, so adding a path changes no other stream.

    State: the states of its generators.

    >>> bool(SeedTree(1).generator("a").integers(100) == SeedTree(1).generator("a").integers(100))
    True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._generators: dict[str, np.random.Generator] = {}

    def sequence(self, path: str) -> np.random.SeedSequence:
        """The seed sequence of a path; equal for equal seeds and paths, on every machine."""
        import numpy as np  # here, so that building plans needs no numpy

        digest = hashlib.sha256(path.encode()).digest()
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
        return np.random.SeedSequence(self.seed, spawn_key=words)

    def integer(self, path: str) -> int:
        """A seed in [0, 2**63) for libraries that take one number."""
        high, low = self.sequence(path).generate_state(2)
        return (int(high) << 32 | int(low)) >> 1

    def generator(self, path: str) -> np.random.Generator:
        """The generator of a path; the same object each time, with its state kept in the tree's state."""
        import numpy as np

        if path not in self._generators:
            self._generators[path] = np.random.Generator(np.random.PCG64(self.sequence(path)))
        return self._generators[path]

    def state_dict(self) -> dict[str, Any]:
        streams = {path: copy.deepcopy(g.bit_generator.state) for path, g in self._generators.items()}
        return {"seed": self.seed, "streams": streams}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved random streams")
        seed, streams = saved.get("seed", int, least=0, most=math.inf), saved.inside("streams")
        loaded = {path: random_generator(streams, path) for path in streams.state}
        self.seed = seed
        for path in {*self._generators, *loaded}:
            # Operators hold the objects, so these stay. A stream that is not in the state starts afresh.
            generator, found = self.generator(path), loaded.get(path)
            fresh = type(generator.bit_generator)(self.sequence(path))
            generator.bit_generator.state = (fresh if found is None else found.bit_generator).state
