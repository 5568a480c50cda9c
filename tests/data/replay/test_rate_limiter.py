"""RateLimiter: the bound holds at all times and nothing waits for ever (B8)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data.batch import Batch
from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.data.replay.rate_limiter import RateLimiter

RATIOS = st.one_of(st.sampled_from([0.1, 0.29, 1 / 3, 0.7, 1.0, 4.0]), st.floats(0.05, 20))


@given(RATIOS, st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.floats(1, 2), st.randoms())
def test_bound_holds_and_one_side_can_always_go_on(ratio, min_size, sample_batch, insert_batch, more, random):
    """B8: whichever side is asked first, with whole batches and with smaller ones."""
    slack = None if more < 1.2 else more * max(sample_batch, ratio * insert_batch)
    limiter = RateLimiter(ratio, min_size, sample_batch=sample_batch, insert_batch=insert_batch, slack=slack)
    inserts = samples = 0
    for _ in range(120):
        assert limiter.can_insert(inserts, samples, insert_batch) or limiter.can_sample(inserts, samples, sample_batch)
        inserted, drawn = random.randint(1, insert_batch), random.randint(1, sample_batch)
        if random.random() < 0.5 and limiter.can_insert(inserts, samples, inserted):
            inserts += inserted
        elif limiter.can_sample(inserts, samples, drawn):
            samples += drawn
        assert inserts >= min_size or samples == 0
        if inserts >= min_size:
            assert abs(samples - ratio * (inserts - min_size)) <= limiter.slack + 1e-6


def test_whole_batches_end_up_in_the_ratio():
    """B8, F11: after any number of turns at most one batch away."""
    limiter = RateLimiter(0.29, 10, sample_batch=29, insert_batch=100)
    inserts, samples = 10, 0
    for _ in range(100_000):
        if limiter.can_sample(inserts, samples, 29):
            samples += 29
        if limiter.can_insert(inserts, samples, 100):
            inserts += 100
    assert samples > 1e6
    assert abs(samples - 0.29 * (inserts - 10)) <= 29 + 1e-6


def test_below_min_size_inserting_always_and_sampling_never():
    """B8: also the insert that crosses min_size."""
    limiter = RateLimiter(8.0, 10, sample_batch=4, insert_batch=10)
    assert all(limiter.can_insert(inserts, 0, 10) for inserts in range(10))
    assert limiter.can_sample(19, 0, 4)
    assert not limiter.can_insert(19, 0, 10)
    assert not limiter.can_sample(9, 0, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slack": 31}, r"slack is 31 rows, but must be at least 32 = max\(sample_batch, ratio \* insert_batch\)"),
        ({"ratio": 5.0, "slack": 39}, "must be at least 40"),
        ({"ratio": 0}, "ratio is 0"),
        ({"ratio": -1.0}, "ratio is -1"),
        ({"ratio": float("inf")}, "ratio is inf"),
        ({"min_size": 0}, "min_size is 0"),
        ({"sample_batch": 0}, "sample_batch is 0"),
        ({"insert_batch": 0}, "insert_batch is 0"),
    ],
)
def test_settings_that_could_block_both_sides_are_refused(settings, message):
    """B8: when made, with the reason."""
    with pytest.raises(ValueError, match=message):
        RateLimiter(**{"ratio": 4.0, "min_size": 1, "sample_batch": 32, "insert_batch": 8} | settings)


def test_the_bound_itself_is_allowed():
    """B8: exactly slack rows ahead or behind."""
    limiter = RateLimiter(4.0, 1000, sample_batch=32, insert_batch=8)
    assert limiter.can_insert(1000, 0, 8)
    assert not limiter.can_insert(1001, 0, 8)
    assert limiter.can_sample(1000, 0, 32)
    assert not limiter.can_sample(1000, 1, 32)


def test_a_slack_computed_in_floats_is_taken():
    assert RateLimiter(0.29, 1, sample_batch=1, insert_batch=100, slack=0.29 * 100).slack == pytest.approx(29)


def test_reasons_are_one_precise_sentence():
    limiter = RateLimiter(4.0, 1000, sample_batch=32, insert_batch=8)
    assert limiter.why_sample(120, 0, 32) == "waits for rows: 120 of 1000 stored before sampling starts"
    assert (
        limiter.why_sample(1000, 32, 32)
        == "waits for rows: drawing 32 would put sampling 64 rows ahead of ratio 4, slack is 32"
    )
    assert (
        limiter.why_insert(1008, 0, 8)
        == "waits for training: adding 8 rows would leave sampling 64 rows behind ratio 4, slack is 32"
    )
    assert limiter.why_insert(0, 0, 8) == limiter.why_sample(1000, 0, 32) == ""


def test_a_buffer_asks_its_limiter_with_its_own_counts():
    """B8: 2 rows drawn per row added; the buffer's bound is the limiter's."""
    buffer = ReplayBuffer(100, seed=0, limiter=RateLimiter(2.0, 4, sample_batch=4, insert_batch=2))
    rows = Batch(obs=[1, 2])
    history = []
    for _ in range(12):
        if buffer.can_insert(2):
            assert buffer.why_insert(2) == ""
            buffer.add(rows)
            history.append("add")
        else:
            assert buffer.why_insert(2).startswith("waits for training")
        if buffer.can_sample(4):
            buffer.sample(4)
            history.append("draw")
        else:
            assert buffer.why_sample(4).startswith("waits for rows")
    assert history[:7] == ["add", "add", "draw", "add", "draw", "add", "draw"]
    assert (buffer.inserts, buffer.samples) == (24, 44)


def test_more_than_the_declared_batch_is_refused():
    """B8: the bound could not be kept."""
    buffer = ReplayBuffer(100, seed=0, limiter=RateLimiter(2.0, 1, sample_batch=4, insert_batch=2))
    with pytest.raises(ValueError, match="3 rows to add at once, but the rate limiter was told insert_batch=2"):
        buffer.add(Batch(obs=[1, 2, 3]))
    buffer.add(Batch(obs=[1]))
    with pytest.raises(ValueError, match="5 rows to draw at once, but the rate limiter was told sample_batch=4"):
        buffer.sample(5)
    with pytest.raises(ValueError, match="insert_batch=2"):
        buffer.can_insert(3)


def test_without_a_limiter_only_an_empty_buffer_waits():
    buffer = ReplayBuffer(4)
    assert buffer.can_insert(1000)
    assert not buffer.can_sample(1)
    assert buffer.why_sample(1) == "waits for rows: nothing is stored yet"
    buffer.add(Batch(obs=[1]))
    assert buffer.can_sample(1000)
    assert buffer.why_sample(1) == buffer.why_insert(1) == ""
