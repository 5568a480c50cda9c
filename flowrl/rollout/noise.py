"""Uniform numbers for acting, from one stream per environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.saved import Saved, random_generator

Array = np.ndarray[Any, np.dtype[Any]]

#: Steps to draw ahead: a call of a generator costs as much as a hundred of its numbers.
BLOCK = 64


def split_seed(seed: int) -> tuple[int, int]:
    """Independent seeds for environments and for noise; each spawns a stream per environment."""
    env_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return int(env_seed) >> 1, int(noise_seed) >> 1


class NoiseStreams:
    """`next()` returns `[N, draws]` uniform numbers in [0, 1), row i from the stream of environment i (D2).

    A stream advances only when its environment acts, so the numbers of an environment's k-th step depend neither on the
    others nor on resets. All streams share one position until they first differ.

    Args:
        keys: The number of each row's stream; None: that of its environment.

    State: the generators before the current block, and the position of each in it.
    """

    def __init__(self, seed: int, num_envs: int, draws: int, keys: Sequence[int] | None = None) -> None:
        self.draws = draws
        numbers = range(num_envs) if keys is None else keys
        sequences = [np.random.SeedSequence(seed, spawn_key=(number,)) for number in numbers]
        self._generators = [np.random.Generator(np.random.PCG64(sequence)) for sequence in sequences]
        self._block = np.empty((BLOCK, num_envs, draws))
        self._rows = self._block.reshape(BLOCK * num_envs, draws)
        self._ids = np.arange(num_envs)
        self._at = 0  # position of all streams, unless there is `_places`
        self._places: Array | None = None  # `[N]`: of the next numbers of each, in `_rows`
        self._refill(self._ids)

    def next(self, env_ids: Array | None = None) -> Array:
        """The numbers of the next step, `[len(env_ids), draws]` (None: all); valid for the duration of that step."""
        if not self.draws:
            none: Array = self._block[0] if env_ids is None else self._block[0, env_ids]
            return none
        if env_ids is None and self._places is None:
            if self._at == BLOCK:
                self._refill(self._ids)
                self._at = 0
            self._at += 1
            noise: Array = self._block[self._at - 1]
            return noise
        of_all = self._apart()
        ids, places = (self._ids, of_all) if env_ids is None else (env_ids, of_all[env_ids])
        spent = places >= len(self._rows)
        if np.count_nonzero(spent):  # faster than any()
            self._refill(ids[spent])
            places[spent] = ids[spent]
        noise = self._rows.take(places, axis=0)
        places += len(self._ids)
        if env_ids is not None:
            of_all[env_ids] = places
        return noise

    def take_back(self, env_ids: Array) -> None:
        """Return the newest numbers of environments that did not act after all, to draw them again."""
        if not self.draws:
            return
        self._apart()[env_ids] -= len(self._ids)

    def _apart(self) -> Array:
        """The places of the streams, which may differ from now on."""
        if self._places is None:
            self._places = self._at * len(self._ids) + self._ids
        return self._places

    def _refill(self, env_ids: Array) -> None:
        for env_id in env_ids.tolist():
            self._block[:, env_id] = self._generators[env_id].random((BLOCK, self.draws))

    def state_dict(self) -> dict[str, Any]:
        at = [self._at] * len(self._ids) if self._places is None else (self._places // len(self._ids)).tolist()
        before, states = np.random.PCG64(0), []
        for generator in self._generators:
            before.state = generator.bit_generator.state  # type: ignore[assignment]  # numpy's stubs
            states.append(before.advance(-BLOCK * self.draws).state)
        return {"generators": states, "at": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved noise")
        states, at = saved.get("generators", list), saved.get("at", list[int])
        loaded = [random_generator(Saved({"generator": each}, saved.what), "generator") for each in states]
        if len(loaded) != len(self._ids) or len(at) != len(self._ids) or not all(0 <= each <= BLOCK for each in at):
            saved.refuse("at", f"{len(self._ids)} positions, 0 .. {BLOCK}, and as many generators")
        self._generators = [generator or np.random.default_rng(0) for generator in loaded]
        self._refill(self._ids)
        self._at = at[0]
        self._places = None if at == at[:1] * len(at) else np.array(at, np.int64) * len(at) + self._ids
