"""Rows by number and by slot, rows from another buffer, and the storage that they lie in."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data import Batch, EpisodeReplayBuffer, ReplayBuffer
from flowrl.data.replay import ring_storage
from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.errors import ConfigError, SchemaError
from tests.full_disk import full_disk
from tests.streams import Stream, streams


def numbered(start, count, **more):
    clock = np.arange(start, start + count)
    return Batch(obs=clock.astype(np.float32), action=clock % 4, terminated=clock % 5 == 4, **more)


# -- by number


def test_fifteen_rows_into_a_ring_of_ten():
    """B4, B9: the newest ten are left, in the order of time."""
    buffer = ReplayBuffer(20, seed=0)
    buffer.add(numbered(0, 3))
    assert (len(buffer), buffer[:].obs.tolist()) == (3, [0, 1, 2])
    small = ReplayBuffer(10, seed=0)
    for start in range(15):
        small.add(numbered(start, 1))
    assert small[:].obs.tolist() == list(range(5, 15))
    small.update(buffer)
    assert small[:].obs.tolist() == [*range(8, 15), 0, 1, 2]
    assert len(buffer) == 3


@given(streams(), st.integers(1, 9), st.data())
def test_a_slice_is_the_rows_of_its_numbers(stream, length, data):
    """B4: also as a mask, a list, and one by one."""
    stream, sizes = stream
    buffer = ReplayBuffer(stream.envs * length, seed=0)
    for part in stream.fragments(sizes):
        buffer.add(part)
    oldest = max(0, len(stream) - length)
    expected = [stream.obs(env, step) for step in range(oldest, len(stream)) for env in range(stream.envs)]
    bounds = st.none() | st.integers(-12, 12)
    cut = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1])))
    numbers = np.arange(buffer.size)[cut]
    assert buffer[cut].obs[:, 0].tolist() == expected[cut]
    assert buffer[cut] == buffer[numbers] == buffer[numbers.tolist() if len(numbers) else numbers]
    mask = np.isin(np.arange(buffer.size), numbers)
    assert buffer[mask] == buffer[np.sort(numbers)]
    for number in numbers.tolist():
        assert buffer[number] == buffer[[number]][0]
    assert len(list(buffer)) == buffer.size


def test_the_last_row_of_a_slice_can_be_drawn():
    """B9: a slice is a batch of all its rows."""
    buffer = ReplayBuffer(10, seed=0)
    buffer.add(numbered(0, 10))
    assert set(np.concatenate([part.obs for part in buffer[2:6].split(1)]).tolist()) == {2, 3, 4, 5}


def test_rows_are_found_again_by_their_slot():
    buffer = ReplayBuffer(7, seed=0)
    buffer.add(numbered(0, 11))
    drawn = buffer.sample(20)
    assert buffer.get(drawn.index) == drawn.select(["obs", "action", "terminated"])
    assert buffer.get(int(drawn.index[0])).obs == drawn.obs[0]


@given(streams(), st.integers(2, 9), st.booleans(), st.booleans(), st.sampled_from([1, 3]))
def test_neighbours_are_steps_of_the_same_episode(stream, length, once, lost, n_step):
    """B12: the slots beside each row in its ring, but for the ends of episodes, lost steps, the oldest and newest."""
    stream, sizes = stream
    buffer = ReplayBuffer(stream.envs * length, store_next_obs=not once, n_step=n_step, seed=0)
    gap = len(stream) // 2 if lost else -1  # the step of which provenance says that another came between
    for part in stream.fragments(sizes):
        steps = part.obs[..., 0] % 100 - 1
        buffer.add(part.replace(t=steps + (steps >= gap if lost else 0)))
    oldest, slots = max(0, len(stream) - length), np.arange(buffer.size)
    found = {stream.where(obs[0]): slot for slot, obs in zip(slots.tolist(), buffer.get(slots).obs)}
    for (env, step), slot in found.items():
        goes_on = step + 1 < len(stream) and not stream.ends(env, step) and step + 1 != gap
        came_from = step > oldest and not stream.ends(env, step - 1) and step != gap
        assert buffer.next(slot) == found[env, step + goes_on]
        assert buffer.prev([slot]).tolist() == [found[env, step - came_from]]


def test_rows_of_two_buffers_are_no_neighbours():
    """B12, B3."""
    buffer, other = ReplayBuffer(9, seed=0), ReplayBuffer(9, seed=0)
    buffer.add(Stream(("...",)).fragment(0, 3))
    other.update(buffer)
    other.update(buffer)
    assert other.next(np.arange(6)).tolist() == [1, 2, 2, 4, 5, 5]
    assert other.prev(np.arange(6)).tolist() == [0, 0, 1, 3, 3, 4]
    assert other.next([]).tolist() == []


@pytest.mark.parametrize("index", [-1, 3, [0, 3]])
def test_slots_without_a_row_are_refused(index):
    buffer = ReplayBuffer(7)
    buffer.add(numbered(0, 3))
    with pytest.raises(IndexError, match="rows in the slots 0 to 2"):
        buffer.get(index)
    with pytest.raises(IndexError):
        buffer[7]
    assert len(ReplayBuffer(7)[:]) == 0


@pytest.mark.parametrize("index", [[True, False, True], [1.7]])
def test_slots_that_are_no_numbers_are_refused(index):
    """They would be read as the slots 1, 0, 1."""
    buffer = ReplayBuffer(7)
    buffer.add(numbered(0, 3))
    with pytest.raises(IndexError, match=r"slots are whole numbers, got .*: buffer\[mask\]"):
        buffer.get(np.array(index))
    assert buffer.get([]).obs.shape == (0,)


# -- from another buffer


@given(streams(), streams(), st.integers(2, 6), st.integers(2, 9), st.booleans(), st.booleans())
def test_update_keeps_the_order_of_time(first, second, length, to_length, once, to_once):
    """B3: a smaller or larger buffer, stored once or twice."""
    (first, sizes), (second, to_sizes) = first, second
    second = Stream((second.marks * 3)[: first.envs])
    source = ReplayBuffer(first.envs * length, store_next_obs=not once)
    target = ReplayBuffer(first.envs * to_length, store_next_obs=not to_once, n_step=3, gamma=1.0, seed=0)
    for buffer, stream, parts in ((source, first, sizes), (target, second, to_sizes)):
        for part in stream.fragments(parts):
            buffer.add(part)
    both = Batch.cat([target[:], source[:]])
    target.update(source)
    kept = first.envs * to_length
    assert target[:] == both[-kept:]
    rows, envs, seam = target[:], first.envs, target.size - min(source.size, target.size)
    windows = target._rows(target._rings.chronological(np.arange(target.size)), {})
    for i in range(target.size):
        last = i
        for _ in range(2):
            after = last + envs
            if rows.terminated[last] or rows.truncated[last] or after >= target.size or last < seam <= after:
                break
            last = after
        assert windows.next_obs[i].tolist() == rows.next_obs[last].tolist()
        assert windows.reward[i] == rows.reward[i : last + 1 : envs].sum()


def test_a_window_ends_at_the_seam():
    """B3, N1: two halves that look like one episode; a buffer that takes them over knows it too."""
    stream = Stream(("......",))
    target, source = ReplayBuffer(8, n_step=9, gamma=1.0, seed=0), ReplayBuffer(8)
    target.add(stream.fragment(0, 3))
    source.add(stream.fragment(3, 6))
    target.update(source)
    larger = ReplayBuffer(16, n_step=9, gamma=1.0, seed=0)
    plain = ReplayBuffer(16)
    plain.update(target)
    larger.update(plain)
    for buffer in (target, larger):
        drawn = buffer.sample(100)
        assert dict(zip(drawn.obs[:, 0].tolist(), drawn.reward.tolist())) == {1: 6, 2: 5, 3: 3, 4: 15, 5: 11, 6: 6}


@pytest.mark.parametrize("filled", [True, False])
def test_what_is_added_after_an_update(filled):
    """B3, B5: it goes on where a buffer was resized, and not where another's rows came between; also when restored."""
    stream = Stream(("......",))
    target, source = ReplayBuffer(9, n_step=9, gamma=1.0, seed=0), ReplayBuffer(9)
    if filled:
        target.add(stream.fragment(0, 1))
    source.add(stream.fragment(0, 3))
    target.update(source)
    target.load_state_dict(target.state_dict())
    target.add(stream.fragment(3, 6))
    drawn = target.sample(200)
    assert max(drawn.reward[drawn.obs[:, 0] == 3]) == (3 if filled else 3 + 4 + 5 + 6)


def test_rows_of_another_run_are_taken_over_and_later_ones_begin_new_episodes():
    """B3, B8, P7: the random stream stays its own, and nothing has to be sampled at once."""
    stream = Stream(("......",))
    earlier = ReplayBuffer(9, n_step=9, gamma=1.0, seed=0)
    earlier.add(stream.fragment(0, 3))
    earlier.sample(5)
    limiter = RateLimiter(2, 2, sample_batch=100, insert_batch=3)
    buffer = ReplayBuffer(9, n_step=9, gamma=1.0, seed=1, limiter=limiter)
    generator = buffer.state_dict()["generator"]
    buffer.take_over(earlier.state_dict())
    assert (buffer.inserts, buffer.samples, buffer.envs) == (3, 2, 1)
    assert buffer.state_dict()["generator"] == generator
    buffer.add(stream.fragment(3, 6))
    drawn = buffer.sample(100)
    assert dict(zip(drawn.obs[:, 0].tolist(), drawn.reward.tolist())) == {1: 6, 2: 5, 3: 3, 4: 15, 5: 11, 6: 6}


def test_update_refuses_what_does_not_fit():
    with pytest.raises(SchemaError, match=r"rows of another ReplayBuffer, not a Batch; see add\(\)"):
        ReplayBuffer(4).update(numbered(0, 3))
    buffer, other = ReplayBuffer(8), ReplayBuffer(8)
    buffer.add(numbered(0, 3))
    with pytest.raises(ValueError, match="cannot be updated with itself"):
        buffer.update(buffer)
    buffer.update(other)  # nothing in it
    other.add(Stream(("..",)).fragment(0, 1))
    with pytest.raises(SchemaError):
        buffer.update(other)
    assert buffer[:].obs.tolist() == [0, 1, 2]
    two = ReplayBuffer(8)
    two.add(Stream(("..", "..")).fragment(0, 2))
    with pytest.raises(SchemaError, match="a ring for each of 2 environments, got the steps of 1: give these a buffer"):
        two.update(other)


# -- storage


def test_memory_is_that_of_the_columns():
    """B6: within 5 % of what the columns take, small and wide ones."""
    buffer = ReplayBuffer(1000)
    batch = numbered(0, 2, image=np.zeros((2, 30, 30), np.uint8), next_obs=np.zeros((2, 4), np.float32))
    buffer.add(batch)
    declared = 1000 * sum(column[0].nbytes for column in batch.values())
    assert declared <= buffer.statistics()["bytes"] <= 1.05 * declared


@pytest.mark.parametrize("settings", [{}, {"capacity_bytes": 300}], ids=["rows", "bytes"])
def test_a_capacity_that_memory_cannot_hold_is_refused(settings, monkeypatch):
    """By `add` and by `load_state_dict`, with both sizes and what would fit; files are not memory."""
    buffer = ReplayBuffer(10, **settings, seed=0)
    buffer.add(numbered(0, 4))
    state, row = buffer.state_dict(), buffer.statistics()["bytes"] // 10
    monkeypatch.setattr(ring_storage, "memory", lambda: 10 * row - 1)
    for load in (lambda new: new.add(numbered(0, 4)), lambda new: new.load_state_dict(state)):
        with pytest.raises(
            ConfigError, match=f"capacity=10: so many rows of {row} bytes .* take a capacity below 9, or"
        ):
            load(new := ReplayBuffer(10, **settings, seed=0))
        assert len(new) == 0
    monkeypatch.setattr(ring_storage, "memory", lambda: 10 * row)
    ReplayBuffer(10, **settings).load_state_dict(state)


def test_files_may_hold_more_than_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(ring_storage, "memory", lambda: 1)
    ReplayBuffer(10, directory=tmp_path).add(numbered(0, 4))


def test_capacity_in_bytes():
    """Whichever is reached first."""
    for limit, rows in ((10_000, 10_000 // (4 + 8 + 1 + 1)), (10**9, 5000)):
        buffer = ReplayBuffer(5000, capacity_bytes=limit, seed=0)
        buffer.add(numbered(0, 4))
        assert buffer.capacity == rows
        assert buffer.statistics()["bytes"] <= limit
    with pytest.raises(ValueError, match=r"capacity is 0 \(what 10 bytes hold\)"):
        ReplayBuffer(5000, capacity_bytes=10).add(numbered(0, 4))


def test_objects_are_kept_as_they_are():
    things = np.array([{"a": 1}, None, "text"], object)
    buffer = ReplayBuffer(5, seed=0)
    buffer.add(numbered(0, 3, thing=things, name=np.array(["a", "b", "c"])))
    assert buffer[:].thing[0] is things[0]
    drawn = buffer.sample(9)
    assert all(thing is things[int(obs)] for thing, obs in zip(drawn.thing, drawn.obs))
    assert "object[3]" in repr(buffer[:])


def test_columns_in_a_directory_are_like_those_in_memory(tmp_path):
    """Their files have no names: nothing is left of them, however the process ends."""
    mapped, plain = (ReplayBuffer(9, directory=where, seed=0) for where in (tmp_path, None))
    for buffer in (mapped, plain):
        for start in (0, 5, 10):
            buffer.add(numbered(start, 5, image=np.full((5, 40, 40), start, np.uint8), thing=np.array([None] * 5)))
    assert mapped.sample(30) == plain.sample(30)
    assert list(tmp_path.iterdir()) == []
    for other in (copy.deepcopy(mapped), pickle.loads(pickle.dumps(mapped))):
        assert other[:] == plain[:]
        other.add(numbered(20, 1, image=np.zeros((1, 40, 40), np.uint8), thing=np.array([None])))
        assert other.sample(30).obs.max() == 20
    assert mapped.sample(30) == plain.sample(30)


def test_a_directory_without_room_is_an_error_at_once(tmp_path):
    buffer = ReplayBuffer(100_000, directory=tmp_path, seed=0)
    with full_disk(100_000), pytest.raises(OSError, match="no room for a buffer of"):
        buffer.add(numbered(0, 5))
    assert list(tmp_path.iterdir()) == []
    assert buffer.size == 0
    buffer.add(numbered(0, 5))  # there is room again
    assert buffer[:].obs.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="missing"):
        ReplayBuffer(9, directory=tmp_path / "missing").add(numbered(0, 5))


def test_arrays_are_used_again_when_nobody_holds_them():
    """Wide columns only; what is held, be it a view or a tensor of it, is never written to."""
    buffer = ReplayBuffer(50, reuse=True, seed=0)
    fresh = ReplayBuffer(50, seed=0)
    for one in (buffer, fresh):
        one.add(numbered(0, 50, image=np.arange(50)[:, None] * np.ones((1, 300), np.int64)))
    held, seen = [], set()
    for step in range(60):
        drawn, expected = buffer.sample(8), fresh.sample(8)
        assert drawn == expected
        seen.add(id(drawn.image))
        kept = {0: drawn, 1: drawn.image[2:, 1], 2: drawn.to_torch().image[3]}.get(step % 20)
        if kept is not None:
            held.append((kept, copy.deepcopy(kept)))
    for kept, then in held:
        assert np.array_equal(
            np.asarray(kept.image if isinstance(kept, Batch) else kept),
            np.asarray(then.image if isinstance(then, Batch) else then),
        )
    assert len(seen) <= len(held) + 3


def test_arrays_of_shapes_that_are_not_drawn_any_more_are_forgotten():
    """Episodes have another length in each draw: kept for ever, their arrays would fill the memory."""
    buffer = EpisodeReplayBuffer(1000, reuse=True, seed=0)
    for length in range(1, 40):
        ends = np.arange(length)[:, None] == length - 1
        image = np.full((length, 1, 600), length, np.uint8)
        buffer.add(Batch(image=image, reward=np.ones((length, 1)), terminated=ends, truncated=~ends & False))
    held = [buffer.sample(1) for _ in range(5)]
    lengths = {buffer.sample(1).shape[0] for _ in range(100)}
    assert len(lengths) > 20
    assert all((each.image == len(each)).all() for each in held)
    pool = buffer._pool
    assert sum(array.nbytes for arrays in pool._arrays.values() for array in arrays) <= 7 * 40 * 600


def test_statistics():
    buffer = ReplayBuffer(10, seed=0, track_uses=True)
    assert buffer.statistics()["rows"] == 0
    buffer.add(numbered(0, 15, policy_version=np.arange(15) // 5))
    drawn = buffer.sample(20)
    found = buffer.statistics()
    expected = {"rows": 10, "fill": 1.0, "inserts": 15, "samples": 20, "episodes": 2, "mean_uses": 2.0}
    assert {name: found[name] for name in expected} == expected
    assert found["mean_staleness"] == 0.5
    assert found["rows_in_per_second"] > 0
    assert found["rows_out_per_second"] > 0
    assert buffer.statistics()["rows_out_per_second"] == 0
    assert (drawn.staleness == 2 - drawn.policy_version).all()
