"""Streams for buffers: each observation says where it is from, and is the next one of the step before, as in a ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from flowrl.data import Batch
from tests.episodes import flags


@attrs.frozen
class Stream:
    """One string of marks per environment, see `tests.episodes`, and what must come of it, step by step.

    Step s of environment e sees 100 e + s, and arrives in what is seen next; in its negative where an episode ends.
    """

    marks: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.marks[0])

    @property
    def envs(self) -> int:
        return len(self.marks)

    def ends(self, env: int, step: int) -> bool:
        return self.marks[env][step] != "."

    def obs(self, env: int, step: int) -> int:
        return 100 * env + step + 1

    def next_obs(self, env: int, step: int) -> int:
        return -self.obs(env, step) if self.ends(env, step) else self.obs(env, step + 1)

    def frames(self, env: int, step: int, k: int, oldest: int) -> list[int]:
        """The last k frames, the first one of the episode, or of what is left of it, repeated."""
        first = step
        while first > oldest and not self.ends(env, first - 1):
            first -= 1
        return [self.obs(env, max(first, step - back)) for back in reversed(range(k))]

    def next_frames(self, env: int, step: int, k: int, oldest: int) -> list[int]:
        return [*self.frames(env, step, k, oldest)[1:], self.next_obs(env, step)]

    def fragment(self, start: int, stop: int) -> Batch:
        steps = range(start, stop)
        marks = np.array([[mark[step] for mark in self.marks] for step in steps])

        def per_step(function: Any) -> np.ndarray:
            values = [[function(env, step) for env in range(self.envs)] for step in steps]
            return np.array(values, np.int32)[..., None] * np.array([1, 2], np.int32)

        return Batch(
            obs=per_step(self.obs),
            reward=per_step(self.obs)[..., 0].astype(np.float32),
            next_obs=per_step(self.next_obs),
            **flags(marks),
        )

    def fragments(self, sizes: list[int]) -> Iterator[Batch]:
        start = 0
        for size in sizes:
            if start < len(self):
                yield self.fragment(start, min(len(self), start + size))
            start += size

    def where(self, obs: Any) -> tuple[int, int]:
        """Environment and step of an observation."""
        env, step = divmod(int(obs) - 1, 100)
        return env, step


@st.composite
def streams(draw: Any, most: int = 14) -> tuple[Stream, list[int]]:
    """A stream and sizes of the fragments that it comes in."""
    envs, steps = draw(st.integers(1, 3)), draw(st.integers(1, most))
    marks = tuple(draw(st.text("....Tt*", min_size=steps, max_size=steps)) for _ in range(envs))
    return Stream(marks), draw(st.lists(st.integers(1, 5), min_size=steps, max_size=steps))
