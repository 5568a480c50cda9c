"""MixedReplay: the stated part of every batch is of each buffer, and each buffer's affairs stay its own."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import (
    Batch,
    EpisodeReplayBuffer,
    MixedReplay,
    ObjectReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    RateLimiter,
    ReplayBuffer,
    SequenceReplayBuffer,
)
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.errors import CheckpointError, SchemaError


def rows(start: int, count: int) -> Batch:
    clock = np.arange(start, start + count)
    return Batch(obs=clock, terminated=np.zeros(count, bool))


def filled(kind: type[ReplayBuffer] = ReplayBuffer, start: int = 0, count: int = 20, **others: Any) -> Any:
    buffer = kind(100, seed=start, **others)
    buffer.add(rows(start, count))
    return buffer


# -- the ratio

FRACTIONS = st.lists(st.integers(1, 40), min_size=2, max_size=4).map(lambda some: [each / sum(some) for each in some])


@given(FRACTIONS, st.lists(st.integers(1, 60), min_size=1, max_size=60))
def test_every_batch_has_the_stated_ratio_within_one_row(fractions: list[float], sizes: list[int]) -> None:
    """F11: in each batch within one row, and of all rows drawn so far within one for each of the other parts."""
    buffers = [filled(start=100 * i) for i in range(len(fractions))]
    mixture = MixedReplay(**{f"part_{i}": pair for i, pair in enumerate(zip(buffers, fractions))})
    drawn = np.zeros(len(fractions))
    for size in sizes:
        batch = mixture.sample(size)
        counts = np.bincount(batch.part, minlength=len(fractions))
        assert len(batch) == size
        assert np.array_equal(batch.obs // 100, batch.part)
        assert (np.abs(counts - np.array(fractions) * size) < 1 + 1e-9).all()
        drawn += counts
        off = np.abs(drawn - np.array(fractions) * drawn.sum()).max()
        assert off <= (0.5 if len(fractions) == 2 else len(fractions) - 1) + 1e-6
    assert [buffer.samples for buffer in buffers] == drawn.tolist()


def test_a_fraction_of_a_row_is_given_in_turn() -> None:
    """F11: exact over a period, also where a batch has room for one of them alone."""
    mixture = MixedReplay(a=(filled(), 2 / 3), b=(filled(start=100), 1 / 3))
    parts = [mixture.sample(1).part.item() for _ in range(30)]
    assert [sum(parts[i : i + 3]) for i in range(0, 30, 3)] == [1] * 10


# -- each part's own


def test_each_part_gets_its_own_priorities_back() -> None:
    """P2, P4: rows of the same slots in both; those of the other part keep what they have."""
    fresh, shown = filled(PrioritizedReplayBuffer, alpha=1.0), filled(PrioritizedReplayBuffer, start=100, alpha=1.0)
    mixture = MixedReplay(fresh=(fresh, 0.5), demonstrations=(shown, 0.5))
    place = Batch(index=np.array([3, 3, 5]), generation=np.ones(3, int), part=np.array([0, 1, 1]))
    assert mixture.update_priorities(priority=np.array([7.0, 2.0, 4.0]), **dict(place.items())) == 0
    masses = [buffer.state_dict()["masses"] for buffer in (fresh, shown)]
    expected = np.ones((2, 20))
    expected[0, 3], expected[1, [3, 5]] = 7, (2, 4)
    np.testing.assert_allclose(masses, expected, rtol=1e-5)


def test_what_was_overwritten_is_dropped_by_its_part() -> None:
    """P4: counted over all parts."""
    fresh, shown = filled(PrioritizedReplayBuffer), filled(PrioritizedReplayBuffer, start=100)
    mixture = MixedReplay(fresh=(fresh, 0.5), demonstrations=(shown, 0.5))
    drawn = mixture.sample(40)
    fresh.add(rows(20, 100))
    names = ("index", "generation", "part")
    assert mixture.update_priorities(**{name: drawn[name] for name in names}, priority=np.ones(40)) == 20
    assert shown.outdated == 0


def test_a_part_draws_what_it_would_have_drawn_alone() -> None:
    """P2, P7: rows, weights and generator; rows of a part without priorities count fully."""
    alone, shown = (filled(PrioritizedReplayBuffer, start=5) for _ in range(2))
    for buffer in (alone, shown):
        buffer.update_priorities(np.arange(20), np.ones(20, int), np.arange(20.0))
    mixture = MixedReplay(shown=(shown, 0.25), plain=(filled(start=100), 0.75))
    drawn, expected = mixture.sample(32), alone.sample(8)
    for name in ("obs", "index", "generation", "weight"):
        assert np.array_equal(drawn[name][:8], expected[name])
    assert len(np.unique(drawn.weight[:8])) > 3
    assert (drawn.weight[8:] == 1).all()


def test_each_part_keeps_its_limiter() -> None:
    """B8: a batch waits for the share of every part, and says whose."""
    limiter = RateLimiter(1.0, 30, sample_batch=4, insert_batch=10)
    fresh, shown = filled(limiter=limiter, count=10), filled(start=100)
    mixture = MixedReplay(fresh=(fresh, 0.5), demonstrations=(shown, 0.5))
    assert not mixture.can_sample(8)
    assert mixture.why_sample(8) == "fresh: waits for rows: 10 of 30 stored before sampling starts"
    with pytest.raises(ValueError, match="fresh: waits for rows"):
        mixture.sample(8)
    fresh.add(rows(10, 10))
    fresh.add(rows(20, 10))
    assert mixture.can_sample(8)
    assert mixture.why_sample(8) == ""
    counts = 0
    while mixture.can_sample(8):
        mixture.sample(8)
        counts += 1
    assert (counts, fresh.samples, shown.samples) == (2, 8, 8)


def test_sequences_are_mixed_side_by_side() -> None:
    """N6, P2: masks and weights are those of each sequence, and priorities find the way back."""

    def sequences(start: int) -> PrioritizedSequenceReplayBuffer:
        buffer = PrioritizedSequenceReplayBuffer(100, length=3, burn_in=1, seed=start, alpha=1.0)
        clock = np.arange(start, start + 20)[:, None]
        buffer.add(Batch(obs=clock, reward=clock, terminated=clock % 10 == 9, truncated=np.zeros((20, 1), bool)))
        return buffer

    fresh, shown = sequences(0), sequences(100)
    mixture = MixedReplay(fresh=(fresh, 0.75), demonstrations=(shown, 0.25))
    drawn = mixture.sample(8)
    assert drawn.shape[:2] == (4, 8)
    assert drawn.part[0].tolist() == [0] * 6 + [1] * 2
    assert np.array_equal(drawn.obs[0] // 100, drawn.part[0])
    told = drawn.select(["index", "generation", "part"]).map(lambda column: column[drawn["mask"] != 0])
    before = fresh.state_dict()["masses"]
    assert mixture.update_priorities(**dict(told.items()), priority=np.where(told.part == 1, 9.0, 1.0)) == 0
    assert shown.state_dict()["masses"].max() > 8
    np.testing.assert_allclose(fresh.state_dict()["masses"], before, rtol=1e-5)


def test_only_what_all_parts_have_is_given_out() -> None:
    fresh, shown = filled(), ReplayBuffer(10, seed=0)
    shown.add(Batch(obs=np.arange(3), terminated=np.zeros(3, bool), note=np.ones(3)))
    drawn = MixedReplay(fresh=(fresh, 0.5), demonstrations=(shown, 0.5)).sample(4)
    assert set(drawn) == {"obs", "terminated", "discount", "index", "generation", "part"}


def test_all_batches_have_the_same_columns() -> None:
    """F4: also those in which a part has no share; none is drawn before every part has something."""
    fresh, shown = filled(PrioritizedReplayBuffer), ReplayBuffer(10, seed=0)
    mixture = MixedReplay(fresh=(fresh, 0.9), demonstrations=(shown, 0.1))
    assert not mixture.can_sample(1)
    assert mixture.why_sample(1) == "demonstrations: waits for rows: nothing is stored yet"
    with pytest.raises(ValueError, match="demonstrations: waits for rows"):
        mixture.sample(1)
    shown.add(Batch(obs=np.arange(3), terminated=np.zeros(3, bool), reward=np.ones(3)))
    drawn = [mixture.sample(1) for _ in range(20)]
    assert {batch.part.item() for batch in drawn} == {0, 1}
    assert {tuple(sorted(batch)) for batch in drawn} == {
        ("discount", "generation", "index", "obs", "part", "terminated", "weight")
    }
    no = np.zeros((20, 1), bool)
    steps = Batch(obs=np.arange(20)[:, None], terminated=no, truncated=no)
    fresh, shown = (SequenceReplayBuffer(100, length=3, seed=seed) for seed in (0, 1))
    fresh.add(steps.replace(state=np.zeros((20, 1, 2))))
    shown.add(steps)
    sequences = MixedReplay(fresh=(fresh, 0.9), demonstrations=(shown, 0.1))
    assert {tuple(sorted(sequences.sample(1))) for _ in range(20)} == {
        ("generation", "index", "mask", "obs", "part", "terminated", "truncated")
    }


# -- state


@given(st.integers(0, 30), st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_restored_it_goes_on_as_it_would_have(before: int, sizes: list[int]) -> None:
    """D3, D5, B5: the parts are resources of their own."""
    make = lambda: MixedReplay(a=(filled(), 0.61), b=(filled(PrioritizedReplayBuffer, start=100), 0.39))  # noqa: E731
    mixture, other = make(), make()
    for _ in range(before):
        mixture.sample(7)
    saved = copy.deepcopy([store.state_dict() for store in (mixture, *mixture.resources)])
    for store, state in zip((other, *other.resources), saved):
        store.load_state_dict(state)
    assert [mixture.sample(size) for size in sizes] == [other.sample(size) for size in sizes]


def test_the_state_of_another_mixture_is_refused() -> None:
    saved = MixedReplay(a=(filled(), 0.5), b=(filled(), 0.5)).state_dict()
    with pytest.raises(CheckpointError, match=r"the saved mixture is .*1/2.*, this one .*3/4"):
        MixedReplay(a=(filled(), 0.25), b=(filled(), 0.75)).load_state_dict(saved)


# -- what can be said before


def test_its_schema_has_the_columns_of_all_parts() -> None:
    mixture = MixedReplay(a=(ReplayBuffer(9), 0.5), b=(PrioritizedReplayBuffer(9), 0.5))
    base = Schema.of_columns("rows", "experience", obs="float32[B, 4]", reward="float64[B]")
    known = mixture.schema(base.having("statistics", logp="float32[B]"), base.having(reward="float32[B]"))
    assert str(known) == (
        "experience, replayed, rows, statistics [B]: obs float32[4], reward float64, index int64, generation int64, "
        "part int64, weight float32"
    )
    assert mixture.schema(UNKNOWN, base).has("anything")
    with pytest.raises(SchemaError, match=r"column 'obs' is float32\[B, 4\] in 'a', but float32\[B, 5\] in another"):
        mixture.schema(base, base.having(obs="float32[B, 5]"))


SMALL = ReplayBuffer(10)
REFUSED = [
    ({}, "needs parts"),
    ({"a": (SMALL, 0.5)}, "a=0.5: the parts of a batch are fractions above 0 that add up to 1"),
    ({"a": (SMALL, 1.0), "b": (ReplayBuffer(1), 0.0)}, "a=1.0, b=0.0: the parts"),
    ({"a": (SMALL, 0.7), "b": (ReplayBuffer(1), 0.7)}, "a=0.7, b=0.7: the parts"),
    ({"a": (SMALL, 0.5), "b": (SMALL, 0.5)}, "and so is another part"),
    ({"a": (SMALL, 0.5), "b": (SequenceReplayBuffer(9, length=3), 0.5)}, "b gives out 3 steps each, a 1"),
    ({"a": (EpisodeReplayBuffer(9), 1.0)}, "what is mixed are ReplayBuffers of rows, or of sequences"),
    ({"a": (ObjectReplayBuffer(9), 1.0)}, "what is mixed are ReplayBuffers of rows, or of sequences"),
]


@pytest.mark.parametrize(("parts", "message"), REFUSED)
def test_what_cannot_be_mixed_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixedReplay(**parts)


def test_nothing_is_stored_into_a_mixture() -> None:
    mixture = MixedReplay(a=(filled(), 0.5), b=(filled(), 0.5))
    with pytest.raises(SchemaError, match="store into one of its parts, a or b"):
        mixture.add(rows(0, 1))
    assert len(mixture) == mixture.inserts == 40
    assert mixture.capacity == 200
    assert mixture.declared_rows(3) == 3
    assert [share for _, share in mixture.drawn_from(9)] == [math.ceil(4.5)] * 2
