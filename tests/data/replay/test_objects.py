"""ObjectReplayBuffer: a list of the newest objects, whatever they are, that keeps the contract of every store."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowrl import Plan, from_items
from flowrl.data import Batch, ObjectReplayBuffer, RateLimiter, ReplayBuffer, Store
from flowrl.errors import CheckpointError, PlanError, SchemaError
from flowrl.operators import Concurrently, Replay, StoreToReplay
from flowrl.storage.checkpoint import load_checkpoint, save_checkpoint
from flowrl.testing import check_plan

OBJECTS = st.one_of(st.none(), st.integers(), st.text(max_size=2), st.dictionaries(st.text(max_size=1), st.integers()))


class AgainstAList(RuleBasedStateMachine):
    """B5, B7, P7: any sequence of adding, drawing, saving and loading, against the list of all that was added."""

    @initialize(capacity=st.integers(1, 5))
    def make(self, capacity: int) -> None:
        self.capacity = capacity
        self.buffer = ObjectReplayBuffer(capacity, seed=3)
        self.added: list[object] = []
        self.drawn = 0
        self.generator = np.random.default_rng(3)

    @property
    def slots(self) -> list[object]:
        """The newest object of each slot."""
        newest = dict(enumerate(self.added[: self.capacity]))
        newest |= {i % self.capacity: each for i, each in enumerate(self.added)}
        return [newest[slot] for slot in sorted(newest)]

    @rule(items=st.lists(OBJECTS, max_size=8))
    def add(self, items: list[object]) -> None:
        self.buffer.add(items)
        self.added += items

    @precondition(lambda self: self.added)
    @rule(count=st.integers(1, 9))
    def sample(self, count: int) -> None:
        slots = self.slots
        assert self.buffer.sample(count) == [slots[i] for i in self.generator.integers(len(slots), size=count)]
        self.drawn += count

    @precondition(lambda self: not self.added)
    @rule()
    def sample_from_nothing(self) -> None:
        with pytest.raises(ValueError, match="empty buffer"):
            self.buffer.sample(1)

    @rule(fill=st.lists(OBJECTS, max_size=3), twice=st.booleans())
    def save_and_load(self, fill: list[object], twice: bool) -> None:
        state = self.buffer.state_dict()
        self.buffer = ObjectReplayBuffer(self.capacity, seed=99)
        self.buffer.add(fill)
        for _ in range(1 + twice):
            self.buffer.load_state_dict(state)

    @rule()
    def pickled(self) -> None:
        self.buffer = copy.deepcopy(pickle.loads(pickle.dumps(self.buffer)))

    @invariant()
    def counts(self) -> None:
        held = min(len(self.added), self.capacity)
        assert (len(self.buffer), self.buffer.inserts, self.buffer.samples) == (held, len(self.added), self.drawn)
        assert self.buffer.can_sample(1) == self.buffer.holds_items == bool(held)


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(stateful_step_count=20)


def test_the_buffers_are_stores() -> None:
    assert isinstance(ObjectReplayBuffer(1), Store)
    assert isinstance(ReplayBuffer(1), Store)
    assert not isinstance([], Store)


def test_what_is_drawn_is_what_was_added() -> None:
    league = object()
    buffer = ObjectReplayBuffer(4, seed=0)
    buffer.add((league,))
    assert buffer.sample(2) == [league, league]
    assert buffer, "an empty buffer is still a buffer"


def test_a_state_is_a_copy() -> None:
    """B5, D5: what is done with the objects later does not reach it."""
    buffer, snapshot = ObjectReplayBuffer(4, seed=0), {"elo": 1}
    buffer.add([snapshot])
    state = buffer.state_dict()
    snapshot["elo"] = 2
    buffer.load_state_dict(state)
    buffer.sample(1)[0]["elo"] = 3
    buffer.load_state_dict(state)
    assert buffer.sample(1) == [{"elo": 1}]


def test_a_limiter_counts_objects() -> None:
    """B8"""
    buffer = ObjectReplayBuffer(9, seed=0, limiter=RateLimiter(1, 2, sample_batch=2, insert_batch=2))
    assert (buffer.can_sample(1), buffer.why_sample(1)) == (
        False,
        "waits for rows: 0 of 2 stored before sampling starts",
    )
    buffer.add([1, 2])
    buffer.add([3, 4])
    assert (buffer.can_insert(2), buffer.fills_up) == (False, True)
    assert "waits for training: adding 2 rows" in buffer.why_insert(2)
    with pytest.raises(ValueError, match="3 rows to add at once"):
        buffer.add([1, 2, 3])
    with pytest.raises(ValueError, match="3 rows to draw at once"):
        buffer.sample(3)
    assert len(buffer) == 4
    buffer.sample(2)
    assert buffer.can_insert(2)


def test_what_cannot_work_is_refused() -> None:
    """B7"""
    with pytest.raises(ValueError, match="capacity is 0"):
        ObjectReplayBuffer(0)
    buffer = ObjectReplayBuffer(2)
    for item in ({"a": 1}, "text", Batch(a=[1]), 5):
        with pytest.raises(SchemaError, match=r"adds a list of objects, got a \w+; write add\(\[item\]\)"):
            buffer.add(item)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size is 0"):
        buffer.sample(0)
    buffer.add([1])
    with pytest.raises(ValueError, match=r"give ObjectReplayBuffer a seed=, or use it in a run"):
        buffer.sample(1)
    with pytest.raises(CheckpointError, match="capacity 3, this one 2"):
        buffer.load_state_dict(ObjectReplayBuffer(3).state_dict())


# -- in plans


def league() -> Plan:
    buffer = ObjectReplayBuffer(4)
    snapshots = from_items([{"player": i, "wins": (i, None)} for i in range(9)])
    store = snapshots.batch(2).for_each(StoreToReplay(buffer))
    return Concurrently({"store": store, "draw": Replay(buffer, 3)}, output_indexes=["draw"])


def test_plans_store_anything_and_resume() -> None:
    """D1, D3, D5: dicts in lists of two in, lists of three out."""
    check_plan(league, items=6)
    with league().run() as run:
        drawn = [next(run) for _ in range(5)]
        assert [len(each) for each in drawn] == [3] * 5
        assert all(
            item == {"player": item["player"], "wins": (item["player"], None)} for each in drawn for item in each
        )
        assert run.counters == {"inserted": 9, "sampled": 15}


def test_a_plan_goes_on_from_disk(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """D3: plain objects are read without trust."""
    with league().run() as run:
        next(run)
        state = run.state_dict()
        rest = [next(run) for _ in range(4)]
    with league().run() as run:
        run.load_state_dict(load_checkpoint(save_checkpoint(tmp_path / "checkpoint", state)))
        assert [next(run) for _ in range(4)] == rest


def test_a_plan_says_what_it_stores() -> None:
    assert "Replay(buffer=ObjectReplayBuffer(capacity=4, items=0), batch_size=3)" in league().explain()
    league().check()
    fragments = from_items([1, 2]).for_each(StoreToReplay(ObjectReplayBuffer(4)))
    with pytest.raises(SchemaError, match=r"in a plan \.batch\(1\) before StoreToReplay"):
        list(fragments)
    with pytest.raises(PlanError, match="StoreToReplay needs a ReplayBuffer, got"):
        StoreToReplay([])  # type: ignore[arg-type]
