"""EpisodeReplayBuffer: which episodes are drawn, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from flowrl.data import EpisodeReplayBuffer, RateLimiter
from flowrl.engine.context import Context
from flowrl.errors import SchemaError
from flowrl.operators import Episodes
from flowrl.rollout import WorkerSet
from tests.episodes import Stream, fragment, streams
from tests.scripted import ScriptedPolicy
from tests.span_model import SpanMachine, Step, use_in_any_order


class EpisodeMachine(SpanMachine):
    """Episodes from their first step to their end."""

    def make(self, capacity: int, **settings: Any) -> EpisodeReplayBuffer:
        warnings.simplefilter("ignore")  # of episodes that do not fit
        return EpisodeReplayBuffer(capacity, **settings)

    def spans(self, run: list[Step]) -> Iterator[tuple[int, int, int]]:
        if run[0].t == 0 and run[-1].end in "Tt*":
            yield 0, len(run), 0


def test_any_use_is_what_the_plain_model_says() -> None:
    """H5, N6, B3, B5, B9, F12: rings that wrap, any ends, both ways of storing next_obs, saving, resizing."""
    use_in_any_order(EpisodeMachine)


@given(streams(workers=1))
def test_they_are_those_that_the_adder_makes(stream: Stream) -> None:
    """H5, N6: on every column, be they added as fragments or whole."""
    adder, cut, whole = Episodes(), EpisodeReplayBuffer(1000, seed=0), EpisodeReplayBuffer(1000, seed=0)
    expected = {}
    for part in stream.fragments:
        cut.add(part)
        made = adder(part)
        whole.add(made)
        for i in range(made.shape[1] if made.rows else 0):
            one = made[: made.mask[:, i].sum(), i]
            expected[one.reward.tobytes()] = one
    for buffer in (cut, whole):
        assert buffer.can_sample(1) == bool(expected)
        if expected:
            batch = buffer.sample(25 * len(expected))
            assert len(batch) == max(batch.mask.sum(0)), "no longer than the longest drawn"
            drawn = [batch[: batch.mask[:, i].sum(), i] for i in range(batch.shape[1])]
            assert {one.reward.tobytes() for one in drawn} == set(expected)
            for one in drawn:
                other = expected[one.reward.tobytes()]
                names = [name for name in other if name != "state"]
                assert one.select(names) == other.select(names)


def test_whole_episodes_of_a_worker_are_drawn_as_collected() -> None:
    """H5, N6, S2: what `sample(episodes=)` gives."""
    buffer = EpisodeReplayBuffer(1000, seed=0)
    with WorkerSet("CartPole-v1", lambda *_: ScriptedPolicy(), envs_per_worker=2) as workers:
        workers.start(Context())
        collected = workers.local.sample(episodes=5)
    buffer.add(collected)
    assert repr(buffer) == f"EpisodeReplayBuffer(capacity=1000, rows={collected.mask.sum()}, episodes=5)"
    batch = buffer.sample(60)
    seen = set()
    for i in range(60):
        one = batch[: batch.mask[:, i].sum(), i]
        which = np.flatnonzero((collected.obs[0] == one.obs[0]).all(-1)).item()
        seen.add(which)
        names = [name for name in collected if name != "mask"]
        assert one.select(names) == collected[: len(one), which].select(names)
    assert seen == set(range(5))


def test_every_episode_is_drawn_equally_often_however_long() -> None:
    """P7: the chi-square statistic of 3 degrees of freedom, 99.9 % quantile."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(fragment(["T....T..T....", ".........T..."], first=1))
    index, counts = np.unique(buffer.sample(4000).index[0], return_counts=True)
    assert len(index) == 4
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3


def test_the_limiter_is_asked_for_the_longest_episodes() -> None:
    """B8: a draw may hold the longest one several times; what it did hold is counted."""
    limiter = RateLimiter(1, 6, sample_batch=8, insert_batch=6)
    buffer = EpisodeReplayBuffer(100, limiter=limiter, seed=2)
    buffer.add(fragment([".T...T"], first=1))
    assert (buffer.most_rows(2), buffer.can_sample(2)) == (8, True)
    with pytest.raises(ValueError, match="12 rows to draw at once, but the rate limiter was told sample_batch=8"):
        buffer.sample(3)
    batch = buffer.sample(2)
    assert buffer.samples == batch.mask.sum() <= 8


def test_an_episode_that_outgrows_its_ring_is_said_once() -> None:
    """B9: and is not drawn, while those that fit are."""
    buffer, whole = EpisodeReplayBuffer(10, seed=0), fragment([".......T.", "...T.T..."], first=1)
    buffer.add(whole[:5])
    with pytest.warns(UserWarning, match=r"an episode has 7 steps by now, its ring room for 5 \(capacity 10 over 2\)"):
        buffer.add(whole[5:7])
    buffer.add(whole[7:])
    assert set(buffer.sample(20).reward[0]) == {1005}


def test_a_saved_buffer_goes_on_alike(tmp_path: Path) -> None:
    """B5: through a folder, in the middle of episodes."""
    buffer = EpisodeReplayBuffer(40, store_next_obs=False, seed=3)
    whole = fragment(["....T...", "..t...T.", "......T."], first=1)
    buffer.add(whole[:5])
    buffer.sample(5)
    again = EpisodeReplayBuffer.load(buffer.save(tmp_path / "saved"))
    for part in (whole[5:], whole[:3]):
        assert again.sample(20) == buffer.sample(20)
        for each in (buffer, again):
            each.add(part)
    assert again.sample(20) == buffer.sample(20)
    assert repr(again) == repr(buffer)


def test_nothing_to_draw_yet_is_said() -> None:
    """B7, H5."""
    buffer = EpisodeReplayBuffer(40, seed=0)
    buffer.add(fragment(["...."]))
    assert not buffer.can_sample(1)
    assert buffer.why_sample(1) == "waits for rows: none of the 4 stored begins one of the episodes"
    with pytest.raises(ValueError, match="none of the 4 stored begins one of the episodes"):
        buffer.sample(1)
    assert EpisodeReplayBuffer(4).why_sample(1) == "waits for rows: nothing is stored yet"


def test_padding_that_was_stored_is_not_drawn() -> None:
    """N6: columns without padding too; and what an episode was cut off from does not go on in the next column."""
    parts = fragment(["..T", "..T"], first=1)
    bare = parts.select([name for name in parts if name not in ("worker", "env_id", "episode_id", "t")])
    buffer = EpisodeReplayBuffer(40, seed=0)
    buffer.add(bare.replace(mask=np.array([[1, 1], [1, 1], [0, 1]], bool)))
    assert buffer.size == 5
    assert set(buffer.sample(20).reward[0]) == {1001}


def test_a_padded_batch_that_is_refused_changes_nothing() -> None:
    """B7: the running episode goes on in the next fragment."""
    buffer = EpisodeReplayBuffer(40, seed=0)
    parts = fragment(["...T", "...T"], first=1)
    buffer.add(parts[:2])
    with pytest.raises(SchemaError, match="a ring for each of 2 environments"):
        buffer.add(parts.replace(mask=np.ones((4, 2), bool)))
    buffer.add(parts[2:])
    assert len(buffer.sample(1)) == 4
