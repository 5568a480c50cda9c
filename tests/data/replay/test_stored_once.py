"""next_obs stored once, and frame stacks: what is drawn is what storing everything would have given."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch, ReplayBuffer
from flowrl.errors import CheckpointError, SchemaError
from tests.streams import Stream, streams


def filled(stream, sizes, length, **settings):
    buffer = ReplayBuffer(stream.envs * length, seed=0, **settings)
    for part in stream.fragments(sizes):
        buffer.add(part)
    return buffer


def rows(batch):
    names = sorted(set(batch) - {"index", "generation"})
    return {tuple(np.asarray(batch[name][i]).tobytes() for name in names) for i in range(len(batch))}


@given(streams(), st.integers(2, 9), st.integers(1, 3))
def test_next_obs_is_the_true_one_however_it_is_stored(stream, length, n_step):
    """T6, B2: rebuilt from the next row or kept aside; every row but the newest of each ring is drawn, and no other."""
    stream, sizes = stream
    once = filled(stream, sizes, length, n_step=n_step, store_next_obs=False)
    twice = filled(stream, sizes, length, n_step=n_step)
    drawn = [] if len(stream) == 1 else once.sample(300).obs[:, 0].tolist()
    steps = range(max(0, len(stream) - length), len(stream) - 1)
    assert set(drawn) == {stream.obs(env, step) for env in range(stream.envs) for step in steps}
    if drawn:
        assert rows(once.get(np.arange(once.size))) == rows(twice.get(np.arange(once.size)))
        index = once.sample(100).index
        again = twice._rows(index, {})
        assert once._rows(index, {}) == again


@given(streams(), st.integers(2, 9))
def test_only_what_the_next_row_does_not_hold_is_kept_aside(stream, length):
    """B2: final observations by slot, and those of the newest rows; those overwritten are gone."""
    stream, sizes = stream
    buffer = filled(stream, sizes, length, store_next_obs=False)
    newest, oldest = len(stream) - 1, max(0, len(stream) - length)
    expected = sum(
        stream.ends(env, step) or step == newest for env in range(stream.envs) for step in range(oldest, len(stream))
    )
    assert buffer.statistics()["next_obs_aside"] == expected


def test_the_newest_row_is_drawn_when_its_successor_is_there():
    """B2: also one that ended its episode; before, that is what sampling waits for."""
    stream = Stream(("T..",))
    buffer = ReplayBuffer(3, seed=0, store_next_obs=False)
    buffer.add(stream.fragment(0, 1))
    assert not buffer.can_sample(1)
    assert not buffer.holds_items
    assert "its successor" in buffer.why_sample(1)
    with pytest.raises(ValueError, match="its successor"):
        buffer.sample(1)
    assert buffer[-1].next_obs[0] == -1, "what is not drawn can be looked at"
    buffer.add(stream.fragment(1, 2))
    assert buffer.can_sample(1)
    assert set(buffer.sample(9).obs[:, 0].tolist()) == {1}


def test_flat_rows_that_do_not_follow_each_other_keep_their_own():
    """T6: rows of several environments in one ring."""
    buffer = ReplayBuffer(6, seed=0, store_next_obs=False)
    batch = Batch(obs={"x": np.array([0, 10, 1, 11])}, next_obs={"x": np.array([1, 11, 2, 12])})
    for _ in range(3):
        buffer.add(batch)
    drawn = buffer.sample(50)
    assert (drawn.next_obs.x == drawn.obs.x + 1).all()
    assert len(set(drawn.obs.x.tolist())) == 4


@pytest.mark.parametrize("wrong", [{}, {"next_obs": np.zeros(3, np.float32)}, {"next_obs": np.zeros((3, 2))}])
def test_next_obs_must_be_there_and_alike(wrong):
    with pytest.raises(SchemaError, match="store_next_obs=False needs the columns 'obs' and 'next_obs'"):
        ReplayBuffer(9, store_next_obs=False).add(Batch(obs=np.zeros(3), **wrong))


def test_a_ring_stored_once_needs_two_rows():
    with pytest.raises(ValueError, match="capacity is 3: 2 environments need at least 2 rows each"):
        ReplayBuffer(3, store_next_obs=False).add(Stream(("..", "..")).fragment(0, 1))


# -- frame stacks


@given(streams(), st.integers(2, 9), st.integers(2, 4), st.booleans())
def test_stacks_are_the_loop_over_frames(stream, length, k, once):
    """B1, B9: the first frame is repeated at an episode's start and at the write cursor."""
    stream, sizes = stream
    buffer = filled(stream, sizes, length, frame_stack=k, store_next_obs=not once)
    if not buffer.can_sample(1):
        return
    oldest = max(0, len(stream) - length)
    for batch in (buffer.sample(100), buffer[:]):
        for obs, next_obs in zip(batch.obs[..., 0].tolist(), batch.next_obs[..., 0].tolist()):
            env, step = stream.where(obs[-1])
            assert obs == stream.frames(env, step, k, oldest)
            assert next_obs == stream.next_frames(env, step, k, oldest)
        assert (batch.obs[..., 1] == 2 * batch.obs[..., 0]).all()


@given(streams(), st.integers(2, 9), st.integers(2, 4), st.integers(2, 3))
def test_stacks_of_windows_belong_to_their_first_and_last_step(stream, length, k, n_step):
    """B1, N3: obs before the first step, next_obs after the last."""
    stream, sizes = stream
    buffer = filled(stream, sizes, length, frame_stack=k, n_step=n_step, gamma=1.0)
    oldest, drawn = max(0, len(stream) - length), buffer.sample(100)
    for obs, next_obs, reward in zip(drawn.obs[..., 0], drawn.next_obs[..., 0], drawn.reward):
        env, step = last = stream.where(obs[-1])
        total = stream.obs(env, step)
        while last[1] - step < n_step - 1 and not stream.ends(*last) and last[1] < len(stream) - 1:
            last = (env, last[1] + 1)
            total += stream.obs(*last)
        assert obs.tolist() == stream.frames(env, step, k, oldest)
        assert next_obs.tolist() == stream.next_frames(*last, k, oldest)
        assert reward == total


@given(streams(), st.booleans())
def test_of_stacked_observations_the_newest_frame_is_enough(stream, once):
    """B1: what is drawn is equal to what was added, for a fourth of the memory."""
    stream, sizes = stream
    buffer = ReplayBuffer(200, frame_stack=4, newest_frame_only=True, store_next_obs=not once, seed=0)
    added = []
    for start, part in zip(np.cumsum([0, *sizes]).tolist(), stream.fragments(sizes)):
        steps = range(start, start + len(part))
        for name, frames in (("obs", stream.frames), ("next_obs", stream.next_frames)):
            stacks = [[frames(env, step, 4, 0) for env in range(stream.envs)] for step in steps]
            part[name] = {"image": np.array(stacks, np.int16)[..., None]}
        buffer.add(part)
        added.append(part)
    assert buffer[:] == Batch.cat(added).flat()
    assert buffer._rings.columns.obs.image.shape[2:] == (1,)


def test_observations_without_a_stack_are_refused():
    buffer = ReplayBuffer(20, frame_stack=4, newest_frame_only=True)
    with pytest.raises(SchemaError, match=r"needs observations of 4 frames, got \[2\] a row"):
        buffer.add(Stream(("...",)).fragment(0, 3))


def test_stacks_need_the_order_of_time():
    with pytest.raises(SchemaError, match=r"frame_stack=2 needs fragments \[T, N, ...\]"):
        ReplayBuffer(20, frame_stack=2).add(Stream(("...",)).fragment(0, 3).flat())
    with pytest.raises(SchemaError, match="needs the column 'obs'"):
        ReplayBuffer(20, frame_stack=2).add(Batch(reward=np.zeros((2, 1))))
    for wrong in ({"frame_stack": 0}, {"newest_frame_only": True}):
        with pytest.raises(ValueError, match="frame_stack is"):
            ReplayBuffer(20, **wrong)


@pytest.mark.parametrize("frame_stack", [1, 3])
@given(stream=streams(), length=st.integers(2, 6))
def test_what_is_kept_aside_is_in_the_state(frame_stack, stream, length):
    """B5: the next sample and what comes after it are identical."""
    stream, sizes = stream
    buffer = filled(stream, sizes, length, store_next_obs=False, frame_stack=frame_stack)
    other = ReplayBuffer(stream.envs * length, store_next_obs=False, frame_stack=frame_stack, seed=9)
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    for _ in range(2):
        assert buffer[:] == other[:]
        if buffer.can_sample(1):
            assert buffer.sample(20) == other.sample(20)
        for one in (buffer, other):
            one.add(stream.fragment(0, min(3, len(stream))))


def test_a_state_stored_in_the_other_way_is_refused():
    once, twice = (ReplayBuffer(9, store_next_obs=how) for how in (False, True))
    once.add(Stream(("...",)).fragment(0, 3))
    with pytest.raises(CheckpointError, match="has store_next_obs=False, this one True"):
        twice.load_state_dict(once.state_dict())
