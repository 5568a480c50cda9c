"""The plainest model of a buffer that draws spans, a list of steps for each ring, and the machine that compares."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowrl.data import Batch
from flowrl.data.replay.segments import SpanReplayBuffer
from tests.episodes import MARKS, flags


class Step(NamedTuple):
    """One step as it was stored."""

    number: int
    t: int
    end: str
    follows: bool  #: the one before it in its ring is the step before it


class Span(NamedTuple):
    """What is drawn at a slot."""

    slot: int
    generation: int
    numbers: tuple[int, ...]
    mask: tuple[bool, ...]


Spans = Callable[[list[Step]], Iterator[tuple[int, int, int]]]
"""Of a run: where in it each span begins, its steps, and how many of these do not count."""


class Source:
    """Environments that number their steps, from 1 on; `reward` is the number."""

    def __init__(self, envs: int) -> None:
        self.envs, self.number = envs, 0
        self.t, self.episode, self.after = [0] * envs, [0] * envs, [False] * envs

    def step(self, env: int, mark: str) -> Step:
        made = Step(self.number + 1, self.t[env], mark, self.after[env])
        self.number += 1
        self.after[env] = mark == "."
        self.t[env] = self.t[env] + 1 if mark == "." else 0
        self.episode[env] += mark != "."
        return made


def batch_of(rows: list[list[Step]], env_ids: list[int], episodes: list[list[int]]) -> Batch:
    """A fragment `[T, N, ...]` of steps by time and environment."""
    number = np.array([[step.number for step in row] for row in rows])
    marks = np.array([[step.end for step in row] for row in rows])
    return Batch(
        obs={"x": np.stack([number, -number], axis=-1).astype(np.float32)},
        reward=number.astype(np.float32),
        next_obs={"x": np.stack([number + 1, -number - 1], axis=-1).astype(np.float32)},
        **flags(marks),
        state={"h": np.stack([number, number], axis=-1).astype(np.float16)},
        env_id=np.array(env_ids) + 0 * number,
        episode_id=np.array(episodes),
        t=np.array([[step.t for step in row] for row in rows]),
    )


def expected(rings: list[list[Step]], length: int, spans: Spans) -> set[Span]:
    """All that can be drawn of rings that keep the newest `length` steps of these."""
    found = set()
    for env, steps in enumerate(rings):
        starts = [i for i, step in enumerate(steps) if not (i and step.follows)]
        for first, after in zip(starts, [*starts[1:], len(steps)]):
            run = steps[first:after]
            for begin, count, warm_up in spans(run):
                at, end = first + begin, first + begin + count
                if at < len(steps) - length:
                    continue  # overwritten in part
                if end == len(steps) and steps[-1].end not in "Tt*":
                    continue  # who knows what follows
                slot = at % length * len(rings) + env
                numbers = tuple(step.number for step in steps[at:end])
                found.add(Span(slot, at // length + 1, numbers, tuple(i >= warm_up for i in range(count))))
    return found


def repeats_last(column: np.ndarray, real: np.ndarray) -> bool:
    """Whether padding, which is at the end, repeats the last of the `[T, N]` that are real in its column."""
    return all(
        np.array_equal(column[t, i], column[real[:, i].sum() - 1, i]) for t, i in np.argwhere(~real & real.any(0))
    )


def drawn_spans(batch: Batch) -> list[Span]:
    """What was drawn, after every column was compared with what belongs to its steps."""
    number, real = batch.reward.astype(int), batch.reward != 0
    assert np.array_equal(real, np.arange(len(real))[:, None] < real.sum(0)), "padding comes last"
    assert not (batch.mask & ~real).any()
    assert batch.shape == number.shape
    assert batch.obs.x.dtype == np.float32
    for name in batch:
        if name not in ("state", "index", "generation", "mask", "weight"):
            leaf = batch[name].x if isinstance(batch[name], Batch) else batch[name]
            if name in ("obs", "next_obs", "action"):
                assert repeats_last(leaf, real), f"{name} repeats the last step where padded (R7)"
            else:
                assert not leaf[~real].any(), f"{name} is 0 where padded"
    assert (batch.obs.x[..., 0][real] == number[real]).all()
    assert (batch.next_obs.x[..., 1][real] == -number[real] - 1).all()
    assert (batch.state.h == number[0][:, None]).all(), "the state of the first step"
    assert (batch.index == batch.index[0]).all()
    assert (batch.generation == batch.generation[0]).all()
    return [
        Span(
            int(batch.index[0, i]),
            int(batch.generation[0, i]),
            tuple(number[real[:, i], i].tolist()),
            tuple(batch.mask[real[:, i], i].tolist()),
        )
        for i in range(batch.shape[1])
    ]


class SpanMachine(RuleBasedStateMachine):
    """Adds, wraps, draws, saves and loads; a subclass says what the spans of a run are, and makes the buffer."""

    buffer: SpanReplayBuffer
    shape: Callable[[int], int]

    def make(self, capacity: int, **settings: Any) -> SpanReplayBuffer:
        raise NotImplementedError

    def spans(self, run: list[Step]) -> Iterator[tuple[int, int, int]]:
        raise NotImplementedError

    def make_any(self, capacity: int, seed: int) -> SpanReplayBuffer:
        return self.make(capacity, seed=seed, store_next_obs=self.twice)

    def draw_sizes(self, draw: Callable[[Any], Any]) -> int:
        """Choose what the buffer is made with; returns how many rows a ring must have at least."""
        return 1

    @initialize(data=st.data(), envs=st.integers(1, 3), more=st.integers(0, 8), twice=st.booleans())
    def begin(self, data: Any, envs: int, more: int, twice: bool) -> None:
        self.twice, self.length = twice, max(2 - twice, self.draw_sizes(data.draw)) + more
        self.capacity = envs * self.length + data.draw(st.integers(0, envs - 1))
        self.source, self.rings = Source(envs), [[] for _ in range(envs)]
        self.buffer, self.samples = self.make_any(self.capacity, seed=1), 0

    @rule(data=st.data(), steps=st.integers(1, 12))
    def add(self, data: Any, steps: int) -> None:
        rows, episodes = [], []
        for _ in range(steps):
            episodes.append(list(self.source.episode))
            marks = data.draw(st.text(MARKS, min_size=self.source.envs, max_size=self.source.envs))
            rows.append([self.source.step(env, mark) for env, mark in enumerate(marks)])
        for env, ring in enumerate(self.rings):
            ring += [row[env] for row in rows]
        batch = batch_of(rows, list(range(self.source.envs)), episodes)
        before = copy.deepcopy(batch)
        self.buffer.add(batch)
        assert batch == before, "the input was changed in place"

    @precondition(lambda self: len(self.rings) == 1)
    @rule(columns=st.lists(st.text(MARKS, min_size=1, max_size=8), min_size=1, max_size=3))
    def add_padded(self, columns: list[str]) -> None:
        """Episodes side by side, and parts of such; each is by itself, whatever provenance says."""
        longest, made, episodes = max(map(len, columns)), [], []
        for marks in columns:
            self.source.after[0] = False
            steps, of = [], []
            for mark in marks:
                of.append(self.source.episode[0])
                steps.append(self.source.step(0, mark))
            self.rings[0] += steps
            made.append(steps + steps[-1:] * (longest - len(steps)))
            episodes.append(of + of[-1:] * (longest - len(steps)))
        self.source.after[0] = False
        mask = np.arange(longest)[:, None] < [len(marks) for marks in columns]
        rows = [list(row) for row in zip(*made)]
        batch = batch_of(rows, [0] * len(columns), [list(row) for row in zip(*episodes)])
        batch[~mask] = 77  # whatever it holds
        self.buffer.add(batch.replace(mask=mask))

    @rule(data=st.data(), steps=st.integers(1, 12))
    def append(self, data: Any, steps: int) -> None:
        """B3: from another buffer come the very next steps, and yet no episode goes on over the seams."""
        other, first = self.make(20 * len(self.rings), seed=3), len(self.rings[0])
        self.source.after = [False] * len(self.rings)
        mine, self.buffer = self.buffer, other
        self.add(data, steps)
        mine.update(other)
        self.buffer = mine
        if first:
            self.source.after = [False] * len(self.rings)

    @rule(fresh=st.booleans())
    def save_and_load(self, fresh: bool) -> None:
        """B5: into a new buffer, or one that holds something else."""
        other = self.make_any(self.capacity, seed=9)
        if not fresh:
            other.add(
                batch_of(
                    [[Step(5, 0, "T", False)] * len(self.rings)] * 3, [0] * len(self.rings), [[0] * len(self.rings)] * 3
                )
            )
            assert other.size
        other.load_state_dict(pickle.loads(pickle.dumps(self.buffer.state_dict())))
        if self.buffer.can_sample(3):
            assert other.sample(9) == self.buffer.sample(9)
            self.samples = self.buffer.samples
        self.buffer = other

    @rule(more=st.integers(0, 4))
    def resize(self, more: int) -> None:
        """B3: the rows of one buffer go into another, in the order of time."""
        kept = [steps[-self.length :] for steps in self.rings]
        self.length += more
        self.capacity = self.length * len(self.rings)
        larger = self.make_any(self.capacity, seed=2)
        larger.update(self.buffer)
        self.rings = [[steps[0]._replace(follows=False), *steps[1:]] if steps else [] for steps in kept]
        self.buffer, self.samples = larger, 0

    @rule()
    def copies(self) -> None:
        self.buffer = pickle.loads(pickle.dumps(copy.deepcopy(self.buffer)))

    @invariant()
    def draws_what_the_model_says(self) -> None:
        """Every span that can be drawn, and no other."""
        if not hasattr(self, "buffer"):
            return
        spans = expected(self.rings, self.length, self.spans)
        assert self.buffer.size == sum(min(len(ring), self.length) for ring in self.rings)
        assert self.buffer.can_sample(1) == bool(spans)
        if spans:
            batch = self.buffer.sample(25 * len(spans))
            assert set(drawn_spans(batch)) == spans
            self.samples += int(batch.mask.sum())
            assert self.buffer.samples == self.samples, "what counts is counted"


def use_in_any_order(machine: type[SpanMachine]) -> None:
    """Compare a buffer with the model, whatever is done with it."""
    quick = settings(
        stateful_step_count=12,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # with Phase.shrink a failure takes minutes, and is short
    )
    run_state_machine_as_test(machine, settings=quick)
