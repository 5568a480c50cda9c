"""MultiAgentBatch: batches by policy, and the env steps that they come from."""

from __future__ import annotations

import copy
import pickle

import attrs
import numpy as np
import pytest

from flowrl.data import Batch, MultiAgentBatch
from flowrl.errors import SchemaError
from flowrl.testing import same


def rows(*rewards: float) -> Batch:
    return Batch(reward=np.array(rewards))


@pytest.fixture
def both() -> MultiAgentBatch:
    """Two env steps, in which one cat and two mice acted."""
    return MultiAgentBatch({"cat": rows(1, 2), "mouse": rows(3, 4, 5, 6)}, env_steps=2)


def test_it_is_like_a_dict_of_batches(both: MultiAgentBatch) -> None:
    assert list(both) == list(both.keys()) == ["cat", "mouse"]
    assert (len(both), "cat" in both, "dog" in both) == (2, True, False)
    assert both["cat"] is both.get("cat") is next(iter(both.values()))
    assert both.get("dog") is None
    assert dict(both.items()) == both.batches
    with pytest.raises(KeyError, match="no experience of policy 'mause': did you mean 'mouse'"):
        both["mause"]


def test_agent_steps_are_rows_and_env_steps_are_their_own(both: MultiAgentBatch) -> None:
    """F12, N6: one unit each; padding is no step of an agent."""
    assert (both.rows, both.env_steps) == (6, 2)
    padded = MultiAgentBatch({"cat": rows(1, 2).replace(mask=[1, 0])}, env_steps=2)
    assert (padded.rows, padded.env_steps) == (1, 2)
    with pytest.raises(ValueError, match="env_steps"):
        MultiAgentBatch({}, env_steps=-1)


def test_selecting_keeps_the_env_steps(both: MultiAgentBatch) -> None:
    """M3: those of policies that did not act included; the batches are shared, not copied."""
    mice = both.select(["mouse", "dog"])
    assert (list(mice), mice.rows, mice.env_steps) == (["mouse"], 4, 2)
    assert mice["mouse"] is both["mouse"]
    nobody = both.select(["dog"])
    assert (nobody.rows, nobody.env_steps, nobody.is_empty) == (0, 2, False), "time went by all the same"


def test_joining_by_policy(both: MultiAgentBatch) -> None:
    """G1: rows one after another, fragments side by side; env steps add up; a policy may be missing from some."""
    joined = MultiAgentBatch.cat([both, MultiAgentBatch({"cat": rows(7), "dog": rows(8)}, env_steps=3)])
    assert {name: batch.reward.tolist() for name, batch in joined.items()} == {
        "cat": [1, 2, 7],
        "mouse": [3, 4, 5, 6],
        "dog": [8],
    }
    assert joined.env_steps == 5
    fragments = MultiAgentBatch({"cat": Batch(reward=np.ones((4, 2)))}, env_steps=8)
    assert MultiAgentBatch.cat([fragments, fragments])["cat"].shape == (4, 4)
    with pytest.raises(SchemaError, match="lacks 'reward'"):
        MultiAgentBatch.cat([both, MultiAgentBatch({"cat": Batch(obs=np.ones(2))}, env_steps=1)])
    with pytest.raises(ValueError, match="of no batches"):
        MultiAgentBatch.cat([])


def test_values_and_copies(both: MultiAgentBatch) -> None:
    for other in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert other == both
        assert same(other, both)
    assert both != attrs.evolve(both, env_steps=3)
    assert not same(both, attrs.evolve(both, env_steps=3))
    assert both != both.select(["cat"])
    assert repr(both).startswith("MultiAgentBatch[2 env steps](cat=Batch[2](")
    given = {"cat": rows(1)}
    held = MultiAgentBatch(given, env_steps=1)
    given["dog"] = rows(2)
    assert list(held) == ["cat"]
