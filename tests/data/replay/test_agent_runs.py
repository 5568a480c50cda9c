"""Sequences and episodes of a game's seats, which have different numbers of rows in each fragment, also none."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    ReplayActors,
    SequenceReplayBuffer,
)
from flowrl.data.replay.segments import SpanReplayBuffer
from flowrl.data.steps import joined
from flowrl.errors import CheckpointError
from tests.data.replay.test_sequences import sequences
from tests.data.replay.test_sharded import stores
from tests.episodes import MARKS
from tests.span_model import Source, Span, Spans, Step, batch_of, drawn_spans

SEATS = [(0, 0), (0, 1), (1, 0), (1, 1)]


class Model:
    """A list of steps for each seat, and of what each wrote at which place of the ring."""

    def __init__(self, capacity: int, seats: int, spans: Spans) -> None:
        self.capacity, self.spans, self.source = capacity, spans, Source(seats)
        self.steps: list[list[tuple[int, Step]]] = [[] for _ in range(seats)]
        self.written = 0

    def play(self, marks: list[str]) -> Batch:
        """The next fragment: of each seat as many steps as its string is long."""
        rows, episodes, longest = [], [], max(map(len, marks))
        for seat, ends in enumerate(marks):
            made, of = [], []
            for end in ends:
                of.append(self.source.episode[seat])
                made.append(self.source.step(seat, end))
                self.steps[seat].append((self.written, made[-1]))
                self.written += 1
            rows.append(made + [Step(77, 7, "T", False)] * (longest - len(ends)))
            episodes.append(of + [9] * (longest - len(ends)))
        batch = batch_of(list(map(list, zip(*rows))), [0] * len(marks), list(map(list, zip(*episodes))))
        env_id, agent = np.array(SEATS[: len(marks)]).T
        mask = np.arange(longest)[:, None] < [len(ends) for ends in marks]
        return batch.replace(env_id=env_id + 0 * batch.t, agent=agent + 0 * batch.t, mask=mask)

    def resized(self, capacity: int) -> None:
        """The newest steps are in another buffer, the oldest of each seat without those before it."""
        first = max(0, self.written - self.capacity)
        for seat, steps in enumerate(self.steps):
            kept = [(place - first, step) for place, step in steps if place >= first]
            self.steps[seat] = [(p, step._replace(follows=step.follows and i > 0)) for i, (p, step) in enumerate(kept)]
        self.written, self.capacity = self.written - first, capacity

    @property
    def expected(self) -> set[Span]:
        found = set()
        for steps in self.steps:
            starts = [i for i, (_, step) in enumerate(steps) if not (i and step.follows)]
            for first, after in zip(starts, [*starts[1:], len(steps)]):
                for begin, count, warm_up in self.spans([step for _, step in steps[first:after]]):
                    span = steps[first + begin : first + begin + count]
                    place, open_ = span[0][0], first + begin + count == len(steps) and span[-1][1].end not in "Tt*"
                    if place >= self.written - self.capacity and not open_:
                        numbers, mask = (
                            tuple(step.number for _, step in span),
                            tuple(i >= warm_up for i in range(count)),
                        )
                        found.add(Span(place % self.capacity, place // self.capacity + 1, numbers, mask))
        return found


def play_and_compare(data: st.DataObject, make: Callable[..., SpanReplayBuffer], spans: Spans, least: int) -> None:
    seats = data.draw(st.integers(1, 4))
    capacity = seats * least + data.draw(st.integers(0, 40))
    model, buffer = Model(capacity, seats, spans), make(capacity, seed=0)
    for _ in range(data.draw(st.integers(1, 8))):
        columns = st.lists(st.text(MARKS, max_size=6), min_size=seats, max_size=seats).filter(any)
        buffer.add(model.play(data.draw(columns)))
        what = data.draw(st.sampled_from(["", "", "load", "copy", "resize"]))
        if what == "load":
            state = pickle.loads(pickle.dumps(buffer.state_dict()))
            buffer = make(capacity, seed=1)
            buffer.load_state_dict(state)
        elif what == "copy":
            buffer = pickle.loads(pickle.dumps(buffer))
        elif what == "resize":
            capacity += data.draw(st.integers(0, 5))
            larger = make(capacity, seed=2)
            larger.update(buffer)
            model.resized(capacity)
            buffer = larger
        expected = model.expected
        assert buffer.size == min(model.written, capacity)
        assert buffer.can_sample(1) == bool(expected)
        if expected:
            drawn = drawn_spans(buffer.sample(25 * len(expected)))
            assert {span._replace(generation=0) for span in drawn} == {s._replace(generation=0) for s in expected}
            if what != "resize":
                assert set(drawn) == expected


@pytest.mark.parametrize("kind", [SequenceReplayBuffer, PrioritizedSequenceReplayBuffer])
@given(data=st.data(), length=st.integers(1, 4), burn_in=st.integers(0, 3), twice=st.booleans())
def test_sequences_go_on_from_fragment_to_fragment(
    kind: Any, data: Any, length: int, burn_in: int, twice: bool
) -> None:
    """M5, N6, N7, T8, B3, B5, B9: those of a loop over each seat, whatever the others do meanwhile."""
    sizes = {"length": length, "burn_in": burn_in, "overlap": data.draw(st.integers(0, length - 1))}

    def make(capacity: int, **settings: Any) -> SpanReplayBuffer:
        more: Any = {"compiled": False} if kind is PrioritizedSequenceReplayBuffer else {}
        return kind(capacity, store_next_obs=twice, **sizes, **settings, **more)  # type: ignore[no-any-return]

    play_and_compare(data, make, lambda run: sequences(run, **sizes), length + burn_in + 1)


@given(data=st.data())
def test_episodes_go_on_from_fragment_to_fragment(data: Any) -> None:
    """M5, H5, B3, B5, B9: whole ones alone."""

    def whole(run: list[Step]) -> Any:
        if run[0].t == 0 and run[-1].end in "Tt*":
            yield 0, len(run), 0

    play_and_compare(data, EpisodeReplayBuffer, whole, 2)


def test_seats_stay_with_the_shard_of_their_worker() -> None:
    """M5, N7: so that their sequences go on there; they may come beside those of other workers, or in any turn."""
    shards = ReplayActors(partial(SequenceReplayBuffer, 100, length=2, seed=0), 2)
    models = [Model(100, 2, lambda run: sequences(run, 2, 0, 0)) for _ in range(2)]
    for marks in ([".", ".."], [".", ""], ["..", "..."]):
        parts = [model.play(marks) for model in models]
        batches = [part.replace(worker=np.full(part.t.shape, worker)) for worker, part in enumerate(parts)]
        shards.add(joined(batches))
    for store, model in zip(stores(shards), models):
        assert set(drawn_spans(store.sample(200))) == model.expected


def test_what_follows_a_cut_begins_anew() -> None:
    """B3: in a buffer that took another's rows over, whatever provenance says."""
    model = Model(100, 2, lambda run: sequences(run, 2, 0, 0))
    first, second = SequenceReplayBuffer(100, length=2, seed=0), SequenceReplayBuffer(100, length=2, seed=0)
    first.add(model.play([".", ".."]))
    second.take_over(first.state_dict())
    for seat in range(2):
        model.source.after[seat] = False
    second.add(model.play(["..", "..."]))
    assert set(drawn_spans(second.sample(200))) == model.expected


@pytest.mark.parametrize("field", ["back", "waiting"])
def test_a_damaged_state_is_refused(field: str) -> None:
    """D7: and the buffer is as it was."""
    model, buffer = Model(100, 2, lambda run: sequences(run, 2, 0, 0)), SequenceReplayBuffer(100, length=2, seed=0)
    buffer.add(model.play(["..", "....."]))
    state = buffer.state_dict()
    damaged = {**state, "seats": {**state["seats"], field: {"number": [1]} if field == "waiting" else None}}
    with pytest.raises(CheckpointError, match=f"seats.*{field}|seats.*terminated"):
        buffer.load_state_dict(damaged)
    assert buffer.state_dict()["seats"]["back"].tolist() == state["seats"]["back"].tolist()
