"""PrioritizedReplayBuffer: drawn as often as priorities say, weighted as the formula says, forgotten with the row."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from scipy import stats

from flowrl.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from flowrl.errors import CheckpointError, SchemaError
from flowrl.schedules import linear_schedule

EPS = 1e-6


def rows(start, count):
    clock = np.arange(start, start + count)
    return Batch(obs=clock, terminated=clock % 3 == 2)


def filled(priorities, **settings):
    """A buffer whose rows, in order, have these priorities."""
    buffer = PrioritizedReplayBuffer(len(priorities), **{"seed": 0, "eps": EPS, **settings})
    buffer.add(rows(0, len(priorities)))
    slots = np.arange(len(priorities))
    assert buffer.update_priorities(slots, np.ones_like(slots), np.array(priorities)) == 0
    return buffer


def exact(priorities, alpha):
    """P(i) by the definition."""
    masses = [(priority + EPS) ** alpha for priority in priorities]
    return np.array([mass / sum(masses) for mass in masses])


# -- what is drawn, and how it is weighted


@pytest.mark.parametrize("batch_size", [1, 7, 256])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_as_often_as_their_priorities_say(alpha, batch_size):
    """P2, P3: chi-square against the exact distribution; single draws are independent, of more none is less even."""
    priorities = np.random.default_rng(3).exponential(size=40) ** 2
    buffer, chances = filled(priorities, alpha=alpha), exact(priorities, alpha)
    counts = np.zeros(40)
    for _ in range(20_000 // batch_size):
        counts += np.bincount(buffer.sample(batch_size).index, minlength=40)
    assert stats.chisquare(counts, chances * counts.sum()).pvalue > 0.001
    # With alpha applied twice, or not at all, it would be plain.
    if alpha == 0.6:
        for wrong in (alpha**2, 1.0):
            assert stats.chisquare(counts, exact(priorities, wrong) * counts.sum()).pvalue < 1e-9


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(0, 1), st.integers(1, 40))
def test_each_part_of_the_total_gives_one_row_of_a_batch(priorities, alpha, batch_size):
    """A row of probability P is in a batch of B about B · P times, never off by 2."""
    buffer, chances = filled(priorities, alpha=alpha), exact(priorities, alpha)
    drawn = buffer.sample(batch_size).index
    assert (np.diff(drawn) >= 0).all()
    assert (abs(np.bincount(drawn, minlength=len(priorities)) - batch_size * chances) < 2).all()


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["batch", "buffer", None]),
)
def test_weights_are_those_of_the_formula(priorities, alpha, beta, normalise):
    """P2: (N P)^-beta over the largest of the batch, of the buffer, or of none. P3: of p^alpha, not p^alpha^2."""
    buffer = filled(priorities, alpha=alpha, beta=beta, normalise=normalise)
    drawn = buffer.sample(5)
    every = [(len(priorities) * chance) ** -beta for chance in exact(priorities, alpha)]
    weights = [every[slot] for slot in drawn.index]
    largest = {"batch": max(weights), "buffer": max(every), None: 1.0}[normalise]
    np.testing.assert_allclose(drawn.weight, np.array(weights) / largest, rtol=1e-5)
    assert drawn.weight.dtype == np.float32


def test_a_slot_that_was_never_written_counts_for_nothing():
    """P2: N are the rows that can be drawn, not the capacity."""
    buffer = PrioritizedReplayBuffer(100, seed=0, beta=1.0, normalise=None)
    buffer.add(rows(0, 5))
    assert buffer.sample(50).weight.tolist() == [1.0] * 50


def test_the_newest_row_of_each_ring_has_no_mass_until_its_successor_is_there():
    """B2, P1: where next_obs is stored once; N counts the others, also after the rings have wrapped."""
    buffer = PrioritizedReplayBuffer(8, store_next_obs=False, beta=1.0, alpha=1.0, eps=EPS, normalise=None, seed=0)
    for time in range(7):
        clock = np.array([[time, time + 100]])
        buffer.add(Batch(obs=clock, next_obs=clock + 1, terminated=clock < 0))
        newest = time % 4 * 2 + np.arange(2)
        kept = [slot for slot in range(min(8, 2 * time + 2)) if slot not in newest]
        assert np.flatnonzero(buffer._tree.masses).tolist() == kept
        if not kept:
            assert not buffer.can_sample(1)
            continue
        drawn = buffer.sample(40)
        assert set(drawn.index.tolist()) == set(kept)
        masses = buffer._tree.masses
        np.testing.assert_allclose(drawn.weight, masses.sum() / len(kept) / masses[drawn.index], rtol=1e-6)
        # A priority for the row that came to lie where it was does not bring it back, nor does one that is not drawn.
        slots, generation = np.arange(2 * time + 2) % 8, np.arange(2 * time + 2) // 8 + 1
        outdated = buffer.update_priorities(slots, generation, 1.0 + slots)
        assert outdated == len(slots) - len(kept)
        np.testing.assert_allclose(buffer._tree.masses[kept], 1.0 + np.array(kept) + EPS)
        assert np.flatnonzero(buffer._tree.masses).tolist() == kept


@pytest.mark.parametrize("normalise", ["batch", "buffer", None])
def test_rows_that_are_used_up_are_drawn_no_more(normalise):
    """B10, P4: nor does a priority bring them back; their weights are those of when they were drawn."""
    buffer = PrioritizedReplayBuffer(6, alpha=1.0, beta=1.0, eps=EPS, normalise=normalise, max_uses=3, seed=0)
    buffer.add(rows(0, 6))
    priorities = np.array([50.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    buffer.update_priorities(np.arange(6), np.ones(6, int), priorities)
    chances, uses = exact(priorities, 1.0), np.zeros(6, int)
    first = buffer.sample(10)  # of which 3 are the first row, and not 8
    uses += np.bincount(first.index, minlength=6)
    assert uses[0] == 3
    every = 1 / (6 * chances)
    largest = {"batch": every[first.index].max(), "buffer": every.max(), None: 1.0}[normalise]
    np.testing.assert_allclose(first.weight, every[first.index] / largest, rtol=1e-5)
    buffer.update_priorities(first.index, first.generation, np.full(10, 9.0))
    assert (np.flatnonzero(buffer._tree.masses) == np.flatnonzero(uses < 3)).all()
    uses += np.bincount(buffer.sample(8).index, minlength=6)
    assert uses.tolist() == [3] * 6
    assert not buffer.can_sample(1)
    buffer.add(rows(6, 1))
    assert buffer.sample(3).obs.tolist() == [6] * 3


def test_rows_that_are_too_stale_are_drawn_no_more():
    """B10: by policy version; N counts those that are left."""
    buffer = PrioritizedReplayBuffer(8, beta=1.0, normalise=None, max_staleness=1, seed=0)
    for version in range(4):
        buffer.add(rows(2 * version, 2).replace(policy_version=np.full(2, version)))
        drawn = buffer.sample(30)
        assert set(drawn.policy_version.tolist()) == {max(0, version - 1), version}
        assert drawn.weight.tolist() == [1.0] * 30


def test_beta_follows_its_schedule_over_rows_added():
    """P6: also after a resume, from the state alone."""
    beta = linear_schedule(0.0, 1.0, 100)
    buffer = PrioritizedReplayBuffer(2, alpha=1.0, beta=beta, seed=0)
    other = PrioritizedReplayBuffer(2, alpha=1.0, beta=beta, seed=9)
    for start in range(0, 120, 2):
        buffer.add(rows(start, 2))
        if start == 50:
            other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
        if start > 50:
            other.add(rows(start, 2))
        for each in (buffer, other)[: 1 + (start >= 50)]:
            generation = np.full(2, start // 2 + 1)
            each.update_priorities(np.arange(2), generation, np.array([1.0, 4.0]))
            drawn = each.sample(10)
            expected = 0.25 ** min(1.0, (start + 2) / 100)
            np.testing.assert_allclose(drawn.weight, np.where(drawn.index == 0, 1, expected), rtol=1e-5)


# -- priorities


def test_new_rows_enter_with_the_largest_priority_that_is_there():
    """P1, P3: 1 at first; what was the largest does not count any longer once it was lowered or overwritten."""
    buffer = PrioritizedReplayBuffer(4, alpha=0.5, eps=EPS, seed=0)
    buffer.add(rows(0, 2))
    assert buffer._tree.masses.tolist() == [1, 1, 0, 0]
    first = np.array([1, 1])
    buffer.update_priorities(np.array([0, 1]), first, np.array([9.0, 4.0]) - EPS)
    buffer.add(rows(2, 1))
    np.testing.assert_allclose(buffer._tree.masses, [3, 2, 3, 0])
    buffer.update_priorities(np.array([0, 2]), first, np.array([1.0, 0.25]) - EPS)
    buffer.add(rows(3, 2))  # the second overwrites the first row
    np.testing.assert_allclose(buffer._tree.masses, [2, 2, 0.5, 2])


def test_priorities_of_a_row_that_was_overwritten_are_dropped_and_counted():
    """P4: by generation, whatever came to lie in its slot."""
    buffer = PrioritizedReplayBuffer(4, alpha=1.0, seed=0)
    buffer.add(rows(0, 4))
    drawn = buffer.sample(20)
    buffer.add(rows(4, 2))  # into slots 0 and 1
    before = buffer._tree.masses.copy()
    gone = drawn.index < 2
    assert 0 < gone.sum() < 20
    assert buffer.update_priorities(drawn.index, drawn.generation, np.full(20, 7.0)) == gone.sum() == buffer.outdated
    np.testing.assert_allclose(buffer._tree.masses, np.where(np.arange(4) < 2, before, 7.0 + EPS))
    again = buffer.sample(20)
    assert buffer.update_priorities(again.index, again.generation, np.full(20, 7.0)) == 0


def test_of_a_row_named_several_times_the_last_priority_counts():
    buffer = filled([1.0, 1.0], alpha=1.0)
    buffer.update_priorities(np.array([1, 0, 1]), np.ones(3, int), np.array([5.0, 3.0, 2.0]))
    np.testing.assert_allclose(buffer._tree.masses, np.array([3.0, 2.0]) + EPS)
    assert buffer.update_priorities(np.array([], int), np.array([], int), np.array([])) == 0


class Model(RuleBasedStateMachine):
    """Any order of adding, drawing, updating, saving and loading, beside a plain list of rows."""

    drawn = Bundle("drawn")

    def __init__(self):
        super().__init__()
        self.envs, self.length, self.alpha = 2, 5, 0.5
        self.buffer = self.make(1)
        self.slots = [None] * 10  # generation, mass and observation
        self.clock = 0

    def make(self, seed):
        return PrioritizedReplayBuffer(11, alpha=self.alpha, eps=EPS, beta=0.5, normalise=None, seed=seed)

    @rule(steps=st.integers(1, 7))
    def add(self, steps):
        clock = np.arange(self.clock, self.clock + steps)[:, None] + np.array([[0, 1000]])
        self.buffer.add(Batch(obs=clock, terminated=np.zeros_like(clock, bool)))
        largest = max((row[1] for row in self.slots if row), default=1.0)
        for time in range(self.clock, self.clock + steps):
            for env in range(self.envs):
                slot = time % self.length * self.envs + env
                self.slots[slot] = (time // self.length + 1, largest, time + 1000 * env)
        self.clock += steps

    @precondition(lambda self: self.clock)
    @rule(target=drawn, count=st.integers(1, 30))
    def sample(self, count):
        drawn = self.buffer.sample(count)
        kept = [row for row in self.slots if row]
        total = sum(row[1] for row in kept)
        for slot, generation, obs, weight in zip(drawn.index, drawn.generation, drawn.obs, drawn.weight):
            assert (generation, obs) == (self.slots[slot][0], self.slots[slot][2])
            chance = self.slots[slot][1] / total
            np.testing.assert_allclose(weight, (len(kept) * chance) ** -0.5, rtol=1e-5)
        return drawn.index, drawn.generation

    @rule(rows=st.one_of(drawn, consumes(drawn)), priority=st.floats(0, 1e6))
    def update(self, rows, priority):
        priorities = priority / (1 + np.arange(len(rows[0])))
        outdated = 0
        for slot, generation, value in zip(*rows, priorities):
            if self.slots[slot] is not None and self.slots[slot][0] == generation:
                self.slots[slot] = (generation, (value + EPS) ** self.alpha, self.slots[slot][2])
            else:
                outdated += 1
        assert self.buffer.update_priorities(*rows, priorities) == outdated

    @rule(how=st.sampled_from(["state", "pickle", "copy"]))
    def save_and_load(self, how):
        """B5, P7: what comes next is the same."""
        if how == "state":
            other = self.make(2)
            other.add(rows(0, 3))
            other.load_state_dict(pickle.loads(pickle.dumps(self.buffer.state_dict())))
        else:
            other = copy.deepcopy(self.buffer) if how == "copy" else pickle.loads(pickle.dumps(self.buffer))
        if self.clock:
            assert copy.deepcopy(other).sample(9) == copy.deepcopy(self.buffer).sample(9)
        self.buffer = other

    @invariant()
    def priorities_are_those_of_the_list(self):
        masses = [row[1] if row else 0.0 for row in self.slots]
        np.testing.assert_allclose(self.buffer._tree.masses, [*masses, 0.0], rtol=1e-12)
        assert self.buffer._tree.total == pytest.approx(sum(masses))


Model.TestCase.settings = settings(stateful_step_count=25)
test_any_order_of_operations = Model.TestCase


# -- generator and state


def test_all_sampling_uses_the_buffers_own_generator():
    """P7: equal seeds draw equally; a run gives a seed to a buffer that has none."""

    class Seeds:
        def seed(self, name=""):
            return 5

    seeded, started = filled(np.arange(9.0), seed=5), filled(np.arange(9.0), seed=None)
    started.start(Seeds())
    first = seeded.sample(20)
    assert first == started.sample(20)
    assert first != seeded.sample(20)
    started.sample(20)
    for _ in range(5):  # strata leave little to chance: one draw may be alike by accident
        assert seeded.sample(20) == started.sample(20)


def test_a_loaded_buffer_goes_on_alike():
    """B5, D3, P4: priorities, counters and generator, into one that holds something else."""
    buffer, other = filled(np.arange(9.0)), filled(np.arange(9.0)[::-1], seed=7)
    buffer.add(rows(9, 4))
    buffer.update_priorities(np.array([0]), np.array([1]), np.array([1.0]))
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    assert (other.outdated, other.samples, other.inserts) == (1, buffer.samples, 13)
    for _ in range(3):
        drawn = buffer.sample(20)
        assert other.sample(20) == drawn
        for each in (buffer, other):
            each.update_priorities(drawn.index, drawn.generation, drawn.obs.astype(float))
            each.add(rows(20, 2))
    empty = PrioritizedReplayBuffer(9, seed=3)
    buffer.load_state_dict(empty.state_dict())
    assert (buffer.size, buffer._tree.total, buffer.outdated) == (0, 0.0, 0)


def test_a_state_is_a_copy():
    """B5, D5."""
    buffer = filled(np.arange(9.0))
    state = buffer.state_dict()
    first = buffer.sample(20)
    for _ in range(2):
        buffer.update_priorities(np.arange(9), np.ones(9, int), np.ones(9))
        buffer.load_state_dict(state)
        assert buffer.sample(20) == first


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (ReplayBuffer(4), "has no priorities, this one alpha 0.6"),
        (PrioritizedReplayBuffer(4, alpha=0.5), "has alpha 0.5, this one 0.6"),
        (PrioritizedReplayBuffer(5), "capacity 5, this one 4"),
    ],
)
def test_states_of_other_buffers_are_refused(saved, message):
    with pytest.raises(CheckpointError, match=message):
        PrioritizedReplayBuffer(4).load_state_dict(saved.state_dict())


def test_it_can_be_saved_and_loaded(tmp_path):
    """B5, P6: on disk, its schedule among the settings."""
    buffer = filled(np.arange(9.0), beta=linear_schedule(0.1, 0.9, 20), normalise="buffer", store_next_obs=True)
    buffer.add(rows(9, 4))
    loaded = PrioritizedReplayBuffer.load(buffer.save(tmp_path / "buffer"))
    assert loaded.settings() == buffer.settings()
    for _ in range(2):
        assert loaded.sample(20) == buffer.sample(20)
        for each in (loaded, buffer):
            each.add(rows(13, 3))


def test_rows_of_another_buffer_enter_as_new_ones():
    """B3, P1."""
    buffer = filled([3.0, 1.0], alpha=1.0)
    larger = PrioritizedReplayBuffer(5, alpha=1.0, seed=0)
    larger.update(buffer)
    assert larger._tree.masses.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_it_says_what_it_is():
    buffer = PrioritizedReplayBuffer(9, alpha=0.5, compiled=False)
    assert repr(buffer) == "PrioritizedReplayBuffer(capacity=9, rows=0, alpha=0.5, numpy)"
    made = PrioritizedReplayBuffer(**buffer.settings())
    assert made.settings() == buffer.settings()


# -- what is refused


def test_priorities_whose_powers_cannot_be_added_up_are_refused():
    """P2: every weight would be NaN, or one row be drawn alone."""
    for alpha, largest in ((1.0, 1e300), (3.0, 1e150)):
        buffer = filled([1.0, 2.0], alpha=alpha)
        with pytest.raises(ValueError, match=rf"the priority of slot 1 is .*, also to the power of alpha={alpha}"):
            buffer.update_priorities(np.array([0, 1]), np.array([1, 1]), np.array([1.0, largest]))
        assert np.isfinite(buffer.sample(8).weight).all()


def test_a_column_that_it_makes_is_refused():
    """P2: the weight drawn would not be the one that was stored."""
    with pytest.raises(SchemaError, match="'weight' is made by sample"):
        PrioritizedReplayBuffer(4).add(Batch(obs=np.arange(2), weight=np.ones(2)))
    ReplayBuffer(4).add(Batch(obs=np.arange(2), weight=np.ones(2)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": np.nan}, "alpha is nan"),
        ({"beta": 1.1}, "beta is 1.1"),
        ({"eps": 0.0}, "eps is 0.0: .* would never be drawn again"),
        ({"normalise": "all"}, "normalise is 'all': it is 'batch', 'buffer' or None"),
        ({"capacity": 0}, "capacity is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        PrioritizedReplayBuffer(**{"capacity": 4, **wrong})


def test_samples_that_cannot_be_drawn_are_refused_and_large_ones_are_not():
    """B7: empty, one row, more rows than stored."""
    buffer = PrioritizedReplayBuffer(5, seed=0)
    assert not buffer.can_sample(1)
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(1)
    with pytest.raises(ValueError, match="index must hold slots in use"):
        buffer.update_priorities(np.array([0]), np.array([1]), np.array([1.0]))
    buffer.add(rows(0, 1))
    drawn = buffer.sample(9)
    assert (drawn.obs.tolist(), drawn.weight.tolist()) == ([0] * 9, [1.0] * 9)


@pytest.mark.parametrize(
    ("index", "generation", "priority", "message"),
    [
        ([2, 0], [1, 1], [1.0, np.nan], "the priority of slot 0 is nan: priorities are finite and at least 0"),
        ([2, 0], [1, 1], [-1.0, 1.0], "the priority of slot 2 is -1.0"),
        ([2, 0], [1, 1], [1.0, np.inf], "the priority of slot 0 is inf"),
        ([0, 1], [1, 1], [1.0], r"must be alike \[B\], got \(2,\), \(2,\) and \(1,\)"),
        ([0, 1], [1, 1], [[1.0, 1.0]], "must be alike"),
        ([0, 4], [1, 1], [1.0, 1.0], "index must hold slots in use, 0 .. 3"),
        ([-1, 0], [1, 1], [1.0, 1.0], "index must hold slots"),
        ([0.0, 1.0], [1, 1], [1.0, 1.0], "index must hold slots"),
    ],
)
def test_priorities_that_make_no_sense_are_refused_and_change_nothing(index, generation, priority, message):
    buffer = filled([1.0, 2.0, 3.0, 4.0])
    before = buffer._tree.masses.copy()
    with pytest.raises(ValueError, match=message):
        buffer.update_priorities(np.array(index), np.array(generation), np.array(priority))
    assert (buffer._tree.masses == before).all()
