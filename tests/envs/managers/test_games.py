"""GameManager: the episodes and the steps of seats, whoever steps and resets the games."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from flowrl.envs import EnvManager, VectorEnvManager
from flowrl.envs.games.seats import Of, Seating
from flowrl.envs.managers.games import GameManager, Seats, is_of_games
from flowrl.errors import CheckpointError
from flowrl.testing import same
from tests.games import ACTIONS, AGENTS, RandomGame, made

MAKES: dict[str, Any] = {
    "local": EnvManager,
    **{mode.name: partial(lambda mode, envs: in_vector(mode, envs), mode) for mode in AutoresetMode},
}
every_kind = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def in_vector(mode: AutoresetMode, envs: list[Any]) -> VectorEnvManager:
    return VectorEnvManager(SyncVectorEnv([partial(_itself, env) for env in envs], autoreset_mode=mode))


def _itself(env: Any) -> Any:
    return env


def games_of(make: Any, alike: bool = True) -> GameManager:
    games = GameManager(make([made("mixed", alike) for _ in range(3)]), Seating.of(RandomGame("mixed", alike)))
    games.launch(seed=2)
    return games


def act(games: GameManager, seats: list[Seats], draw: np.random.Generator) -> tuple[list[Any], Any]:
    """Random actions of all whose turn it is, and what comes of them; who acted, by seat (game, agent)."""
    acted = []
    for each in seats:
        actions = draw.integers(ACTIONS, size=each.num_envs)
        each.put(actions, each.ready)
        rows = np.flatnonzero(each.ready).tolist()
        acted += [(int(each.env_id[row]), int(each.agent[row])) for row in rows]
    return acted, games.step()


@every_kind
@pytest.mark.parametrize("alike", [True, False])
def test_seats_and_games_have_their_episodes(make: Any, alike: bool) -> None:
    """M1, M4, M5, M6, T1: as a count of every answer says; the echo of an action is in its seat's next observation."""
    games, draw = games_of(make, alike), np.random.default_rng(0)
    assert is_of_games(games.games)
    seats = [Seats(games, AGENTS)] if alike else [Seats(games, ("ann", "cid")), Seats(games, ("bob",))]
    returns, lengths, steps = dict[Any, float](), dict[Any, int](), dict[int, int]()
    sent: dict[Any, int] = {}
    finished = 0
    for _ in range(120):
        numbers, t = games.games.episode_id.copy(), games.t.copy()
        acted, stepped = act(games, seats, draw)
        for env_id, agent in acted:
            sent[env_id, agent] = int(games.actions[env_id, agent])
            assert t[env_id, agent] == lengths.get((env_id, agent), 0)
        moved = np.ones(3, bool) if stepped.acted is None else stepped.acted
        for env_id in np.flatnonzero(moved).tolist():
            steps[env_id] = steps.get(env_id, 0) + 1
        for each in seats:
            result = each.result(stepped)
            for row in np.flatnonzero(result.acted).tolist():
                seat = int(each.env_id[row]), int(each.agent[row])
                echo = sent.pop(seat)
                ends = result.terminated[row] or result.truncated[row]
                assert ends or result.next_obs[row][-2] == echo  # at its end it may see nothing new
                assert result.next_obs[row][-5] == seat[1]
                returns[seat] = returns.get(seat, 0.0) + float(result.reward[row])
                lengths[seat] = lengths.get(seat, 0) + 1
            assert not result.reward[~result.acted].any()
            assert not (result.terminated | result.truncated)[~result.acted].any()
        episodes = games.drain()
        over = sorted({episode.env_id for episode in episodes})
        assert over == np.flatnonzero(moved & (stepped.terminated | stepped.truncated)).tolist()
        for env_id in over:
            finished += 1
            of_game = {each.agent: each for each in episodes if each.env_id == env_id}
            assert {each.episode_id for each in of_game.values()} == {numbers[env_id]}
            assert (of_game[""].length, of_game[""].return_) == (steps.pop(env_id), 0.0)
            for agent, name in enumerate(AGENTS):
                seat = env_id, agent
                assert (name in of_game) == (seat in lengths)
                if name in of_game:
                    assert (of_game[name].return_, of_game[name].length) == (returns.pop(seat), lengths.pop(seat))
                assert seat not in sent
    assert finished > 20


def test_a_state_has_the_steps_of_the_seats() -> None:
    """D3, D5: and the episodes that nobody has asked for."""
    games, other = games_of(EnvManager), games_of(EnvManager)
    seats, theirs = Seats(games, AGENTS), Seats(other, AGENTS)
    for _ in range(30):
        act(games, [seats], np.random.default_rng(1))
    state = copy.deepcopy(games.state_dict())
    assert games.finished
    other.load_state_dict(state)
    assert same(other.state_dict(), state)
    for seed in range(20):
        for manager, of in ((games, seats), (other, theirs)):
            act(manager, [of], np.random.default_rng(seed))
        np.testing.assert_array_equal(games.t, other.t)
        np.testing.assert_array_equal(games.turn, other.turn)
    assert games.drain() == other.drain()
    state["seats"]["t"] = state["seats"]["t"][:2]
    with pytest.raises(CheckpointError, match="a number for each of 3 agents of 3 games"):
        other.load_state_dict(state)


def test_seats_that_others_play_are_not_theirs() -> None:
    """M7: neither whose turn it is, nor who has an answer."""
    games = games_of(EnvManager)
    mine, theirs = Seats(games, AGENTS), Seats(games, AGENTS)
    for game in range(3):
        mine.leave_to_others(game, np.array([True, False, False]))
        theirs.leave_to_others(game, np.array([False, True, True]))
    for seed in range(10):
        turn = games.turn.reshape(-1)
        np.testing.assert_array_equal(mine.ready | theirs.ready, turn)
        assert not (mine.ready & theirs.ready).any()
        assert not mine.ready[mine.agent == 0].any()
        _, stepped = act(games, [mine, theirs], np.random.default_rng(seed))
        answered = (stepped.next_obs["seats"][..., Of.ANSWERED] != 0).reshape(-1)
        np.testing.assert_array_equal(mine.result(stepped).acted | theirs.result(stepped).acted, answered)
