"""Model wrappers against the obvious loop."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.policies import argmax_sample, eps_greedy_sample, linear_schedule, multinomial_sample

VALUE = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 4.0], [0.0, 1.0, 9.0], [2.0, 1.0, 0.0]])
MASK = np.array([[True, False, True], [False, True, True], [True, True, False], [True, True, True]])


def constant(epsilon: float) -> linear_schedule:
    return linear_schedule(epsilon, epsilon, 1)


def test_argmax_takes_the_best_valid_action() -> None:
    assert argmax_sample()(VALUE).tolist() == [1, 0, 2, 0]
    assert argmax_sample()(VALUE, mask=MASK).tolist() == [2, 2, 1, 0]


def test_one_coin_for_each_environment() -> None:
    """Q8: some environments explore and others do not, in one step."""
    noise = np.array([[0.1, 0.99], [0.9, 0.0], [0.1, 0.0], [0.9, 0.99]])
    assert eps_greedy_sample(constant(0.5))(VALUE, noise, 0).tolist() == [2, 0, 0, 0]
    draws = np.random.default_rng(0).random((20_000, 2))
    acted = eps_greedy_sample(constant(0.3))(np.tile(VALUE[:1], (20_000, 1)), draws, 0)
    # 0.3 of them explore, a third of those into each action.
    assert np.bincount(acted) / 20_000 == pytest.approx([0.1, 0.8, 0.1], abs=0.01)


def test_random_actions_are_valid_ones() -> None:
    draws = np.random.default_rng(0).random((30_000, 2))
    acted = eps_greedy_sample(constant(1.0))(
        np.tile(VALUE[1:2], (30_000, 1)), draws, 0, np.tile(MASK[1:2], (30_000, 1))
    )
    assert np.bincount(acted, minlength=3) / 30_000 == pytest.approx([0, 0.5, 0.5], abs=0.01)


def test_exploration_follows_env_steps() -> None:
    """Q7: a function of env steps alone, so a resume changes nothing."""
    explore = eps_greedy_sample(linear_schedule(1.0, 0.0, 10))
    noise = np.full((1, 2), 0.45)  # explores while epsilon > 0.45, then into action 1
    assert [int(explore(VALUE[3:], noise, step)[0]) for step in (0, 5, 6, 10, 99)] == [1, 1, 0, 0, 0]


def test_multinomial_draws_by_inversion() -> None:
    probability = np.array([0.2, 0.0, 0.5, 0.3])
    with np.errstate(divide="ignore"):
        logp = np.log(probability)
    cases = {0.0: 0, 0.1999: 0, 0.2001: 2, 0.6999: 2, 0.7001: 3, np.nextafter(1, 0): 3}
    noise = np.array(list(cases))[:, None]
    assert multinomial_sample()(np.tile(logp, (len(cases), 1)), noise).tolist() == list(cases.values())
    # Probabilities that do not quite sum to one leave no gap.
    assert multinomial_sample()(np.log(np.full((1, 3), 0.33, np.float32)), np.array([[0.9999]])).tolist() == [2]
