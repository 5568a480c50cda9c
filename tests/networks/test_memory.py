"""Networks with a memory, and what both recurrent learners make of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.recurrent import Memory, recurrent_rows
from flowrl.networks.torch_rng import TorchStream
from flowrl.policies import R2D2Policy, RecurrentPPOPolicy
from tests.policies.recurrent_parts import make, steps

KINDS = (RecurrentPPOPolicy, R2D2Policy)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_unroll_equals_one_step_at_a_time(cell: Any) -> None:
    """T8: over sequences in which episodes begin; a state that is kept beyond such a step would show."""
    with TorchStream(0).swapped_in():
        memory = Memory(4, 6, cell)
        features, state = torch.randn(9, 3, 4), torch.randn(3, memory.width)
    begins = torch.zeros(9, 3, dtype=torch.bool)
    begins[[0, 4, 4, 7], [2, 0, 1, 1]] = True
    outputs, after = memory(features, state, begins)
    for env in range(3):
        one = state[env : env + 1]
        for t in range(9):
            one = torch.zeros_like(one) if begins[t, env] else one
            output, one = memory(features[t : t + 1, env : env + 1], one)
            torch.testing.assert_close(outputs[t, env], output[0, 0])
        torch.testing.assert_close(after[env], one[0])


@pytest.mark.parametrize("kind", KINDS)
def test_acting_equals_the_unroll(kind: Any) -> None:
    """T8: what the mode gives step by step, with the states that it is given back, is what the learner sees."""
    policy = make(kind)
    batch, mode = steps(), policy.collect_mode
    fresh = np.repeat(mode.initial_state(), 3, 0)
    state, values = fresh, []
    for t in range(7):
        begins = batch.episode_id[t] != batch.episode_id[max(t - 1, 0)]
        state = np.where(begins[:, None], fresh, state)
        values.append(mode.value(batch.obs[t], state))
        state = mode.act(batch.obs[t], np.zeros((3, mode.draws)), 0, state)["next_state"]
    rows = recurrent_rows(batch).to_torch()
    with torch.no_grad():
        given, _ = policy.model(rows.obs, rows.state[0], rows.begins)
    found = given[1] if kind is RecurrentPPOPolicy else given.max(1).values
    np.testing.assert_allclose(found.reshape(7, 3).numpy(), np.stack(values), atol=1e-6)


def test_an_episode_begins_after_an_end_and_where_provenance_breaks() -> None:
    """T8: terminated, truncated, or cut without a word; padding begins nothing."""
    no = np.zeros((5, 3), bool)
    ends = [no.copy(), no.copy()]
    ends[0][1, 0] = ends[1][2, 1] = True
    episode = np.array([[0, 0, 0, 0, 0]] * 3).T
    episode[3:, 2] = 1
    mask = ~no
    mask[2:, 0] = False
    batch = Batch(obs=np.ones((5, 3, 2)), state=np.ones((5, 3, 2)), terminated=ends[0], truncated=ends[1])
    found = recurrent_rows(batch.replace(episode_id=episode, mask=mask)).begins
    assert list(zip(*np.nonzero(found))) == [(3, 1), (3, 2)]


def test_padding_holds_what_an_encoder_can_take() -> None:
    """N6: choices that start at 1 have no 0."""
    mask = np.array([[True], [True], [False]])
    no = np.zeros((3, 1), bool)
    batch = Batch(obs=np.array([[2], [3], [0]]), state=np.ones((3, 1, 2)), terminated=no, truncated=no, mask=mask)
    assert recurrent_rows(batch).obs.T.tolist() == [[2, 3, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_no_sequences_is_refused(kind: Any) -> None:
    """Rows, rows without states, and sequences that are no longer than their burn-in."""
    prepare, batch = make(kind).learn_mode.prepare, steps()
    batch = batch.replace(advantage=batch.reward, target=batch.reward, value=batch.reward, logp=batch.reward)
    with pytest.raises(SchemaError, match="SequenceReplayBuffer"):
        prepare(batch.flat())
    with pytest.raises(SchemaError, match="learns from its recorded states"):
        prepare(batch.select([name for name in batch if name != "state"]))
    mask = np.ones((7, 3), bool)
    mask[:, 1] = False
    with pytest.raises(SchemaError, match="1 of 3 sequences of 7 steps have no step that counts"):
        prepare(batch.replace(mask=mask))


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_does_not_act_for_a_memory(kind: Any) -> None:
    with pytest.raises(ConfigError, match="numpy"):
        make(kind, act_backend="numpy")
