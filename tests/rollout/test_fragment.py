"""Fragment against a list of rows for each environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.rollout.fragment import Fragment
from flowrl.testing import same


def row(step: int, num_envs: int) -> dict[str, Any]:
    """Numbers that name their step and environment."""
    number = step * num_envs + np.arange(num_envs)
    return {"number": number, "obs": np.stack([number, -number], 1).astype(np.float32)}


@pytest.mark.parametrize("chance", [1.0, 0.9, 0.1])
def test_each_environment_gets_its_own_rows_in_order(chance: float) -> None:
    """T1, D3: also after a state was loaded, in any amounts, and a batch that was cut does not change any more."""
    draw, fragment, num_envs = np.random.default_rng(0), Fragment(3), 3
    own: list[list[int]] = [[], [], []]
    cut: list[tuple[Any, Any]] = []
    for step in range(400):
        acted = draw.random(num_envs) < chance
        fragment.write(row(step, num_envs), None if acted.all() and draw.random() < 0.5 else acted)
        for env_id in np.flatnonzero(acted).tolist():
            own[env_id].append(step * num_envs + env_id)
        assert fragment.lengths().tolist() == [len(rows) for rows in own]
        assert fragment.rows == min(map(len, own))
        if draw.random() < 0.1:
            loaded = Fragment(num_envs)
            loaded.load_state_dict(fragment.state_dict())
            assert same(loaded.state_dict(), fragment.state_dict())
            fragment = loaded
        if draw.random() < 0.1 and fragment.rows:
            rows = int(draw.integers(1, fragment.rows + 1))
            batch = fragment.cut(rows)
            assert batch.number.T.tolist() == [each[:rows] for each in own]
            assert (batch.obs[..., 1] == -batch.number).all()
            own = [each[rows:] for each in own]
            cut.append((batch, batch.map(np.copy)))
    lengths, batch = fragment.lengths(), fragment.cut_all()
    assert [batch.number[:length, env_id].tolist() for env_id, length in enumerate(lengths.tolist())] == own
    assert not fragment.lengths().any()
    assert all(batch == then for batch, then in cut)


def test_steps_of_nobody_do_not_keep_another_policys_columns() -> None:
    fragment = Fragment(2)
    fragment.write({"number": np.arange(2)}, np.array([False, False]))
    fragment.write(row(1, 2), None)
    assert fragment.cut(1).number.tolist() == [[2, 3]]


def test_fragments_with_equal_rows_have_equal_states() -> None:
    """D5: whatever was written for environments that did not act."""
    fragments = Fragment(2), Fragment(2)
    for at, fragment in enumerate(fragments):
        for step, acted in enumerate(([True, True], [True, False])):
            number = np.array([step, at if step else 0])
            fragment.write({"number": number}, np.array(acted))
    assert same(*(fragment.state_dict() for fragment in fragments))


def test_steps_in_which_few_act_take_no_more_room_than_their_rows() -> None:
    """As with an asynchronous manager, of which one environment answers at a time."""
    fragment = Fragment(100)
    fragment.reserve(4)
    for step in range(1000):
        fragment.write({"number": np.arange(100)}, np.arange(100) == step % 100)
    assert fragment.rows == 10
    assert fragment._room < 100
