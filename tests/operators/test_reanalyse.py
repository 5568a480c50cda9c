"""Reanalyse and JoinTurns: what a search finds again is stored where the old is, and seats of games become games."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch, ReplayBuffer, SequenceReplayBuffer
from flowrl.engine.run import resources_of
from flowrl.errors import PlanError, SchemaError
from flowrl.operators import Episodes, JoinTurns, Reanalyse
from flowrl.plans import MuZero
from tests.plans.small import SMALL


class Doubling:
    """A policy whose searches find twice what a step has as its observation."""

    clock = "env_steps"

    def reanalysed(self, obs: Any) -> dict[str, Any]:
        return {"search_value": 2 * obs, "search_policy": np.repeat(2 * obs[:, None], 2, 1)}


def workers(policy: Any) -> Any:
    return SimpleNamespace(policy=policy, clock="env_steps")


def fragment(first: int, steps: int, end: bool = False) -> Batch:
    """Steps of two environments, numbered by their observation."""
    obs = np.float32(first + np.arange(2 * steps).reshape(steps, 2))
    ended = np.zeros((steps, 2), bool)
    ended[-1] = end
    return Batch(
        obs=obs,
        reward=obs,
        terminated=ended,
        truncated=np.zeros_like(ended),
        search_value=-obs,
        search_policy=np.repeat(-obs[..., None], 2, 2),
    )


def test_what_a_search_finds_again_replaces_the_old_where_it_is_still_stored() -> None:
    """K5, P4: of drawn steps, padding apart; not of those overwritten since, and nothing else changes."""
    buffer = SequenceReplayBuffer(20, length=4, overlap=1, seed=0)
    buffer.add(fragment(1, 6, end=True))
    before, drawn = buffer.columns("obs", "reward", "terminated"), buffer.sample(40)
    again = Reanalyse(workers(Doubling()), buffer)
    assert again(drawn) is drawn
    rows = buffer[:]
    assert (rows["search_value"] == 2 * rows.obs).all()
    assert (rows["search_policy"] == 2 * rows.obs[:, None]).all()
    for name, column in before.items():
        assert (buffer.columns(name)[name] == column).all()
    seen = drawn.obs[drawn.mask]
    assert again.context.metrics.drain("value_shift") == pytest.approx([float((3 * seen).mean())])
    assert again.context.counters["reanalysed"] == len(seen)
    buffer.add(fragment(101, 6))  # 2 of the 6 old steps of each environment are overwritten
    fresh = buffer.columns("search_value")["search_value"].copy()
    again(drawn)
    gone = np.isin(drawn.obs[0], (1, 2, 3, 4))
    assert again.context.counters["outdated"] == int(drawn.mask[:, gone].sum()) > 0
    assert (buffer.columns("search_value")["search_value"] == fresh).all()


def test_what_cannot_be_searched_again_is_refused() -> None:
    buffer = SequenceReplayBuffer(20, length=4, seed=0)
    with pytest.raises(PlanError, match="SimpleNamespace does not search"):
        Reanalyse(workers(SimpleNamespace()), buffer)
    with pytest.raises(PlanError, match="Reanalyse replaces columns of a SequenceReplayBuffer"):
        Reanalyse(workers(Doubling()), ReplayBuffer(20))
    buffer.add(fragment(1, 6, end=True))
    drawn = buffer.sample(2)
    with pytest.raises(SchemaError, match=r"cannot replace the column 'search' by .*: there is none"):
        buffer.replace(drawn, Batch(search=drawn.obs))
    with pytest.raises(SchemaError, match="cannot replace the column 'search_value'"):
        buffer.replace(drawn, Batch(search_value=drawn["search_policy"]))


def test_seats_of_games_become_games_of_moves_in_turn() -> None:
    """K6: from the empty board on each move adds one stone, and only the last gains, for who makes it."""
    with MuZero(config={**SMALL["muzero turns"], "buffer_size": 1000, "seed": 4}) as trainer:
        trainer.train(env_steps=120)
        (buffer,) = [each for each in resources_of(trainer.plan).values() if isinstance(each, ReplayBuffer)]
        rows = buffer[:]
    stones, first = np.abs(rows.obs["board"]).sum(1), 0
    for last in np.flatnonzero(rows.terminated).tolist():
        assert stones[first : last + 1].tolist() == list(range(last + 1 - first))
        assert not rows.reward[first:last].any()
        assert rows.reward[last] == 1 or stones[last] == 8
        first = last + 1
    assert first == len(rows) > 50


def seats(**columns: Any) -> Batch:
    """Whole games of two moves each, that the second player wins; side by side, the seats of one after another's."""
    count = len(columns["env_id"])
    who = {name: np.repeat(column, 2)[None] for name, column in columns.items()}
    agent, end = np.tile([[0, 1]], count), np.ones((1, 2 * count), bool)
    won = {"reward": 2.0 * agent - 1, "action": np.arange(2 * count)[None], "agent": agent, "t": 0 * agent}
    return Batch(**who, **won, terminated=end, truncated=~end)


def test_games_of_the_same_number_in_several_workers_stay_apart() -> None:
    """K6: what a worker calls environment 0, episode 0 is another game than what the next one does."""
    games = seats(worker=[0, 1, 0], env_id=[0, 0, 1], episode_id=[0, 0, 0])
    assert JoinTurns()(Episodes()(games)).action.T.tolist() == [[0, 1], [4, 5], [2, 3]]


@pytest.mark.parametrize("reward", [[[1.0, 1.0]], [[0.5, -0.25]]])
def test_gains_that_are_no_loss_of_the_other_are_refused(reward: list[list[float]]) -> None:
    """K6: what one gains the other loses."""
    games = seats(env_id=[3], episode_id=[7])
    with pytest.raises(SchemaError, match=r"in env_id 3, episode_id 7, the moves gain .* as the loss of the other"):
        JoinTurns()(Episodes()(games.replace(reward=np.array(reward))))


def test_agents_who_do_not_move_in_turn_or_gain_before_the_end_are_refused() -> None:
    """K6: but for games that a fault has cut, which are dropped."""
    moves: dict[str, Any] = {
        "reward": [[0.0, 0.0], [0.0, 0.0]],
        "agent": [[0, 1], [0, 1]],
        "env_id": [[0, 0], [0, 0]],
        "episode_id": [[0, 0], [0, 0]],
        "t": [[0, 0], [1, 1]],
        "terminated": [[False, False], [True, True]],
        "truncated": [[False, False], [False, False]],
    }
    assert JoinTurns()(Episodes()(Batch(moves))).reward.shape == (4, 1)
    with pytest.raises(SchemaError, match=r"the moves gain \[0\.0, 1\.0, 0\.0, 0\.0\]: expected nothing"):
        JoinTurns()(Episodes()(Batch({**moves, "reward": [[0.0, 1.0], [0.0, 0.0]]})))
    moves["agent"] = [[1, 2], [1, 2]]
    with pytest.raises(SchemaError, match="expected two agents in turn, the first one first"):
        JoinTurns()(Episodes()(Batch(moves)))
    moves["truncated"] = [[False, False], [True, True]]
    dropping = JoinTurns()
    assert dropping(Episodes()(Batch(moves))).rows == 0
    assert dropping.context.counters["games_dropped"] == 1
