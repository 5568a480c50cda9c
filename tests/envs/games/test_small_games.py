"""flowrl's own games: rules by exhaustive play where that is short, and values that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.envs.games import GAMES, Turn, make
from flowrl.envs.games.connect_four import ConnectFour
from flowrl.envs.games.kuhn_poker import KuhnPoker
from flowrl.envs.games.seats import GameEnv
from flowrl.envs.games.tic_tac_toe import TicTacToe
from flowrl.errors import ConfigError


def played(game: Any, moves: Sequence[int], seed: int = 0) -> Turn:
    """The turn that moves, one at a time, lead to."""
    turn = Turn(game.reset(seed))
    for move in moves:
        (agent,) = turn.obs
        turn = game.step({agent: move})
    return turn


def test_all_of_tic_tac_toe() -> None:
    """5478 positions, 958 of them final: 626 won by the first, 316 by the second, 16 drawn; best play draws."""
    game, finals, seen = TicTacToe(), Counter[float](), dict[bytes, float]()

    def value(moves: tuple[int, ...]) -> float:
        """What the first player gets with best play."""
        turn = played(game, moves)
        ((agent, obs), *_) = turn.obs.items()
        mine = 1 if agent == "x" else -1
        position = (mine * obs["board"]).astype(np.int8).tobytes()
        if position not in seen:
            if turn.terminated:
                seen[position] = turn.reward.get("x", 0.0)
                finals[seen[position]] += 1
                assert {who for who in "xo" if turn.info[who]["is_success"]} == {
                    w for w, r in turn.reward.items() if r > 0
                }
            else:
                assert (obs["action_mask"] == (obs["board"] == 0)).all()
                values = [value((*moves, move)) for move in np.flatnonzero(obs["action_mask"]).tolist()]
                seen[position] = mine * max(mine * each for each in values)
        return seen[position]

    assert value(()) == 0
    assert (len(seen), finals) == (5478, {1.0: 626, -1.0: 316, 0.0: 16})


def test_connect_four_ends_with_the_first_four_in_a_line() -> None:
    draw, outcomes = np.random.default_rng(0), Counter[float]()
    for game in [ConnectFour()] * 40:
        board, turn = np.zeros((6, 7), int), Turn(game.reset(0))
        for mine in [1, -1] * 21:
            assert not has_four(board)
            ((agent, obs),) = turn.obs.items()
            assert agent == {1: "x", -1: "o"}[mine]
            assert (obs["board"].reshape(6, 7) == mine * board).all()
            assert (obs["action_mask"] == (board == 0).any(0)).all()
            column = int(draw.choice(np.flatnonzero(obs["action_mask"])))
            board[np.flatnonzero(board[:, column] == 0)[-1], column] = mine
            turn = game.step({agent: column})
            if turn.terminated:
                break
        gained = turn.reward.get("x", 0.0)
        assert gained == (mine if has_four(board) else 0)
        assert gained or board.all()
        outcomes[gained] += 1
    assert outcomes[1] > 10
    assert outcomes[-1] > 5


def has_four(board: Any) -> bool:
    sight = [list(board), list(board.T)]
    sight += [[each.diagonal(at) for at in range(-5, 7)] for each in (board, board[:, ::-1])]
    texts = ["".join("o.x"[square + 1] for square in line) for lines in sight for line in lines]
    return any("xxxx" in text or "oooo" in text for text in texts)


def test_no_stone_goes_where_there_is_no_room() -> None:
    with pytest.raises(ValueError, match=r"there is no room at 4: see action_mask\n\.\.\.\n\.x\.\n\.\.\."):
        played(TicTacToe(), [4, 4])
    with pytest.raises(ValueError, match="there is no room at 3"):
        played(ConnectFour(), [3] * 7)


#: What the first player gets if it has the higher card, and if it has the lower one.
KUHN = {(0, 0): (1, -1), (0, 1, 0): (-1, -1), (0, 1, 1): (2, -2), (1, 0): (1, 1), (1, 1): (2, -2)}


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four"])
def test_a_model_has_the_rules_of_its_game(name: str) -> None:
    """Forty games side by side in the model, each played in the game too."""
    model, draw = make(name).model(), np.random.default_rng(1)
    assert model is not None
    games = [make(name) for _ in range(40)]
    turns = [Turn(game.reset(0)) for game in games]
    states = np.zeros((40, 2), np.uint64)
    for count in range(model.longest):
        agents, seen = zip(*(next(iter(turn.obs.items())) for turn in turns))
        observed = model.observe(states)
        assert (observed["board"] == [obs["board"] for obs in seen]).all()
        assert (observed["action_mask"] == [obs["action_mask"] for obs in seen]).all()
        assert (model.states(observed) == states).all()
        assert (model.legal(states) == observed["action_mask"]).all()
        assert (model.moves(states) == count).all()
        actions = np.array([draw.choice(np.flatnonzero(mask)) for mask in observed["action_mask"]])
        states, gain, over = model.play(states, actions)
        turns = [game.step({agent: action}) for game, agent, action in zip(games, agents, actions)]
        assert gain.tolist() == [turn.reward.get(agent, 0.0) for turn, agent in zip(turns, agents)]
        assert over.tolist() == [bool(turn.terminated) for turn in turns]
        going = np.flatnonzero(~over).tolist()
        games, turns, states = [games[at] for at in going], [turns[at] for at in going], states[going]
        if not going:
            break
    assert count > model.longest // 2


def test_all_of_kuhn_poker() -> None:
    """Kuhn 1950: every deal and play, and the value of the equilibria."""
    game, deals = KuhnPoker(), dict[tuple[int, int], int]()
    for seed in range(100):
        first = game.reset(seed)["first"]
        deals.setdefault((int(first[:3].argmax()), game.cards[1]), seed)
    assert len(deals) == 6
    for (mine, other), seed in deals.items():
        for past, paid in KUHN.items():
            turn = played(game, past, seed)
            assert turn.reward == {"first": paid[mine < other], "second": -paid[mine < other]}
            assert set(turn.terminated) == set(turn.reward)

    for bluff in (0.0, 0.2, 1 / 3):
        bets = {  # the chance of action 1 with each card, by what was done before
            (): (bluff, 0.0, 3 * bluff),
            (0,): (1 / 3, 0.0, 1.0),
            (1,): (0.0, 1 / 3, 1.0),
            (0, 1): (0.0, bluff + 1 / 3, 1.0),
        }
        total = 0.0
        for cards, past in product(deals, KUHN):
            chance = 1.0
            for at, action in enumerate(past):
                bet = bets[past[:at]][cards[at % 2]]
                chance *= bet if action else 1 - bet
            total += chance * played(game, past, deals[cards]).reward["first"] / 6
        assert total == pytest.approx(-1 / 18)


def test_a_player_of_kuhn_poker_sees_its_card_and_what_was_done() -> None:
    game = KuhnPoker()
    obs = played(game, [0, 1]).obs["first"]
    assert np.flatnonzero(obs).tolist() == [game.cards[0], 3, 6]
    assert np.flatnonzero(played(game, [1]).obs["second"]).tolist() == [game.cards[1], 4]


def test_matching_pennies() -> None:
    for even, odd in product(range(2), repeat=2):
        game = make("matching_pennies")
        game.reset(0)
        turn = game.step({"even": even, "odd": odd})
        assert turn.reward == {"even": 1 if even == odd else -1, "odd": -1 if even == odd else 1}


def test_the_two_step_game_pays_as_in_its_paper() -> None:
    """Rashid et al. 2018, section 5."""
    game: Any = make("two_step")
    for choice, unread, first, second in product(range(2), repeat=4):
        assert game.reset(0)["first"].tolist() == [1, 0, 0]
        turn = game.step({"first": choice, "second": unread})
        assert turn.reward == {}
        assert turn.obs["second"].argmax() == 1 + choice
        paid = [[[7, 7], [7, 7]], [[0, 1], [1, 8]]][choice][first][second]
        assert game.step({"first": first, "second": second}).reward == {"first": paid, "second": paid}


def test_each_pole_falls_on_its_own() -> None:
    """M1: its rows are those of a CartPole of its own."""
    for max_steps in (500, 12):
        game: Any = make("two_cartpoles", max_steps=max_steps)
        seeds = np.random.SeedSequence(3).generate_state(2).tolist()
        alone = {who: gymnasium.make("CartPole-v1", max_episode_steps=max_steps) for who in ("left", "right")}
        obs = {who: env.reset(seed=seed)[0] for (who, env), seed in zip(alone.items(), seeds)}
        np.testing.assert_equal(game.reset(3), obs)
        turn, acting, step = Turn(obs), set(alone), 0
        while acting:
            actions = {who: {"left": 0, "right": step % 2}[who] for who in acting}
            turn, step = game.step(actions), step + 1
            for who, action in actions.items():
                seen, reward, terminated, truncated, _ = alone[who].step(action)
                np.testing.assert_equal((turn.obs[who], turn.reward[who]), (seen, reward))
                assert (who in turn.terminated, who in turn.truncated) == (terminated, truncated)
            acting -= {*turn.terminated, *turn.truncated}
            assert turn.obs.keys() == actions.keys()
        assert step == max_steps or max_steps == 500
        game.close()


@pytest.mark.parametrize("name", GAMES)
def test_every_game_keeps_its_contract(name: str) -> None:
    """M6, D1: with valid random actions; games of chance deal by their seed alone; a saved one goes on."""
    from flowrl.envs.masks import valid_sample

    @cache
    def returns() -> list[Any]:
        env, found = GameEnv(make(name)), []
        spaces = env.game.action_spaces
        for agent, space in spaces.items():
            space.seed(len(agent))
        for seed in range(5):
            obs, over, total = env.reset(seed=seed)[0], False, 0.0
            while not over:
                action = np.zeros(env.action_space.shape)
                for agent in env._turn:
                    kind = env.seating.kind_of(agent)
                    at, stack = kind.agents.index(agent), obs[kind.name]
                    seen = {key: part[at] for key, part in stack.items()} if isinstance(stack, dict) else stack[at]
                    action[env.seating.action_slices[agent]] = valid_sample(spaces[agent], seen)
                obs, gain, terminated, truncated, _ = env.step(action)
                assert env.observation_space.contains(obs)
                total, over = total + gain, terminated or truncated
            found.append((total, obs["seats"].tolist()))
        return found

    first = returns()
    returns.cache_clear()
    assert returns() == first
    if name not in ("two_cartpoles", "two_step"):
        assert all(total == 0 for total, _ in first)


def test_an_unknown_game_is_named() -> None:
    with pytest.raises(ConfigError, match="no game 'tictactoe' in flowrl: did you mean 'tic_tac_toe'"):
        make("tictactoe")
