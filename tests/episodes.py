"""Streams for adders: episodes of several environments that end in every way, cut into fragments that may get lost.

What a stream delivers is also told in the plainest form, `Stream.runs`, to compare with.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from flowrl.data import Batch

ENDS = "Tt*x"
"""Marks of a step that ends its episode: terminated, truncated, both; `x`: cut, which only provenance shows."""
MARKS = "......" + ENDS
"""What tests draw marks from; with `.` the episode goes on."""


def flags(marks: np.ndarray) -> dict[str, np.ndarray]:
    """The columns `terminated` and `truncated` of marks of any shape."""
    return {"terminated": np.isin(marks, ["T", "*"]), "truncated": np.isin(marks, ["t", "*"])}


@attrs.define
class Run:
    """Steps of one episode that were delivered one after another, by their numbers.

    `t` is that of the first. `end` is how the last one ended the episode: one of "Tt*", or "" where what follows is
    missing, or the stream was over.
    """

    steps: list[int]
    t: int
    end: str


@attrs.frozen
class Stream:
    """Fragments `[T, N, ...]` in the order of delivery. Every step has a number of its own: see `fragment`."""

    fragments: list[Batch]

    @property
    def runs(self) -> list[Run]:
        """By worker and environment, step by step."""
        found: list[Run] = []
        running: dict[Any, tuple[Run, Any]] = {}  # with the (episode_id, t) of the step that would go on
        for b in self.fragments:
            for env in range(b.reward.shape[1]):
                for row in (b[time, env] for time in range(len(b))):
                    who = (row.worker, row.env_id)
                    run, following = running.pop(who, (None, None))
                    if run is None or following != (row.episode_id, row.t):
                        run = Run([], int(row.t), "")
                        found.append(run)
                    run.steps.append(int(row.reward))
                    if row.terminated or row.truncated:
                        run.end = "*" if row.terminated and row.truncated else "T" if row.terminated else "t"
                    else:
                        running[who] = run, (row.episode_id, row.t + 1)
        return found


def fragment(marks: list[str], first: int = 1, worker: int = 0) -> Batch:
    """A whole stream as one fragment; one string per environment: `.` goes on, `T`, `t`, `*`, `x` as in `ENDS`.

    Step s of environment e has the number n = first + 1000 e + s; its reward is n, it observes n and arrives in
    n + 0.5; its recurrent state, a nested column, is -n.
    """
    signs = np.array([list(row) for row in marks]).T
    time, env = np.indices(signs.shape)
    number = first + 1000 * env + time
    over = np.vstack([np.zeros(len(marks), bool), np.isin(signs, list(ENDS))[:-1]])
    episode = over.cumsum(0)
    begins = np.maximum.accumulate(np.where(over, time, 0), 0)
    return Batch(
        obs=number[..., None].astype(np.float64),
        action=number % 3,
        reward=number.astype(np.float64),
        next_obs=number[..., None] + 0.5,
        **flags(signs),
        state={"h": np.stack([-number, -number], 2).astype(np.float32)},
        worker=np.full(signs.shape, worker),
        env_id=env,
        episode_id=episode,
        t=time - begins,
    )


@st.composite
def streams(draw: Any, *, workers: int = 2, envs: int = 2, steps: int = 14, lossy: bool = True) -> Stream:
    """Streams of some workers that take turns; with `lossy` some fragments of them went missing."""
    parts: list[list[Batch]] = []
    for worker in range(draw(st.integers(1, workers))):
        count, length = draw(st.integers(1, envs)), draw(st.integers(1, steps))
        marks = [
            draw(st.text(MARKS if lossy else MARKS.removesuffix("x"), min_size=length, max_size=length))
            for _ in range(count)
        ]
        whole = fragment(marks, 10_000 * worker + 1, worker)
        cuts = [0, *sorted(draw(st.sets(st.integers(1, length - 1)))), length] if length > 1 else [0, 1]
        parts.append([whole[a:b] for a, b in pairwise(cuts)])
    turns = draw(st.permutations([worker for worker, own in enumerate(parts) for _ in own]))
    delivered = [parts[worker].pop(0) for worker in turns]
    if lossy:
        lost = draw(st.sets(st.integers(0, len(delivered) - 1), max_size=2)) if len(delivered) > 2 else set()
        delivered = [each for i, each in enumerate(delivered) if i not in lost]
    return Stream(delivered)
