"""SequenceReplayBuffer: which sequences are drawn, what counts of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import (
    Batch,
    PrioritizedSequenceReplayBuffer,
    RateLimiter,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.errors import SchemaError
from flowrl.operators import Unroll
from tests.episodes import Stream, fragment, streams
from tests.span_model import SpanMachine, Step, repeats_last, use_in_any_order


def sequences(run: list[Step], length: int, burn_in: int, overlap: int) -> Iterator[tuple[int, int, int]]:
    """A window moves over a run; what is left at its end is one more."""
    whole, begin, covered = burn_in + length, 0, 0
    while begin + whole <= len(run):
        yield begin, whole, 0 if run[begin].t == 0 else burn_in
        begin, covered = begin + length - overlap, begin + whole
    if covered < len(run):
        warm_up = 0 if run[begin].t == 0 else burn_in
        if len(run) - begin > warm_up:
            yield begin, len(run) - begin, warm_up


class SequenceMachine(SpanMachine):
    """Sequences of any lengths."""

    kind: type[SequenceReplayBuffer] = SequenceReplayBuffer

    def draw_sizes(self, draw: Callable[[Any], Any]) -> int:
        length, burn_in = draw(st.integers(1, 4)), draw(st.integers(0, 3))
        self.sizes = {"length": length, "burn_in": burn_in, "overlap": draw(st.integers(0, length - 1))}
        return length + burn_in + 1

    def make(self, capacity: int, **settings: Any) -> SequenceReplayBuffer:
        return self.kind(capacity, **self.sizes, **settings)

    def spans(self, run: list[Step]) -> Iterator[tuple[int, int, int]]:
        return sequences(run, **self.sizes)


class PrioritizedMachine(SequenceMachine):
    """The same, drawn by priority."""

    kind = PrioritizedSequenceReplayBuffer

    def make(self, capacity: int, **settings: Any) -> SequenceReplayBuffer:
        return super().make(capacity, compiled=False, **settings)


def test_any_use_is_what_the_plain_model_says() -> None:
    """N6, N7, T8, B3, B5, B9, F12: rings that wrap, any ends, both ways of storing next_obs, saving, resizing."""
    use_in_any_order(SequenceMachine)


def test_any_use_by_priority_is_what_the_plain_model_says() -> None:
    """P1, N6, N7, B5, B9: new sequences enter as likely as the others, what cannot be drawn has no mass."""
    use_in_any_order(PrioritizedMachine)


# The steps of the stream are 1, 2, 3 ...; a sequence is its steps, 0 where padded, and its mask.
SEQUENCES: dict[str, tuple[str, dict[str, int], list[tuple[list[int], list[int]]]]] = {
    "full ones, and what is left": ("....T", {"length": 2}, [([1, 2], [1, 1]), ([3, 4], [1, 1]), ([5, 0], [1, 0])]),
    "it may go on: not yet": ("....", {"length": 2}, [([1, 2], [1, 1])]),
    "it goes on": (".....", {"length": 2}, [([1, 2], [1, 1]), ([3, 4], [1, 1])]),
    "it ended": ("...T", {"length": 2}, [([1, 2], [1, 1]), ([3, 4], [1, 1])]),
    "never across episodes": (".t.T", {"length": 3}, [([1, 2, 0], [1, 1, 0]), ([3, 4, 0], [1, 1, 0])]),
    "nor across one that went missing": (
        "..x.T",
        {"length": 2},
        [([1, 2], [1, 1]), ([3, 0], [1, 0]), ([4, 5], [1, 1])],
    ),
    "overlap": ("...T", {"length": 2, "overlap": 1}, [([1, 2], [1, 1]), ([2, 3], [1, 1]), ([3, 4], [1, 1])]),
    "burn-in": (
        ".....T",
        {"length": 2, "burn_in": 1},
        [([1, 2, 3], [1, 1, 1]), ([3, 4, 5], [0, 1, 1]), ([5, 6, 0], [0, 1, 0])],
    ),
}


def drawn_columns(buffer: SequenceReplayBuffer) -> list[tuple[list[int], list[int]]]:
    batch = buffer.sample(200)
    found = {(tuple(batch.reward[:, i]), tuple(batch.mask[:, i])) for i in range(200)}
    return sorted((list(map(int, reward)), list(map(int, mask))) for reward, mask in found)


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_table_of_sequences(name: str, steps: int) -> None:
    """N6, N7: however the stream is cut into fragments."""
    marks, sizes, expected = SEQUENCES[name]
    whole, buffer = fragment([marks], first=1), SequenceReplayBuffer(100, **sizes, seed=0)
    for start in range(0, len(marks), steps):
        buffer.add(whole[start : start + steps])
    assert drawn_columns(buffer) == sorted(expected)


@given(streams(workers=1), st.integers(1, 4), st.integers(0, 3), st.data())
def test_they_are_those_that_unroll_makes(stream: Stream, length: int, burn_in: int, data: st.DataObject) -> None:
    """N6, N7, T8: the adder and the buffer agree on every column, once all runs are over."""
    sizes = {"length": length, "burn_in": burn_in, "overlap": data.draw(st.integers(0, length - 1))}
    adder, buffer = Unroll(last="pad", **sizes), SequenceReplayBuffer(1000, **sizes, seed=0)
    newest = stream.fragments[-1][-1:]
    no = np.zeros_like(newest.terminated)
    another = newest.replace(episode_id=newest.episode_id + 1, terminated=no, truncated=no, reward=no - 1.0)
    expected = {}
    for part in [*stream.fragments, another]:
        buffer.add(part)
        made = adder(part)
        columns = [made[:, i] for i in range(made.shape[1])]
        expected |= {key_of(each): each for each in columns if each.reward[0] >= 0}  # after the last, it waits
    if not expected:
        assert not buffer.can_sample(1)
        return
    batch = buffer.sample(25 * len(expected))
    drawn = {key_of(batch[:, i]): batch[:, i] for i in range(batch.shape[1])}
    assert drawn.keys() == expected.keys()
    for key, one in drawn.items():
        other = expected[key]
        assert one.keys() == {*other, "index", "generation"}
        names = [name for name in other if name != "state"]
        assert one.select(names) == other.select(names)
        assert (one.state.h == other.state.h[0]).all(), "a learner unrolls from the first"


def key_of(sequence: Batch) -> bytes:
    return sequence.reward.tobytes() + sequence.mask.tobytes()


def whole_stream(marks: list[str], steps: int = 5, **sizes: Any) -> SequenceReplayBuffer:
    buffer, whole = SequenceReplayBuffer(1000, **sizes), fragment(marks, first=1)
    for start in range(0, len(whole), steps):
        buffer.add(whole[start : start + steps])
    return buffer


def test_every_sequence_is_drawn_about_equally_often() -> None:
    """P7: the chi-square statistic of 8 degrees of freedom, 99.9 % quantile, after some were overwritten."""
    buffer = SequenceReplayBuffer(40, length=4, overlap=1, seed=0)
    whole = fragment(["." * 29 + "T", "...T" * 7 + ".T"], first=1)
    for start in range(0, 30, 5):
        buffer.add(whole[start : start + 5])
    index, counts = np.unique(buffer.sample(9000).index[0], return_counts=True)
    expected = 9000 / len(index)
    assert len(index) == 11
    assert ((counts - expected) ** 2 / expected).sum() < 29.6


def test_the_limiter_counts_what_counts() -> None:
    """B8, F12: padding and burn-in are no samples; a draw may hold burn_in + length of each sequence."""
    limiter = RateLimiter(1, 6, sample_batch=8, insert_batch=6)
    buffer = SequenceReplayBuffer(100, length=3, burn_in=1, limiter=limiter, seed=0)
    whole = fragment(["......T"], first=1)
    buffer.add(whole[:6])
    assert (buffer.most_rows(2), buffer.can_sample(2)) == (8, True)
    with pytest.raises(ValueError, match="12 rows to draw at once, but the rate limiter was told sample_batch=8"):
        buffer.sample(3)
    batch = buffer.sample(2)
    assert buffer.samples == batch.mask.sum() == 8
    assert not buffer.can_sample(1)
    assert "drawing 4 would put sampling 12 rows ahead" in buffer.why_sample(1)
    buffer.add(whole[6:])
    assert drawn_columns_without_limiter(buffer) == [([1, 2, 3, 4], [1, 1, 1, 1]), ([4, 5, 6, 7], [0, 1, 1, 1])]


def drawn_columns_without_limiter(buffer: SequenceReplayBuffer) -> list[tuple[list[int], list[int]]]:
    buffer.limiter = None
    return drawn_columns(buffer)


def test_the_limiter_does_not_wait_for_draws_that_are_impossible() -> None:
    """B8: while no sequence is complete, adding goes on; then drawing catches up."""
    limiter = RateLimiter(ratio=4, min_size=1, sample_batch=20, insert_batch=1)
    buffer = SequenceReplayBuffer(100, length=20, seed=0, limiter=limiter)
    no = np.zeros((1, 1), bool)
    for step in range(60):
        assert (buffer.can_insert(1), buffer.why_insert(1)) == (True, "")
        buffer.add(Batch(reward=np.full((1, 1), step), terminated=no, truncated=no))
        while buffer.can_sample(1):
            buffer.sample(1)
        assert step < 20 or abs(buffer.samples - 4 * (buffer.inserts - 1)) <= 20
    while buffer.can_insert(1):
        buffer.add(Batch(reward=np.full((1, 1), 0), terminated=no, truncated=no))
    assert "waits for training" in buffer.why_insert(1), "now there are sequences to wait for"


def test_uses_are_counted_of_sequences() -> None:
    """B10: none is drawn more than max_uses times; its number of uses stands at every step of it."""
    buffer = whole_stream(["......T"], length=2, max_uses=2, seed=0)
    assert buffer.can_sample(8)
    assert not buffer.can_sample(9)
    batch = buffer.sample(8)
    index, counts = np.unique(batch.index[0], return_counts=True)
    assert counts.tolist() == [2, 2, 2, 2]
    assert index.tolist() == [0, 2, 4, 6]
    assert (batch.uses == 2).all()
    assert batch.uses.shape == batch.mask.shape
    assert "with max_uses=2, 0 of the rows stored may be drawn" in buffer.why_sample(1)


def test_old_sequences_are_not_drawn() -> None:
    """B10: how old a sequence is, its first step says."""
    whole = fragment(["......"], first=1)
    buffer = SequenceReplayBuffer(100, length=2, max_staleness=1, seed=0)
    for version, start in enumerate((0, 3)):
        part = whole[start : start + 3]
        buffer.add(part.replace(policy_version=np.full(part.shape, version)))
    batch = buffer.sample(50)
    assert set(batch.reward[0]) == {1, 3}
    assert (batch.staleness == np.where(batch.reward[0] == 1, 1, 1)).all()
    buffer.add(whole[:1].replace(policy_version=np.full((1, 1), 2), t=np.full((1, 1), 6), reward=np.full((1, 1), 7.0)))
    batch = buffer.sample(50)
    assert set(batch.reward[0]) == {5}
    assert (batch.staleness == 1).all()


def test_frames_are_stacked_at_every_step() -> None:
    """B1: the stacks of a sequence are those that single rows have, also where it does not begin with its episode."""
    whole = fragment(["....T..", "..t...."], first=1)
    settings_ = {"frame_stack": 3, "store_next_obs": False, "seed": 0}
    one, many = ReplayBuffer(40, **settings_), SequenceReplayBuffer(40, length=3, **settings_)
    one.add(whole)
    many.add(whole)
    batch = many.sample(40)
    real = batch.flat()[np.flatnonzero(batch.mask)]
    slots = {number: slot for slot, number in enumerate(one.get(np.arange(14)).reward.tolist())}
    alone = one.get([slots[number] for number in real.reward.tolist()])
    assert real.obs.shape[1:] == (3, 1)
    assert (real.obs == alone.obs).all()
    assert (real.next_obs == alone.next_obs).all()
    assert repeats_last(batch.obs, batch.mask)


@pytest.mark.parametrize("kind", [SequenceReplayBuffer, PrioritizedSequenceReplayBuffer])
def test_a_saved_buffer_goes_on_alike(kind: type[SequenceReplayBuffer], tmp_path: Path) -> None:
    """B5: settings, sequences and generator, through a folder."""
    buffer = kind(40, length=3, burn_in=1, overlap=1, store_next_obs=False, seed=3)
    whole = fragment(["....T..", "..t...."], first=1)
    buffer.add(whole)
    buffer.sample(5)
    again = kind.load(buffer.save(tmp_path / "saved"))
    for part in (whole, whole[:2]):
        assert again.sample(20) == buffer.sample(20)
        for each in (buffer, again):
            each.add(part)
    assert repr(again) == repr(buffer)


def test_priorities_are_those_of_sequences() -> None:
    """P2, P4: the largest of its steps counts by eta, their mean by the rest; of what is overwritten, nothing."""
    buffer = PrioritizedSequenceReplayBuffer(6, length=2, eta=0.75, alpha=1.0, eps=1e-9, seed=0, compiled=False)
    whole = fragment(["....T."], first=1)
    buffer.add(whole)
    rows = buffer.sample(3).flat()
    first = dict(zip(rows.index.tolist(), rows.generation.tolist()))
    assert sorted(first) == [0, 2, 4]
    index = np.array([0, 2, 2, 4])
    generation = np.array([first[slot] for slot in index.tolist()])
    assert buffer.update_priorities(index, generation, np.array([1.0, 4.0, 8.0, 2.0])) == 0
    # 2 has 0.75 * 8 + 0.25 * 6 = 7.5 of 10.5.
    drawn = buffer.sample(2100).index[0]
    assert [int((drawn == slot).sum()) for slot in (0, 2, 4)] == pytest.approx([200, 1500, 400], abs=2)
    buffer.add(whole[:1])
    assert buffer.update_priorities(index, generation, np.ones(4)) == 1
    with pytest.raises(ValueError, match="must be alike"):
        buffer.update_priorities(index, generation, np.ones(3))
    with pytest.raises(ValueError, match="eta is 2"):
        PrioritizedSequenceReplayBuffer(9, length=2, eta=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "length is 0"),
        ({"length": 2, "burn_in": -1}, "burn_in is -1"),
        ({"length": 2, "overlap": 2}, r"overlap is 2: sequences of 2 steps overlap by 0 \.\. 1"),
        ({"length": 2, "n_step": 3}, "n_step is of transitions"),
        ({"length": 2, "gamma": 0.9}, "gamma is of transitions"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceReplayBuffer(10, **wrong)


def test_what_cannot_be_cut_into_sequences_is_refused() -> None:
    """B7: and nothing is stored of it."""
    whole = fragment(["....", "...."])
    buffer = SequenceReplayBuffer(10, length=4, burn_in=1, seed=0)
    for batch, error, message in [
        (whole.flat(), SchemaError, r"needs fragments \[T, N, ...\], in the order of time.* batch\[:, None\]"),
        (whole.flat().replace(mask=np.arange(8) < 2), SchemaError, r"needs fragments \[T, N"),
        (whole.select(["reward", "terminated"]), SchemaError, "needs the column 'truncated'"),
        (whole, ValueError, "2 environments have 5 rows each, which must be more than the 5 steps"),
    ]:
        with pytest.raises(error, match=message):
            buffer.add(batch)
        assert buffer.size == 0
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(1)
    buffer.add(whole[:, :1])
    with pytest.raises(ValueError, match="waits for rows: none of the 4 stored begins one of the sequences"):
        buffer.sample(1)
    assert not buffer.can_sample(1)
    assert repr(buffer) == "SequenceReplayBuffer(capacity=10, rows=4, sequences=0)"
