"""B10: how often a row may be drawn, and how old its policy may be."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch, RateLimiter, ReplayBuffer
from flowrl.errors import SchemaError


def versions(*version):
    return Batch(obs=np.arange(len(version)), policy_version=np.array(version))


@given(st.integers(1, 3), st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 99))
def test_no_row_is_drawn_more_often_than_it_may(most, capacity, counts, seed):
    """B10: within a batch neither; all uses that there are can be drawn."""
    buffer, start, used = ReplayBuffer(capacity, max_uses=most, seed=seed), 0, {}
    for count in counts:
        buffer.add(Batch(obs=np.arange(start, start + count)))
        start += count
        stored = range(max(0, start - capacity), start)
        left = sum(most - used.get(row, 0) for row in stored)
        assert not buffer.can_sample(left + 1)
        with pytest.raises(ValueError, match=f"with max_uses={most}, "):
            buffer.sample(left + 1)
        for part in {left // 2, left - left // 2} - {0}:
            if buffer.can_sample(part):
                drawn = buffer.sample(part)
                for row in drawn.obs.tolist():
                    used[row] = used.get(row, 0) + 1
                assert drawn.uses.tolist() == [used[row] for row in drawn.obs.tolist()]
        assert set(used.values()) <= set(range(1, most + 1))
    buffer.sample(1) if buffer.can_sample(1) else None
    assert "of the" in buffer.why_sample(10**6)


@given(st.integers(0, 3), st.integers(1, 12), st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_rows_of_old_policies_are_drawn_no_more(most, capacity, stream):
    """B10: versions in any order, rings that wrap, few versions and many."""
    buffer = ReplayBuffer(capacity, max_staleness=most, seed=0)
    for at in range(0, len(stream), 3):
        buffer.add(versions(*stream[at : at + 3]))
        seen = stream[: at + 3]
        allowed = {v for v in seen[-capacity:] if v >= max(seen) - most}
        assert buffer.can_sample(1) == bool(allowed)
        if allowed:
            drawn = buffer.sample(200)
            assert set(drawn.policy_version.tolist()) == allowed
            assert (drawn.staleness == max(seen) - drawn.policy_version).all()
        else:
            assert "waits for rows: with max_staleness=" in buffer.why_sample(1)


def test_what_may_be_drawn_is_drawn_equally_often():
    """B10, P7: chi-square over 8 of 16 rows after uses, staleness and overwriting took others away (99.9 %)."""
    buffer = ReplayBuffer(16, max_uses=10**6, max_staleness=1, seed=0)
    buffer.add(versions(*[0] * 8, *[1] * 8))
    buffer.add(versions(*[1] * 4))
    buffer.add(versions(2))
    buffer.sample(50)
    counts = np.bincount(buffer.sample(12_000).index, minlength=16)
    allowed = counts > 0
    assert allowed.sum() == 13
    assert ((counts[allowed] - 12_000 / 13) ** 2 / (12_000 / 13)).sum() < 32.9


@given(st.integers(2, 5), st.integers(0, 10**6))
def test_a_batch_is_drawn_as_if_one_by_one(rows, seed):
    """B10: one use each: a batch of all rows is a permutation of them, and smaller ones are distinct rows."""
    for size in (rows, rows - 1):
        buffer = ReplayBuffer(rows, max_uses=1, seed=seed)
        buffer.add(Batch(obs=np.arange(rows)))
        drawn = buffer.sample(size).obs.tolist()
        assert len(set(drawn)) == size
        assert set(drawn) <= set(range(rows))


def test_the_newest_row_may_be_drawn_only_with_its_successor():
    """B10, B2: with next_obs stored once."""
    buffer = ReplayBuffer(4, store_next_obs=False, max_uses=2, seed=0)
    for step in range(9):
        buffer.add(Batch(obs=np.array([step]), next_obs=np.array([step + 1])))
        if step:
            assert buffer.can_sample(2)
            drawn = buffer.sample(2)
            assert (drawn.next_obs == drawn.obs + 1).all()
            assert drawn.obs.max() < step
        else:
            assert not buffer.can_sample(1)


@pytest.mark.parametrize("limits", [{"max_uses": 3}, {"max_staleness": 1}, {"max_uses": 2, "max_staleness": 2}])
def test_the_state_is_complete(limits):
    """B5, B10: in which order rows may be drawn, what is left of them, which version is the newest."""
    buffer, other = ReplayBuffer(12, seed=0, **limits), ReplayBuffer(12, seed=9, **limits)
    for version in range(6):
        buffer.add(versions(version, version, version + 1))
        buffer.sample(4)
        other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
        assert buffer.why_sample(99) == other.why_sample(99)
    for version in range(6, 9):
        for one in (buffer, other):
            one.add(versions(version, version))
        assert buffer.sample(4) == other.sample(4)


def test_a_buffer_of_another_size_keeps_the_uses():
    """B10, B3: what was used up stays so."""
    buffer, larger = ReplayBuffer(4, max_uses=2, seed=0), ReplayBuffer(9, max_uses=2, seed=0)
    buffer.add(Batch(obs=np.arange(4)))
    first = buffer.sample(6).obs.tolist()
    larger.update(buffer)
    assert not larger.can_sample(3)
    second = larger.sample(2).obs.tolist()
    assert sorted(first + second) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("ratio", "batch", "insert", "capacity", "min_size"),
    [(1, 10, 4, 18, 1), (5, 2, 7, 7, 16), (3, 14, 8, 10, 28), (3, 13, 5, 13, 10), (1, 8, 7, 20, 23)],
)
def test_a_limiter_does_not_wait_for_rows_that_are_used_up(ratio, batch, insert, capacity, min_size):
    """B8, B10: what was overwritten before it was used up would be missed for ever."""
    limiter = RateLimiter(ratio, min_size, sample_batch=batch, insert_batch=insert)
    buffer = ReplayBuffer(capacity, max_uses=ratio, limiter=limiter, seed=0)
    for _ in range(200):
        while buffer.can_sample(batch):
            buffer.sample(batch)
        assert (buffer.can_insert(insert), buffer.why_insert(insert)) == (True, "")
        buffer.add(Batch(obs=np.arange(insert)))
    assert buffer.samples <= limiter.slack + ratio * (buffer.inserts - min_size)


def test_limits_that_cannot_be_are_refused():
    limiter = RateLimiter(4, 1, sample_batch=8, insert_batch=2)
    for wrong, message in [
        ({"max_uses": 0}, "max_uses is 0"),
        ({"max_staleness": -1}, "max_staleness is -1"),
        ({"max_uses": 3, "limiter": limiter}, "max_uses is 3, but the limiter waits until every row .* 4 times"),
    ]:
        with pytest.raises(ValueError, match=message):
            ReplayBuffer(9, **wrong)
    with pytest.raises(SchemaError, match="max_staleness needs the column 'policy_version'"):
        ReplayBuffer(9, max_staleness=1).add(Batch(obs=np.arange(3)))
    with pytest.raises(SchemaError, match="'uses' is made by sample"):
        ReplayBuffer(9, max_uses=1).add(Batch(uses=np.arange(3)))
