"""Pay-offs: players of a game against each other."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.envs import Environments
from flowrl.envs.games import Game, Turn
from flowrl.envs.games.tic_tac_toe import TicTacToe
from flowrl.errors import ConfigError
from flowrl.policies import DQNPolicy, RandomPolicy
from flowrl.policies.line_players import MCTS, OnePly, Perfect, played_out
from flowrl.policies.scripted import ScriptedPolicy
from flowrl.rollout import evaluate, payoffs
from flowrl.trainer.players import scripted


def showing(side: int) -> ScriptedPolicy:
    return ScriptedPolicy(lambda obs: np.full(len(obs), side))


def test_returns_are_those_of_every_pair_in_both_seatings() -> None:
    """Of matching pennies the even one wins if both show the same side."""
    table = payoffs({"heads": showing(0), "tails": showing(1)}, "flowrl:matching_pennies", episodes=3)
    even = np.array([[1.0, -1.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(table.returns, np.stack([even, -even], -1)[:, :, None].repeat(3, 2))
    assert table.mean("heads", "tails")[0] == 0
    assert table.shares("heads", "tails") == (0.5, 0.0, 0.5)


def test_the_games_are_those_of_evaluate_from_one_seed() -> None:
    players: dict[str, Any] = {"a": RandomPolicy, "b": partial(DQNPolicy, hidden=(4,), device="cpu", seed=1)}
    table = payoffs(players, "flowrl:tic_tac_toe", episodes=6, seed=3, num_envs=2)
    again = payoffs(players, "flowrl:tic_tac_toe", episodes=6, seed=3, num_envs=2)
    np.testing.assert_array_equal(table.returns, again.returns)
    np.testing.assert_array_equal(table.returns.sum(-1), 0, "it is zero-sum")
    assert table.mean("a", "b")[0] == -table.mean("b", "a")[0]
    assert table.mean("a", "a") == (0, 0)
    spaces = _spaces("flowrl:tic_tac_toe")
    made = {name: make(*spaces) for name, make in players.items()}
    sides = {"x": players["a"], "o": made["b"]}  # what makes a policy, and a policy
    played = evaluate(sides, "flowrl:tic_tac_toe", episodes=6, seed=3, num_envs=2, agents={"x": "x", "o": "o"})
    assert table.returns[0, 1, :, 0].tolist() == [each.return_ for each in played if each.agent == "x"]


def test_players_draw_after_the_env_steps_that_each_has_trained_for() -> None:
    """S8: whichever seat it has."""
    seen = set[tuple[str, int]]()

    class Noting(RandomPolicy):
        def __init__(self, name: str, *spaces: Any) -> None:
            super().__init__(*spaces)
            self.name = name

        def act(self, obs: Any, noise: Any, env_steps: int) -> Any:
            seen.add((self.name, env_steps))
            return super().act(obs, noise, env_steps)

    trained = {"early": 5, "late": 70}
    players = {name: partial(Noting, name) for name in trained}
    payoffs(players, "flowrl:matching_pennies", episodes=2, env_steps=trained, deterministic=False)
    assert seen == set(trained.items())


def test_perfect_play_never_loses() -> None:
    """And draws with itself; a look one move ahead wins where it can, and stops a line."""
    table = payoffs(
        {"perfect": Perfect, "one_ply": OnePly, "random": RandomPolicy}, "flowrl:tic_tac_toe", episodes=100, num_envs=50
    )
    assert table.ranked == ["perfect", "one_ply", "random"]
    assert [table.shares("perfect", other)[2] for other in table.players] == [0, 0, 0]
    assert table.shares("perfect", "perfect") == (0, 1, 0)


class Quick(MCTS):
    simulations = 100


@pytest.mark.parametrize("kind", [OnePly, Quick])
def test_who_looks_ahead_wins_before_it_defends(kind: Any) -> None:
    player = kind(*_spaces("flowrl:connect_four"))
    board = np.zeros((2, 6, 7), np.float32)
    board[:, 5, :3] = -1  # the other one threatens column 3
    board[1, 3:, 6] = 1  # its own threat is in column 6
    obs = Batch(board=board.reshape(2, -1), action_mask=np.ones((2, 7), np.int8))
    for seed in range(5):
        noise = np.random.default_rng(seed).random((2, player.draws))
        assert player.act(obs, noise, 0)["action"].tolist() == [3, 6]


def test_players_that_need_no_training_have_names() -> None:
    names = ("random", "one_ply", "mcts", "perfect")
    assert [scripted(name) for name in names] == [RandomPolicy, OnePly, MCTS, Perfect]


def test_a_game_is_played_out_for_the_gain_of_who_moves_first() -> None:
    """Where all moves lead to one end; and from the empty board, which 58.5 % win and 28.8 % lose, exactly."""
    wins, loses, draws = (
        (1, 1, 0, -1, -1, 1, 1, -1, -1),
        (-1, -1, 0, -1, 1, 1, 0, 1, -1),
        (1, -1, 1, 1, -1, -1, -1, 1, 0),
    )
    rules, draw = TicTacToe.rules(), np.random.default_rng(0)
    states = rules.states({"board": np.array([wins, loses, draws])})
    for _ in range(5):
        assert played_out(rules, states, draw.random((3, 9))).tolist() == [1, -1, 0]
    gains = played_out(rules, np.zeros((10_000, 2), np.uint64), draw.random((10_000, 9)))
    assert (gains > 0).mean() == pytest.approx(0.585, abs=0.02)
    assert (gains < 0).mean() == pytest.approx(0.288, abs=0.02)


def test_a_plain_search_beats_a_player_of_one_ply() -> None:
    table = payoffs({"search": Quick, "one_ply": OnePly}, "flowrl:tic_tac_toe", episodes=50, num_envs=50)
    won, _, lost = table.shares("search", "one_ply")
    assert won > 2 * lost


def test_a_plain_search_of_a_position_does_not_depend_on_others() -> None:
    """K1: nor do positions without a move, of those who wait, take part."""
    player = Quick(*_spaces("flowrl:connect_four"))
    assert player.draws == 1 + 100 * 42
    states = np.zeros((4, 2), np.uint64)
    for moves in ((0, 1, 2, 3), (3, 3, 1, 3)):
        states, _, _ = player.rules.play(states, np.array(moves))
    obs = player.rules.observe(states)
    obs.action_mask[2] = 0
    noise = np.random.default_rng(1).random((4, player.draws))
    together = player.act(obs, noise, 0)["action"]
    alone = [player.act(obs[[row]], noise[[row]], 0)["action"][0] for row in range(4)]
    assert together.tolist() == alone
    assert obs.action_mask[[0, 1, 3], together[[0, 1, 3]]].all()


class Short(Game):
    """`first` may take the prize before `second` has acted, whose loss it is."""

    possible_agents = ("first", "second")
    observation_spaces: ClassVar[Any] = dict.fromkeys(possible_agents, gymnasium.spaces.Box(0, 1, (1,)))
    action_spaces: ClassVar[Any] = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(2))

    def reset(self, seed: int) -> dict[str, Any]:
        return {"first": np.zeros(1, np.float32)}

    def step(self, actions: Any) -> Turn:
        if actions.get("first") == 0:
            return Turn({"second": np.zeros(1, np.float32)})
        return Turn({}, {"first": 1.0, "second": -1.0}, terminated=self.possible_agents)


def test_who_never_acts_in_a_game_may_gain_or_lose_in_it() -> None:
    table = payoffs({"a": showing(0), "b": showing(1), "c": RandomPolicy}, Short, episodes=5, num_envs=2)
    np.testing.assert_array_equal(table.returns, np.broadcast_to([1.0, -1.0], table.returns.shape))


@pytest.mark.parametrize(
    ("players", "env", "words"),
    [
        ({"a": RandomPolicy, "b": RandomPolicy}, "CartPole-v1", "has one agent: a pay-off table is of a game for two"),
        ({"a": RandomPolicy}, "flowrl:tic_tac_toe", "1 players, 4 games: expected at least 2 of each"),
        ({"a": Perfect, "b": RandomPolicy}, "flowrl:connect_four", "player 'a' as agent 'x': Perfect plays TicTacToe"),
        ({"a": {"x": showing(0)}, "b": showing(0)}, "flowrl:tic_tac_toe", "player 'a' has no policy for agent 'o'"),
    ],
)
def test_what_does_not_fit_is_refused(players: Any, env: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        payoffs(players, env, episodes=4)


def test_games_that_have_no_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="a against a: 4 of 4 games had not ended after 2 steps"):
        payoffs({"a": RandomPolicy, "b": RandomPolicy}, "flowrl:tic_tac_toe", episodes=4, max_steps=2)


def test_a_policy_of_another_game_is_refused() -> None:
    of_tic_tac_toe = DQNPolicy(*_spaces("flowrl:tic_tac_toe"), hidden=(4,), device="cpu")
    with pytest.raises(ConfigError, match=r"player 'a' has the observation space .*, but agent 'x' has"):
        payoffs({"a": of_tic_tac_toe, "b": RandomPolicy}, "flowrl:connect_four", episodes=4)


def _spaces(game: str) -> tuple[Any, Any]:
    seating = Environments(game).look(1).seating
    assert seating is not None
    return seating.kinds[0].observation_space, seating.kinds[0].action_space
