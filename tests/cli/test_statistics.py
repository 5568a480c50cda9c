"""The interquartile mean and its interval, against published numbers and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.cli.statistics import interquartile_mean, interval


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6], 6.5),  # the example of Wikipedia's "Interquartile mean"
        ([[1, 2], [2, 2], [1, 1], [2, 1]], 1.5),  # rliable's own tests: runs x tasks, all in one sample
        ([[1, 1], [2, 2], [3, 3]], 2.0),
        ([1, 2, 3, 4, 100], 3.0),  # 5 runs: one goes at each end
        ([1, 2, 9], 4.0),  # too few to leave any out
    ],
)
def test_the_interquartile_mean(scores: list[float], expected: float) -> None:
    """S4"""
    assert interquartile_mean(scores) == pytest.approx(expected)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_a_quarter_is_left_out_at_each_end_in_whole_scores(scores: list[float]) -> None:
    """S4"""
    cut = len(scores) // 4
    kept = sorted(scores)[cut : len(scores) - cut]
    assert interquartile_mean(scores) == pytest.approx(sum(kept) / len(kept), abs=1e-6)


def test_the_interval_is_that_of_all_possible_resamples() -> None:
    """S4: two tasks of three runs have 27 x 27 resamples; brute force goes through them."""
    tasks = [[0.0, 3.1, 6.7], [10.3, 11.9, 17.0]]
    resamples = [itertools.product(task, repeat=3) for task in tasks]
    exact = [interquartile_mean([*first, *second]) for first, second in itertools.product(*map(list, resamples))]
    for confidence in (0.5, 0.95):
        bounds = np.quantile(exact, [(1 - confidence) / 2, (1 + confidence) / 2])
        found = interval(tasks, confidence=confidence, resamples=40_000)
        assert found == pytest.approx(tuple(bounds), abs=0.15)


def test_every_task_keeps_its_number_of_runs() -> None:
    """S4: stratified; drawn from one heap, the share of the easy task would vary and widen the interval."""
    assert interval([[0.0] * 5, [10.0] * 5]) == (5.0, 5.0)
    low, high = interval([[0.0, 1.0, 2.0, 3.0, 4.0], [10.0] * 5])
    assert 5 <= low < high <= 7, "three of each task are in every middle half"


def test_one_run_of_a_task_says_nothing_of_the_spread() -> None:
    assert interval([[1.0, 2.0], [3.0]]) is None


def test_the_same_seed_gives_the_same_bounds_and_nothing_global_is_drawn_from() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002  # the global generator is what is looked at
    scores = [np.random.default_rng(1).normal(size=7)]
    assert interval(scores) == interval(scores) != interval(scores, seed=1)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_curve_has_an_interval_at_every_point() -> None:
    """The resampled runs are the same at all points, as whole curves."""
    runs = np.random.default_rng(0).normal(size=(6, 4)).cumsum(axis=1)
    low, high = interval([runs])
    for point in range(4):
        assert (low[point], high[point]) == pytest.approx(interval([runs[:, point]]))
