"""Games of OpenSpiel: every row that a seat gets is that of OpenSpiel's own loop, with the same actions and chance."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from flowrl.envs import make_env, make_manager
from flowrl.envs.adapters.open_spiel import OpenSpielGame, make
from flowrl.envs.games.seats import GameEnv, Of
from flowrl.errors import ConfigError

Rows = dict[str, list[Any]]

#: In turn, with chance, at once, at once with chance, paid on the way, for three, and for one.
GAMES = (
    "tic_tac_toe",
    "kuhn_poker(players=3)",
    "leduc_poker",
    "matching_pennies_3p",
    "goofspiel(players=2,num_cards=4)",
    "oshi_zumo(coins=6)",
    "markov_soccer(horizon=30)",
    "pig(players=3,horizon=20)",
    "catch",
)


def chosen(state: Any, player: int, at: int) -> int:
    """The same valid action whoever asks."""
    return int(np.random.default_rng([player, at]).choice(state.legal_actions(player)))


def in_their_loop(game: Any, seed: int) -> Rows:
    """As OpenSpiel's documentation plays a game; what a player gains adds up until its next turn."""
    players = range(game.num_players())
    rows: Rows = {f"player_{player}": [] for player in players}
    open_: dict[int, Any] = {}
    gained = dict.fromkeys(players, 0.0)
    chance, state = np.random.default_rng(seed), game.new_initial_state()
    informed = game.get_type().provides_information_state_tensor

    def answer(player: int, over: bool) -> list[float]:
        seen = state.information_state_tensor(player) if informed else state.observation_tensor(player)
        if player in open_:
            rows[f"player_{player}"].append((*open_.pop(player), gained[player], seen, over))
            gained[player] = 0.0
        return list(seen)

    while not state.is_terminal():
        if state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes())
            at = np.searchsorted(np.cumsum(probabilities), chance.random(), side="right")
            state.apply_action(outcomes[min(at, len(outcomes) - 1)])
            if state.is_chance_node():
                continue
        else:
            together = state.is_simultaneous_node()
            acting = players if together else [state.current_player()]
            actions = []
            for player in acting:
                seen = answer(player, False)
                actions.append(chosen(state, player, len(rows[f"player_{player}"])))
                open_[player] = seen, state.legal_actions_mask(player), actions[-1]
            if together:
                state.apply_actions(actions)
            else:
                state.apply_action(actions[0])
            if state.is_chance_node():
                continue
        for player, reward in enumerate(state.rewards()):
            gained[player] += reward
    for player in players:
        answer(player, True)
    return rows


def through_seats(game: OpenSpielGame, seed: int) -> Rows:
    """The rows of each seat."""
    env, over = GameEnv(game), False
    rows: Rows = {agent: [] for agent in game.possible_agents}
    open_: dict[str, Any] = {}
    obs, _ = env.reset(seed=seed)

    def seen(agent: int) -> list[float]:
        return list(obs["kind_0"]["obs"][agent].ravel())

    while not over:
        action = np.zeros(env.action_space.shape)
        for player, (agent, row) in enumerate(zip(rows, obs["seats"])):
            if row[Of.TURN]:
                mask = obs["kind_0"]["action_mask"][player].tolist()
                action[player] = chosen(game._state, player, len(rows[agent]))
                open_[agent] = seen(player), mask, int(action[player])
        obs, _, over, _, _ = env.step(action)
        for player, (agent, row) in enumerate(zip(rows, obs["seats"])):
            if row[Of.ANSWERED]:
                rows[agent].append((*open_.pop(agent), row[Of.REWARD], seen(player), bool(row[Of.TERMINATED])))
    return rows


@pytest.mark.needs("open_spiel")
@pytest.mark.parametrize("name", GAMES)
def test_rows_are_those_of_their_own_loop(name: str) -> None:
    """M1, M5: turns, masks, tensors, and rewards between turns."""
    game = make(name)
    for seed in range(5):
        own, theirs = through_seats(OpenSpielGame(game), seed), in_their_loop(game, seed)
        assert any(theirs.values())
        for agent, rows in theirs.items():
            for one, two in zip(own[agent], rows, strict=True):
                for ours, its in zip(one, two, strict=True):
                    np.testing.assert_allclose(ours, its, rtol=1e-6, err_msg=agent)


@pytest.mark.needs("open_spiel")
def test_chance_follows_the_seed_with_the_probabilities_of_the_game() -> None:
    """D1: each card is dealt as often."""
    game = OpenSpielGame(make("kuhn_poker"))
    cards = []
    for seed in range(300):
        first = game.reset(seed)["player_0"]["obs"]
        np.testing.assert_array_equal(first, game.reset(seed)["player_0"]["obs"])
        cards.append(int(first[2:5].argmax()))
    assert np.bincount(cards, minlength=3).min() > 75


@pytest.mark.needs("open_spiel")
def test_who_gains_most_has_won() -> None:
    game = OpenSpielGame(make("kuhn_poker"))
    game.reset(0)
    game.step({"player_0": 1})
    turn = game.step({"player_1": 0})  # folds
    assert turn.reward == {"player_0": 1.0, "player_1": -1.0}
    assert turn.info == {"player_0": {"is_success": True}, "player_1": {"is_success": False}}
    assert not any(obs["action_mask"].any() for obs in turn.obs.values())
    game = OpenSpielGame(make("matching_pennies_3p"))
    game.reset(0)
    assert game.step(dict.fromkeys(game.possible_agents, 0)).info == {}, "it is of general sum"


@pytest.mark.needs("open_spiel")
def test_the_state_of_the_game_is_what_all_players_know() -> None:
    game = OpenSpielGame(make("leduc_poker"))
    seen = game.reset(3)["player_0"]["obs"]
    assert game.state_space is not None
    assert game.state() in game.state_space
    np.testing.assert_array_equal(game.state()[: len(seen)], seen)
    assert game.state()[len(seen) :].any()


@pytest.mark.needs("open_spiel")
def test_an_action_that_is_not_valid_is_refused() -> None:
    """OpenSpiel itself takes it as a bet."""
    game = OpenSpielGame(make("kuhn_poker"))
    game.reset(0)
    with pytest.raises(
        ValueError, match=r"kuhn_poker\(\): action 7 of agent 'player_0' is not .* valid ones, \[0, 1\]"
    ):
        game.step({"player_0": 7})


@pytest.mark.needs("open_spiel")
def test_a_game_in_the_middle_goes_on_in_a_copy() -> None:
    """D3."""
    with make_manager("openspiel:leduc_poker", 3) as one, make_manager("openspiel:leduc_poker", 3) as two:
        one.launch(0)
        for _ in range(5):
            one.step(np.ones((3, 2), int))
        two.launch(1)
        two.load_state_dict(one.state_dict())
        for _ in range(20):
            np.testing.assert_equal(one.step(np.ones((3, 2), int)).next_obs, two.step(np.ones((3, 2), int)).next_obs)


@pytest.mark.needs("open_spiel")
def test_parameters_are_in_the_name_in_arguments_or_in_both() -> None:
    named, given = make("goofspiel(players=2,num_cards=4)"), make("goofspiel(players=2)", num_cards=4)
    assert str(named) == str(given) == str(make("goofspiel", players=2, num_cards=4))
    env = make_env(lambda: named)  # a game as an object
    assert isinstance(env, GameEnv)
    assert env.seating.agents == ("player_0", "player_1")
    env.reset(seed=0)
    assert "Point card" in env.render()


@pytest.mark.needs("open_spiel")
@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("kuhn_pokre", {}, "no game 'kuhn_pokre' in openspiel: did you mean 'kuhn_poker'"),
        ("goofspiel(cards=4)", {}, "cannot be made: Unknown parameter 'cards'. Available parameters are: .*num_cards"),
        ("goofspiel", {"players": "two"}, "cannot be made with {'players': 'two'}: Wrong type for parameter players"),
        ("mfg_garnet", {}, "is a mean-field game"),
        ("tarok", {}, r"draws chance by itself .* \(D1\)"),
        ("coin_game", {}, "has neither information_state_tensor nor observation_tensor"),
        ("crossword", {}, "has no tensor to observe, though it says so: .*unimplemented"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(name: str, args: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_manager(f"openspiel:{name}", 2, args)


@pytest.mark.needs("open_spiel")
def test_every_game_is_played_to_its_end_or_refused() -> None:
    spiel: Any = import_module("pyspiel")
    played = 0
    for kind in spiel.registered_games():
        slow, in_python = (
            ("bridge", "tiny_bridge_2p"),
            ("python_", "chat_game"),
        )  # the latter if something imported them
        if not kind.default_loadable or kind.short_name in slow or kind.short_name.startswith(in_python):
            continue
        try:
            env = make_env(f"openspiel:{kind.short_name}")
        except ConfigError:
            continue
        obs, _ = env.reset(seed=0)
        env.action_space.seed(0)
        over = False
        while not over:
            obs, _, over, _, _ = env.step(env.action_space.sample_for(obs))  # type: ignore[attr-defined]
        played += 1
    assert played > 90


def test_without_open_spiel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(ConfigError, match=r"needs open_spiel: pip install 'flowrl-engine\[openspiel\]'"):
        make_env("openspiel:kuhn_poker")
