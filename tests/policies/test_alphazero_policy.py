"""AlphaZero's policy: how it acts by search, and its loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.envs.games import make
from flowrl.errors import ConfigError
from flowrl.policies import AlphaZeroPolicy
from flowrl.policies.alphazero import with_noise
from flowrl.policies.search import tree_search

NOUGHTS = make("tic_tac_toe")
SPACES = NOUGHTS.observation_spaces["x"], NOUGHTS.action_spaces["x"]


def policy(**settings: Any) -> AlphaZeroPolicy:
    given = {"hidden": (16,), "simulations": 20, "device": "cpu", **settings}
    return AlphaZeroPolicy(*SPACES, env="flowrl:tic_tac_toe", **given)


def boards(*texts: str) -> Batch:
    """Observations of these boards by x."""
    board = np.array([[{"x": 1, "o": -1, ".": 0}[square] for square in text] for text in texts], np.float32)
    return Batch(board=board, action_mask=(board == 0).astype(np.int8))


OBS = boards(".........", "x...o....", "xo.xo.o..")


def test_rows_have_what_the_search_found() -> None:
    """K2; in evaluation the move with the most visits."""
    made = policy()
    row = made.eval_mode.act(OBS, np.empty((3, 0)), 0)
    found = tree_search(made.game, made.game.states(OBS), made.judged, simulations=20, c_puct=made.c_puct)
    assert (row["visits"] == found.visits).all()
    assert (row["visits"].sum(1) == 20).all()
    assert not row["visits"][OBS["action_mask"] == 0].any()
    assert (row["action"] == found.visits.argmax(1)).all()
    assert row["search_value"] == pytest.approx(found.value)


def test_a_row_is_that_of_its_own_noise_and_position() -> None:
    """K1, D2: in a batch of this size, whatever else is in it."""
    made, noise = policy(root_noise=0.5), np.random.default_rng(0).random((3, 10))
    row = made.collect_mode.act(OBS, noise, 0)
    other_noise = np.stack([noise[2], noise[1], noise[0]])
    others = made.collect_mode.act(boards("..o......", "x...o....", "........."), other_noise, 0)
    for name in row:
        assert (row[name][1] == others[name][1]).all()
    again = made.collect_mode.act(OBS, np.roll(noise, 1, 0), 0)
    assert (row["visits"] != again["visits"]).any()


def test_moves_are_drawn_by_their_visits_at_first() -> None:
    """At temperature 1 in proportion, at a low one and later in the game those with the most visits."""
    noise = np.random.default_rng(0).random((500, 10))
    noise[:, :9] = 0.5
    start = boards(*["........."] * 500)
    drawn = policy().collect_mode.act(start, noise, 0)
    shares = np.bincount(drawn["action"], minlength=9) / 500
    assert shares == pytest.approx(drawn["visits"][0] / 20, abs=0.06)
    for settings in ({"temperature": 0.001}, {"exploring_moves": 0}):
        row = policy(**settings).collect_mode.act(start, noise, 0)
        assert (row["visits"][np.arange(500), row["action"]] == row["visits"].max(1)).all()
    later = policy(exploring_moves=2).collect_mode.act(boards(*["x...o...."] * 500), noise, 0)
    assert (later["action"] == later["visits"].argmax(1)).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_noise_of_the_root_is_of_a_dirichlet_distribution(alpha: float) -> None:
    """Over k legal moves: mean 1 / k, variance (k - 1) / (k² (k · alpha + 1))."""
    uniform, legal = np.random.default_rng(0).random((20_000, 5)), np.array([[True, False, True, True, False]])
    prior = np.array([[0.5, 0.0, 0.25, 0.25, 0.0]])
    mixed = with_noise(prior, np.repeat(legal, 20_000, 0), uniform, 0.4, alpha)
    noise = (mixed - 0.6 * prior) / 0.4
    assert mixed.sum(1) == pytest.approx(1)
    assert not mixed[:, [1, 4]].any()
    assert noise[:, legal[0]].mean(0) == pytest.approx([1 / 3] * 3, abs=0.01)
    assert noise[:, legal[0]].var(0) == pytest.approx([2 / (9 * (3 * alpha + 1))] * 3, rel=0.05)
    assert (with_noise(prior, legal, np.zeros((1, 5)), 0.0, alpha) == prior).all()


@pytest.mark.parametrize("q_ratio", [0.0, 0.25])
def test_the_loss_is_that_of_an_obvious_loop(q_ratio: float) -> None:
    """Silver et al. 2018, eq. 1, or with what the search found in the target; a game that was cut has no outcome."""
    made, draw = policy(value_coef=0.5, q_ratio=q_ratio), np.random.default_rng(0)
    visits = draw.integers(1, 9, (3, 9)) * OBS["action_mask"]
    outcome, discount = np.array([1.0, -1.0, 0.0]), np.array([0, 0, 1], np.float32)
    found = np.array([0.5, 0.25, -1.0], np.float32)
    rows = Batch(obs=OBS, visits=visits, reward=outcome, discount=discount, search_value=found)
    with torch.no_grad():
        _, scalars = made.learn_mode.loss(made.learn_mode.tensors(made.learn_mode.prepare(rows)))
        logits, values = made.model(OBS.to_torch("cpu"))
    policy_loss = value_loss = 0.0
    for row in range(3):
        likely = torch.softmax(logits[row], 0).tolist()
        for move in np.flatnonzero(visits[row]):
            policy_loss -= visits[row, move] / visits[row].sum() * math.log(likely[move]) / 3
        if discount[row] == 0:
            target = (1 - q_ratio) * outcome[row] + q_ratio * found[row]
            value_loss += (target - float(values[row])) ** 2 / 3
    expected = {"policy_loss": policy_loss, "value_loss": value_loss, "loss": policy_loss + 0.5 * value_loss}
    assert {name: float(value) for name, value in scalars.items()} == pytest.approx(expected, rel=1e-5)


def test_it_learns_what_is_certain() -> None:
    made = policy(learning_rate=0.02)
    rows = Batch(obs=OBS, visits=np.eye(9, dtype=np.int32)[[4, 8, 2]], reward=np.array([0.0, 1.0, -1.0]))
    rows["discount"] = rows["search_value"] = np.zeros(3, np.float32)
    for _ in range(200):
        made.learn_mode.learn_from(rows)
    prior, value = made.judged(made.game.states(OBS))
    assert prior.argmax(1).tolist() == [4, 8, 2]
    assert value == pytest.approx([0, 1, -1], abs=0.1)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("CartPole-v1", "it is no game"),
        ("flowrl:kuhn_poker", "the game has none"),
        ("flowrl:connect_four", "has 7 moves, but there are 9 actions"),
    ],
)
def test_a_game_without_a_model_is_refused(env: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AlphaZeroPolicy(*SPACES, env=env)
    with pytest.raises(ConfigError, match="simulations=0"):
        policy(simulations=0)
