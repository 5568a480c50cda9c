"""SumTree: slots are found where their masses lie, sums never drift, and loops and whole arrays agree bit for bit."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.data.replay import sum_tree, sum_tree_loops
from flowrl.data.replay.sum_tree import SumTree

HOW = ["numpy", "loops", "compiled"]

#: Capacities of one group and several, and of two levels below a top of 4 nodes.
CAPACITIES = st.one_of(st.integers(1, 40), st.integers(900, 1100))
MASSES = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.integers(0, 3).map(float))


@pytest.fixture(params=HOW)
def make(request, monkeypatch):
    """Makes trees: the loops are tried as they are written, also where nothing can compile them."""
    if request.param == "loops":
        loops = sum_tree_loops.Loops(sum_tree_loops.climb, sum_tree_loops.descend)
        monkeypatch.setattr(sum_tree_loops, "compiled", lambda: loops)

    def made(capacity):
        tree = SumTree(capacity, compiled=request.param == "compiled")
        tree.compiled = request.param != "numpy"
        return tree

    return made


@pytest.fixture(autouse=True)
def low_top(monkeypatch):
    monkeypatch.setattr(sum_tree, "TOP", 4)


def found_by_hand(masses, share):
    """The first slot whose bound exceeds the share."""
    bound = 0.0
    for slot, mass in enumerate(masses):
        bound += mass
        if bound > share * sum(masses):
            return slot
    return max(slot for slot, mass in enumerate(masses) if mass)


@given(CAPACITIES, st.data())
def test_a_slot_is_found_over_its_share_of_the_total(capacity, data):
    """P2: whole numbers, so that the definition knows no rounding."""
    masses = data.draw(st.lists(st.integers(0, 5).map(float), min_size=capacity, max_size=capacity))
    if not any(masses):
        masses[data.draw(st.integers(0, capacity - 1))] = 1.0
    tree = SumTree(capacity, compiled=False)
    tree.fill(np.array(masses))
    shares = np.array([0.0, *data.draw(st.lists(st.floats(0, 1, exclude_max=True), max_size=20))])
    assert tree.find(shares).tolist() == [found_by_hand(masses, share) for share in shares]
    assert (tree.total, tree.largest) == (sum(masses), max(masses))
    assert tree.smallest == min(mass for mass in masses if mass)


@given(CAPACITIES, st.lists(st.lists(st.tuples(st.integers(0, 2000), MASSES), max_size=9), max_size=12), st.data())
def test_updates_are_those_of_a_plain_list(capacity, updates, data):
    """P5: nothing without mass is found, whatever the rounding; of equal slots the last counts."""
    tree, masses = SumTree(capacity, compiled=False), [0.0] * capacity
    shares = np.array(data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=9)))
    for update in updates:
        for slot, mass in update:
            masses[slot % capacity] = mass
        slots = np.array([slot % capacity for slot, _ in update], np.int64)
        tree[slots] = np.array([mass for _, mass in update])
        assert tree.masses.tolist() == masses
        assert tree[slots].tolist() == [masses[slot] for slot in slots]
        assert (tree.largest, tree.smallest) == (max(masses), min((m for m in masses if m), default=np.inf))
        np.testing.assert_allclose(tree.total, sum(masses), rtol=1e-12)
        if any(masses):
            assert all(masses[slot] > 0 for slot in tree.find(shares))


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("mass", [5e-324, 1e-308, 0.1, 1e300])
def test_a_slot_beside_others_without_mass_is_the_only_one_found(make, mass, share):
    """P5: priority 0 is never sampled, at the edges of what floats can say too."""
    for capacity in (1, 16, 17, 1000):
        tree = make(capacity)
        for slot in range(0, capacity, 7):
            tree[np.array([slot])] = mass
            assert tree.find(np.array([share])).tolist() == [slot]
            tree[np.array([slot])] = 0.0
        with pytest.raises(ValueError, match="without mass"):
            tree.find(np.array([share]))


def test_the_same_numbers_however_it_is_computed(make):
    """The loops add in the same order: bit for bit the sums and the slots of whole arrays."""
    draw = np.random.default_rng(0)
    for capacity in (1, 30, 300, 5000):
        plain, other = SumTree(capacity, compiled=False), make(capacity)
        for count in (1, 8, 50, 50):
            slots = draw.integers(capacity, size=count)
            masses = draw.random(count) ** 9 * (draw.random(count) < 0.8) + (slots == slots[0])
            shares = draw.random(100)
            for tree in (plain, other):
                tree[slots] = masses
            assert all((a == b).all() for a, b in zip(plain._levels, other._levels))
            assert (plain._top == other._top).all()
            assert (plain.find(shares) == other.find(shares)).all()


def test_a_million_updates_leave_the_sums_exact(monkeypatch):
    """P5: below 1e-6 is asked for; they are computed anew, so there is no drift at all."""
    draw, tree = np.random.default_rng(0), SumTree(2000, compiled=False)
    slots = draw.integers(2000, size=(250, 4000))
    for part in slots:
        tree[part] = 10.0 ** draw.integers(-9, 9, size=4000)
    fresh = SumTree(2000, compiled=False)
    fresh.fill(tree.masses)
    assert all((a == b).all() for a, b in zip([*tree._levels, tree._top], [*fresh._levels, fresh._top]))
    assert tree.total == pytest.approx(sum(tree.masses.tolist()), rel=1e-12)


def test_copies_and_pickles_are_independent_trees(make):
    """B5."""
    tree = make(500)
    tree.fill(np.random.default_rng(0).random(500))
    shares = np.random.default_rng(1).random(50)
    expected = tree.find(shares)
    others = [copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))]
    tree[np.arange(500)] = np.eye(500)[3]
    assert all((other.find(shares) == expected).all() for other in others)
    assert tree.find(shares).tolist() == [3] * 50


def test_it_is_compiled_where_it_can_be_and_says_so(monkeypatch):
    assert repr(SumTree(5)) == "SumTree(capacity=5, compiled=True)"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert repr(SumTree(5)) == "SumTree(capacity=5, compiled=False)"
    with pytest.raises(ValueError, match=r"needs numba .*: pip install numba"):
        SumTree(5, compiled=True)


def test_what_was_compiled_is_kept_for_other_processes(monkeypatch):
    """Each would wait for seconds; where no folder can be written, it does."""
    make = sum_tree_loops.compiled.__wrapped__
    for _ in range(2):
        loops = make()  # as a new process has them
        monkeypatch.setattr(sum_tree_loops, "compiled", lambda loops=loops: loops)
        tree = SumTree(30, compiled=True)
        tree[np.arange(3)] = 1.0
        assert tree.find(np.array([0.5])).tolist() == [1]
    assert [(loop.stats.cache_hits.total(), loop.stats.cache_misses.total()) for loop in loops] == [(1, 0), (1, 0)]
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert [loop.stats.cache_path for loop in make()] == [None, None]
