"""Search: the visits of the obvious recursion, in many positions at once, and the moves that decide a game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.envs.games import GameModel, make
from flowrl.networks.sampling import Array
from flowrl.policies.search import Evaluate, ModelStep, gumbel_search, halving, tree_search
from tests.policies import one_gumbel_tree, one_tree

GAMES = ("tic_tac_toe", "connect_four")


def model_of(game: str) -> Any:
    model = make(game).model()
    assert model is not None
    return model


def positions(model: GameModel, count: int, seed: int) -> Array:
    """Positions in games at random, in which somebody is to move."""
    draw, found = np.random.default_rng(seed), []
    start = np.zeros((1, 2), np.uint64)
    while len(found) < count:
        states, moves = start, int(draw.integers(model.longest))
        for _ in range(moves):
            action = draw.choice(np.flatnonzero(model.legal(states)[0]))
            states, _, (over,) = model.play(states, np.array([action]))
            if over:
                break
        else:
            found.append(states[0])
    return np.array(found)


def opinions(model: GameModel, seed: int = 0) -> Evaluate:
    """Some prior and value of each state, by sums that do not depend on other rows."""
    weights = np.random.default_rng(seed).normal(size=(model.longest, model.actions + 1))

    def evaluate(states: Array) -> tuple[Array, Array]:
        outputs = (model.observe(states)["board"][:, :, None] * weights).sum(1)
        likely = np.exp(outputs[:, :-1]) * model.legal(states)
        return likely / np.maximum(likely.sum(1, keepdims=True), 1e-30), np.tanh(outputs[:, -1])

    return evaluate


def no_opinion(states: Array) -> tuple[Array, Array]:
    """Nothing is known."""
    return np.full((len(states), 9), 1 / 9), np.zeros(len(states))


@pytest.mark.parametrize("game", GAMES)
def test_it_finds_what_a_recursion_over_one_tree_finds(game: str) -> None:
    """K2; the same visits and values for the same priors and values."""
    model, evaluate = model_of(game), opinions(model_of(game))
    roots = positions(model, 12, seed=1)
    found = tree_search(model, roots, evaluate, simulations=60, c_puct=1.5)
    for row, root in enumerate(roots):
        alone = one_tree.search(model, root, evaluate, 60, 1.5)
        assert found.visits[row].tolist() == alone.visits
        assert found.value[row] == pytest.approx(sum(alone.total) / 60)
    assert (found.visits.sum(1) == 60).all()
    assert not found.visits[~model.legal(roots)].any()


def test_a_result_does_not_depend_on_what_is_searched_beside_it() -> None:
    """K1: searched alone, in another order, or twice."""
    model = model_of("connect_four")
    evaluate, roots = opinions(model), positions(model, 8, seed=2)
    together = tree_search(model, roots, evaluate, simulations=40, c_puct=1.0)
    for rows in ([3], [7, 0], [2, 2, 5]):
        apart = tree_search(model, roots[rows], evaluate, simulations=40, c_puct=1.0)
        assert (apart.visits == together.visits[rows]).all()
        assert (apart.value == together.value[rows]).all()


#: Positions of tic-tac-toe in which x is to move, and the only moves that do not give away a win or a draw.
DECIDED = {
    "a win": ("xx. oo. ...", {2}),
    "a win before a defence": (".xx oo. ...", {0}),
    "a defence": ("oo. x.. ...", {2}),
    "against a fork in two moves": ("o.. .x. ..o", {1, 3, 5, 7}),
}


@pytest.mark.parametrize("case", DECIDED)
def test_it_finds_the_moves_that_decide(case: str) -> None:
    board, best = DECIDED[case]
    seen = [[".xo".index(square) for square in board if square != " "]]
    model = model_of("tic_tac_toe")
    states = model.states({"board": np.array([0, 1, -1], np.float32)[seen]})
    found = tree_search(model, states, no_opinion, simulations=400, c_puct=1.5)
    assert found.visits[0].argmax() in best
    assert sum(found.visits[0, move] for move in best) > 250


def test_a_position_that_nobody_is_to_move_in_has_no_visits() -> None:
    """K2; such rows are of seats whose action is not read."""
    model = model_of("tic_tac_toe")
    full = np.array([[sum(1 << bit for bit in model.bits), 0]], np.uint64)
    found = tree_search(model, full, no_opinion, simulations=5, c_puct=1.0)
    assert not found.visits.any()


def test_a_prior_of_the_root_is_that_of_the_root_alone() -> None:
    model = model_of("tic_tac_toe")
    start, only = np.zeros((1, 2), np.uint64), np.eye(9)[[7]]
    found = tree_search(model, start, no_opinion, simulations=20, c_puct=1.0, prior=only)
    assert found.visits[0].argmax() == 7
    assert found.visits[0, 7] > 15


# -- with a learned model


def learned(actions: int, seed: int = 0) -> Any:
    """A model with latent states of 3 numbers, by sums that do not depend on other rows."""
    draw = np.random.default_rng(seed)
    moved, thought = draw.normal(size=(3 + actions, 4)), draw.normal(size=(3, actions + 1))

    def seen(latent: Array, reward: Array) -> ModelStep:
        outputs = (latent[:, :, None] * thought).sum(1)
        return ModelStep(latent, reward, outputs[:, :-1], outputs[:, -1])

    def imagine(latent: Array, action: Array) -> ModelStep:
        after = np.tanh((np.concatenate([latent, np.eye(actions)[action]], 1)[:, :, None] * moved).sum(1))
        return seen(after[:, :3], after[:, 3])

    return lambda latent: seen(latent, np.zeros(0)), imagine


@pytest.mark.parametrize(
    ("actions", "simulations", "considered", "discount", "extent"),
    [
        *((2, 8, 16, 0.99, None), (2, 1, 16, 0.9, None), (5, 16, 4, 0.9, None), (9, 30, 16, -1.0, None)),
        *((9, 30, 16, -1.0, 2.0), (9, 13, 3, -1.0, 0.5), (6, 40, 1, 0.5, None)),
    ],
)
def test_a_learned_model_is_searched_as_a_recursion_over_one_tree_does(
    actions: int, simulations: int, considered: int, discount: float, extent: float | None
) -> None:
    """K2, K3: the same visits, action, improved policy and value; of legal actions alone, which differ in number."""
    draw, (look, imagine) = np.random.default_rng(1), learned(actions)
    roots, gumbel = look(draw.normal(size=(20, 3))), draw.gumbel(size=(20, actions))
    legal = draw.random((20, actions)) < 0.6
    legal[np.arange(20), draw.integers(actions, size=20)] = True
    how = {"simulations": simulations, "discount": discount, "considered": considered}
    found = gumbel_search(roots, imagine, gumbel=gumbel, legal=legal, extent=extent, **how)
    for row in range(20):
        root = look(roots.latent[[row]])
        able = np.flatnonzero(legal[row]).tolist()
        alone = one_gumbel_tree.search(root, imagine, simulations, discount, considered, gumbel[row], able, extent)
        action, policy, value, visits = alone
        assert found.visits[row].tolist() == visits
        assert found.action[row] == action
        assert found.policy[row] == pytest.approx(policy)
        assert found.value[row] == pytest.approx(value)
    assert (found.visits.sum(1) == simulations).all()
    assert not found.visits[~legal].any()
    assert not found.policy[~legal].any()


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_values_that_are_equal_up_to_rounding_prefer_no_action(value: float) -> None:
    """K3: what they differ by is not blown up to the whole scale."""

    def look(latent: Array, reward: Array) -> ModelStep:
        return ModelStep(latent, reward, np.zeros((len(latent), 3)), np.full(len(latent), value))

    found = gumbel_search(
        look(np.zeros((2, 1)), np.zeros(0)),
        lambda latent, action: look(latent, np.zeros(len(latent))),
        **{"simulations": 8, "discount": 1.0},
    )
    np.testing.assert_allclose(found.policy, 1 / 3, rtol=1e-5)


def test_a_result_in_a_learned_model_does_not_depend_on_what_is_searched_beside_it() -> None:
    """K1: searched alone, in another order, or twice."""
    look, imagine = learned(4)
    latent = np.random.default_rng(2).normal(size=(8, 3))
    together = gumbel_search(look(latent), imagine, simulations=20, discount=0.9)
    for rows in ([3], [7, 0], [2, 2, 5]):
        apart = gumbel_search(look(latent[rows]), imagine, simulations=20, discount=0.9)
        for one, all_of_them in zip(apart, together):
            assert (one == all_of_them[rows]).all()


def test_halving_spends_all_simulations_on_ever_fewer_actions() -> None:
    """K3: figure 1 of Danihelka et al. 2022, of 16 actions and 200 simulations, whose rounds have 16, 8, 4 and 2."""
    turns = halving(16, 200)
    visits = [sum(turn >= 0 for turn in turns[:48]) // 16]  # of 3 turns of 16, as 200 // (4 * 16) are
    assert visits == [3]
    assert len(turns) == 200
    for number in range(max(turns)):  # with its n-th visit an action is one of ever fewer
        assert turns.count(number) >= turns.count(number + 1)
    assert [turns.count(number) for number in (0, 3, 9, 21)] == [16, 8, 4, 2]
