"""ReplayBuffer: what is drawn is what was stored, windows stop where they must, a saved buffer goes on alike."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data.batch import Batch
from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.errors import CheckpointError, SchemaError
from flowrl.operators.adders import NStep
from tests.episodes import flags

GAMMA = 0.5  # exact in float32


def rows(start, count):
    clock = np.arange(start, start + count)
    return Batch(obs=clock, reward=clock.astype(np.float32), terminated=clock % 3 == 2)


def fragment(marks, start):
    """One string per environment: `.` goes on, `T` terminated, `t` truncated, `*` both. Observation e * 100 + step."""
    marks = np.array([list(row) for row in marks]).T
    obs = start + np.arange(len(marks))[:, None] + 100 * np.arange(marks.shape[1])
    return Batch(obs=obs, reward=(obs % 7).astype(np.float32), next_obs=obs + 1, **flags(marks))


def table(batch):
    names = ("obs", "reward", "next_obs", "terminated", "truncated", "discount")
    return set(zip(*(batch[name].tolist() for name in names)))


# -- what is stored


@given(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_flat_rows_are_the_newest_ones(capacity, counts):
    """One ring: also a batch longer than the buffer, and one that wraps."""
    buffer, start = ReplayBuffer(capacity, seed=0), 0
    for count in counts:
        buffer.add(rows(start, count))
        start += count
        kept = set(range(max(0, start - capacity), start))
        assert (len(buffer), buffer.size, buffer.inserts) == (len(kept), len(kept), start)
        drawn = buffer.sample(12 * capacity)
        assert set(drawn.obs.tolist()) <= kept
        # Every row has a slot of its own, and a slot's row of generation g is the g-th written to it.
        assert (drawn.index == drawn.obs % capacity).all()
        assert (drawn.generation == drawn.obs // capacity + 1).all()
        assert drawn.discount.tolist() == np.where(drawn.terminated, 0, np.float32(0.99)).tolist()


@given(st.integers(1, 3), st.integers(1, 6), st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(0, 2))
def test_fragments_fill_one_ring_per_environment(envs, length, counts, spare):
    """capacity // N rows each; a row's slot is time-major."""
    buffer, start = ReplayBuffer(envs * length + min(spare, envs - 1), seed=0), 0
    for count in counts:
        buffer.add(fragment(["." * count] * envs, start))
        start += count
        drawn = buffer.sample(100)
        env, clock = drawn.obs // 100, drawn.obs % 100
        assert buffer.size == envs * min(start, length)
        assert buffer.inserts == envs * start
        assert (clock >= start - length).all()
        assert (clock < start).all()
        assert (drawn.index == clock % length * envs + env).all()
        assert (drawn.generation == clock // length + 1).all()
        assert (drawn.next_obs == drawn.obs + 1).all()


def test_every_stored_row_is_drawn_about_equally_often():
    """P7: the chi-square statistic of 11 degrees of freedom, 99.9 % quantile."""
    buffer = ReplayBuffer(12, seed=0)
    buffer.add(rows(0, 30))
    counts = np.bincount(buffer.sample(12_000).index, minlength=12)
    assert ((counts - 1000) ** 2 / 1000).sum() < 31.3
    assert buffer.samples == 12_000


def test_dtypes_and_nested_columns_are_kept():
    """B6: uint8 stays uint8."""
    image = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    b = Batch(obs={"image": image, "x": np.ones((3, 2), np.float16)}, action=np.zeros((3, 2), np.int8))
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(b)
    drawn = buffer.sample(5)
    assert (drawn.obs.image.dtype, drawn.obs.x.dtype, drawn.action.dtype) == (np.uint8, np.float16, np.int8)
    assert drawn.obs.image.shape == (5, 4)
    np.testing.assert_array_equal(drawn.obs.image, b[1:].flat().obs.image[(drawn.index + 2) % 4])


def test_what_is_stored_is_a_copy_and_what_is_drawn_too():
    b = rows(0, 4)
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(b)
    b.obs[:] = -1
    buffer.sample(4).obs[:] = -1
    assert (buffer.sample(50).obs >= 0).all()


def test_a_stored_discount_is_kept():
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(Batch(terminated=np.ones(4, bool), discount=np.full(4, 0.25, np.float32)))
    assert buffer.sample(2).discount.tolist() == [0.25, 0.25]


def test_bootstrap_stops_at_terminated_only():
    """T6, T4: a truncated row keeps its discount and its true next observation."""
    buffer = ReplayBuffer(4, gamma=GAMMA, seed=0)
    buffer.add(fragment([".Tt*"], 0))
    assert {(o, n, d) for o, _, n, _, _, d in table(buffer.sample(100))} == {
        (0, 1, 0.5),
        (1, 2, 0.0),
        (2, 3, 0.5),
        (3, 4, 0.0),
    }


# -- n-step


def windows(stream, env, n, oldest):
    """The expected rows of one environment's ring, by the definition."""
    for start in range(oldest, len(stream)):
        k = next((k for k in range(1, n) if stream[start + k - 1] != "." or start + k == len(stream)), n)
        last = start + k - 1
        total = sum(GAMMA**i * ((100 * env + start + i) % 7) for i in range(k))
        terminated, truncated = stream[last] in "T*", stream[last] in "t*"
        yield 100 * env + start, total, 100 * env + last + 1, terminated, truncated, 0.0 if terminated else GAMMA**k


@st.composite
def streams(draw):
    envs, steps = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    marks = [draw(st.text("...Tt*", min_size=steps, max_size=steps)) for _ in range(envs)]
    return marks, draw(st.lists(st.integers(1, 5), min_size=steps, max_size=steps))


def fragments(marks, sizes):
    start = 0
    for size in sizes:
        if start < len(marks[0]):
            yield fragment([m[start : start + size] for m in marks], start)
        start += size


@given(streams(), st.integers(2, 5), st.integers(1, 9))
def test_sampled_windows_are_the_loop_over_windows(stream, n, length):
    """N1, N2, N3, N4, T4: mixed ends, several rings, rings that wrap; every row that can be drawn, and no other."""
    marks, sizes = stream
    buffer = ReplayBuffer(len(marks) * length, n_step=n, gamma=GAMMA, seed=0)
    for part in fragments(marks, sizes):
        buffer.add(part)
    oldest = max(0, len(marks[0]) - length)
    expected = {row for env, m in enumerate(marks) for row in windows(m, env, n, oldest)}
    assert table(buffer.sample(40 * len(expected))) == expected


@given(streams(), st.integers(2, 4))
def test_write_time_and_sample_time_windows_agree(stream, n):
    """N5: the same rows, also in floats that round."""
    marks, sizes = stream
    adder = NStep(n=n, gamma=0.9)
    late, early = ReplayBuffer(1000, n_step=n, gamma=0.9, seed=0), ReplayBuffer(1000, seed=0)
    for part in fragments(marks, sizes):
        late.add(part)
        early.add(adder(part))
    for tail in adder.finish():
        early.add(tail)
    assert early.size == late.size
    assert table(early.sample(40 * early.size)) == table(late.sample(40 * late.size))


MISSING = {"worker": [0, 0, 1, 1], "env_id": [0, 0, 1, 1], "episode_id": [7, 7, 8, 8], "t": [5, 6, 0, 1]}


@pytest.mark.parametrize("name", MISSING)
def test_windows_stop_where_an_episode_went_missing(name):
    """N1: provenance changes without an end."""
    buffer = ReplayBuffer(4, n_step=3, gamma=GAMMA, seed=0)
    buffer.add(fragment(["...."], 0).replace(**{name: np.array(MISSING[name])[:, None]}))
    assert {(o, n, d) for o, _, n, _, _, d in table(buffer.sample(100))} == {
        (0, 2, 0.25),
        (1, 2, 0.5),
        (2, 4, 0.25),
        (3, 4, 0.5),
    }


# -- generator and state


def test_all_sampling_uses_the_buffers_own_generator():
    """P7: equal seeds draw equally, whatever else is drawn; a run gives a seed to a buffer that has none."""

    class Seeds:
        def seed(self, name=""):
            assert name == "sample"
            return 5

    seeded, started, again = ReplayBuffer(50, seed=5), ReplayBuffer(50), ReplayBuffer(50, seed=5)
    for buffer in (seeded, started, again):
        buffer.add(rows(0, 50))
    started.start(Seeds())
    again.start(Seeds())
    first = seeded.sample(20)
    assert first == started.sample(20) == again.sample(20)
    started.start(Seeds())  # the next run goes on with it as it is
    assert seeded.sample(20) == started.sample(20)
    assert first != seeded.sample(20)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("how", ["fresh", "filled"])
def test_a_loaded_buffer_goes_on_alike(n, steps, how):
    """B5, D3: cursor, counters and generator; into a fresh buffer and into one that holds something else."""
    buffer = ReplayBuffer(6, n_step=n, gamma=GAMMA, seed=1)
    buffer.add(fragment(["." * steps, "." * steps], 0))
    buffer.sample(7)
    other = ReplayBuffer(6, n_step=n, gamma=GAMMA, seed=99)
    if how == "filled":
        other.add(fragment(["....", "...."], 50))
        other.sample(3)
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    for _ in range(2):
        assert (other.size, other.inserts, other.samples) == (buffer.size, buffer.inserts, buffer.samples)
        assert other.sample(30) == buffer.sample(30)
        for one in (buffer, other):
            one.add(fragment(["T.", ".t"], 10))


def test_a_state_is_a_copy():
    """B5, D5: what happens to the buffer later does not reach it, and it can be loaded twice."""
    buffer = ReplayBuffer(6, seed=1)
    buffer.add(rows(0, 6))
    state = buffer.state_dict()
    first = buffer.sample(20)
    for _ in range(2):
        buffer.add(rows(50, 3))
        buffer.load_state_dict(state)
        assert buffer.sample(20) == first


def test_an_empty_buffer_can_be_saved():
    buffer = ReplayBuffer(6, seed=1)
    buffer.add(rows(0, 3))
    buffer.load_state_dict(ReplayBuffer(6, seed=2).state_dict())
    assert (buffer.size, buffer.inserts, buffer.samples) == (0, 0, 0)
    buffer.add(fragment(["..."], 0))  # also of another schema
    assert buffer.size == 3


def test_a_state_of_another_capacity_is_refused():
    with pytest.raises(CheckpointError, match="capacity 6, this one 7"):
        ReplayBuffer(7).load_state_dict(ReplayBuffer(6).state_dict())


def test_copies_and_pickles_are_independent_buffers():
    buffer = ReplayBuffer(6, seed=1)
    buffer.add(rows(0, 6))
    others = [copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    expected = buffer.sample(20)
    assert [other.sample(20) for other in others] == [expected, expected]
    others[0].add(rows(50, 6))
    assert (buffer.sample(50).obs < 50).all()


@pytest.fixture
def restless_threads():
    """Threads take turns after every few bytecodes, so that what can be torn is."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_adding_and_drawing_from_two_threads(restless_threads):
    """A batch drawn while another thread adds has rows of one moment."""
    buffer = ReplayBuffer(64, seed=0)
    torn = []

    def columns(start):
        clock = np.arange(start, start + 40)
        return Batch({str(power): power * clock for power in range(1, 9)})

    def draw():
        for _ in range(200):
            drawn = buffer.sample(64)
            torn.append(any((drawn[str(power)] != power * drawn["1"]).any() for power in range(1, 9)))

    buffer.add(columns(0))
    thread = threading.Thread(target=draw)
    thread.start()
    start = 40
    while thread.is_alive():
        buffer.add(columns(start))
        start += 40
    thread.join()
    assert len(torn) == 200
    assert not any(torn)


# -- what is refused


def test_settings_that_make_no_sense_are_refused():
    for wrong, message in [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 1e4}, "capacity is 10000.0: it is a whole number of rows"),
        ({"capacity": 1, "n_step": 0}, "n_step is 0"),
        ({"capacity": 1, "gamma": 1.1}, "gamma is 1.1"),
    ]:
        with pytest.raises(ValueError, match=message):
            ReplayBuffer(**wrong)


def test_samples_that_cannot_be_drawn_are_refused_and_large_ones_are_not():
    """B7: empty, zero rows, one row, more rows than stored."""
    buffer = ReplayBuffer(5, seed=0)
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(1)
    buffer.add(rows(0, 1))
    with pytest.raises(ValueError, match="batch_size is 0"):
        buffer.sample(0)
    assert buffer.samples == 0
    assert buffer.sample(9).obs.tolist() == [0] * 9
    unseeded = ReplayBuffer(5)
    unseeded.add(rows(0, 1))
    with pytest.raises(ValueError, match=r"give ReplayBuffer a seed=, or use it in a run"):
        unseeded.sample(1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            rows(0, 2).select(["obs", "reward"]),
            "the batch lacks 'terminated'; expected columns: obs, reward, terminated",
        ),
        (rows(0, 2).replace(more=np.ones(2)), "has extra 'more'"),
        (
            rows(0, 2).replace(reward=np.ones(2)),
            r"column 'reward': the buffer stores float32\[1\] per step, got float64\[1\]",
        ),
        (rows(0, 2).replace(obs=np.ones((2, 3), int)), r"column 'obs': .* int64\[1\] per step, got int64\[1, 3\]"),
        (rows(0, 2).replace(obs=Batch(x=np.ones(2))), "column 'obs'"),
        (rows(0, 2)[:, None], r"filled with rows \[B, ...\], got fragments \[T, N, ...\]"),
    ],
)
def test_batches_unlike_the_first_are_refused_and_change_nothing(batch, message):
    buffer = ReplayBuffer(5, seed=0)
    buffer.add(rows(0, 2))
    before = buffer.state_dict()["columns"]
    with pytest.raises(SchemaError, match=message):
        buffer.add(batch)
    assert buffer.inserts == 2
    assert Batch(buffer.state_dict()["columns"]) == Batch(before)


def test_batches_alike_but_for_order_and_kind_are_taken():
    """RecordColumns in another order, tensors, empty nested batches, which have no rows."""
    buffer = ReplayBuffer(5, seed=0)
    first = rows(0, 2).replace(info={})
    buffer.add(first)
    buffer.add(first)
    buffer.add(rows(2, 1).select(["terminated", "obs", "reward"]).to_torch())
    assert buffer[:].obs.tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(SchemaError, match="not of one length"):
        buffer.add(rows(0, 2).replace(reward=np.ones(3, np.float32)))


def test_nested_columns_are_checked_by_their_path():
    buffer = ReplayBuffer(5, seed=0)
    buffer.add(Batch(obs={"in": {"x": np.ones(2)}}))
    with pytest.raises(SchemaError, match=r"column 'obs\.in\.x': .* float64\[1\] per step, got float32\[1\]"):
        buffer.add(Batch(obs={"in": {"x": np.ones(2, np.float32)}}))
    with pytest.raises(SchemaError, match=r"column 'obs\.in' of the batch lacks 'x'"):
        buffer.add(Batch(obs={"in": {"y": np.ones(2)}}))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (fragment([".."], 0).flat(), r"n_step=3 needs fragments \[T, N, ...\]"),
        (fragment([".."], 0).select(["reward", "terminated"]), "needs the column 'next_obs'"),
        (fragment([".."], 0).replace(discount=np.ones((2, 1))), "makes the column 'discount'"),
        (fragment([".."], 0).replace(index=np.ones((2, 1))), "'index' is made by sample"),
        (Batch(obs=np.ones((2, 2, 2))), "cannot tell rows from features"),
        ({"obs": np.ones(2)}, r"ReplayBuffer stores batches, got a dict; make it a Batch\(...\)"),
    ],
)
def test_first_batches_that_cannot_be_stored_are_refused(batch, message):
    buffer = ReplayBuffer(8, n_step=3, seed=0)
    with pytest.raises(SchemaError, match=message):
        buffer.add(batch)
    assert buffer.size == 0


def test_padded_steps_are_refused_and_an_adder_drops_them():
    """N6: they must not be drawn."""
    padded = fragment(["..T", "T.."], 0).replace(mask=np.array([[1, 1], [1, 0], [1, 0]], bool))
    buffer = ReplayBuffer(8, seed=0)
    with pytest.raises(SchemaError, match=r"padded steps \(mask 0\).* NStep\(n=1"):
        buffer.add(padded)
    buffer.add(NStep(n=1, gamma=GAMMA)(padded))
    assert set(buffer.sample(100).obs.tolist()) == {0, 1, 2, 100}


def test_a_ring_needs_a_row_for_each_environment():
    with pytest.raises(ValueError, match="capacity is 1: 2 environments need at least 1 row each"):
        ReplayBuffer(1).add(fragment(["..", ".."], 0))


def test_no_rows_are_nothing():
    """An adder may give a batch of 0 rows."""
    buffer = ReplayBuffer(5)
    buffer.add(rows(0, 0))
    buffer.add(Batch())
    assert (buffer.inserts, buffer.size) == (0, 0)


def test_repr_is_short():
    buffer = ReplayBuffer(10000)
    assert repr(buffer) == "ReplayBuffer(capacity=10000, rows=0)"
    assert repr(ReplayBuffer(10, n_step=3)) == "ReplayBuffer(capacity=10, rows=0, n_step=3)"
    assert buffer, "an empty buffer is still a buffer"
