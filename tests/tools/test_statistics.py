"""Statistics over runs, against published numbers, those of rliable, and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.tools.statistics import (
    interquartile_mean,
    interval,
    performance_profile,
    probability_of_improvement,
    tolerance_interval,
)

#: Scores of two algorithms in two tasks, `[tasks, runs]`.
OURS = np.array([[0.1, 0.5, 0.3, 0.5, 0.7], [0.9, 0.4, 0.8, 0.6, 0.2]])
THEIRS = np.array([[0.5, 0.2, 0.4, 0.1], [0.3, 0.4, 0.1, 0.7]])
THRESHOLDS = np.array([0.0, 0.2, 0.45, 0.5, 0.8])


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


def test_scores_are_as_rliable_has_them() -> None:
    """S4: what rliable 1.2.0 gives, with 3,000 resamples and more in its intervals."""
    above = [task[:, None] > THRESHOLDS for task in OURS]
    for statistic, samples, expected, low, high in [
        (None, OURS, 0.5, 0.3167, 0.6667),
        (probability_of_improvement, [*OURS, *THEIRS], 0.7, 0.4375, 0.925),
        (performance_profile, above, [1, 0.8, 0.6, 0.4, 0.1], [1, 0.5, 0.3, 0.1, 0], [1, 1, 0.9, 0.7, 0.3]),
    ]:
        found = interquartile_mean(OURS) if statistic is None else statistic(*samples, axis=0)
        bounds = interval(samples) if statistic is None else interval(samples, statistic)
        assert found == pytest.approx(expected)
        assert bounds[0] == pytest.approx(low, abs=0.03)
        assert bounds[1] == pytest.approx(high, abs=0.03)


SCORES = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=6)


@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=3))
def test_each_run_is_compared_with_each_of_the_same_task(tasks: list[tuple[list[float], list[float]]]) -> None:
    """S4: a task counts as much as any other, and a tie as half; also of runs that never got there, -inf."""
    shares = []
    for ours, theirs in tasks:
        won = [1.0 if x > y else 0.5 if x == y else 0.0 for x in ours for y in theirs]
        shares.append(sum(won) / len(won))
    first, second = zip(*tasks)
    assert probability_of_improvement(*first, *second) == pytest.approx(sum(shares) / len(shares))
    above = [np.array(ours)[:, None] > THRESHOLDS for ours in first]
    for i, threshold in enumerate(THRESHOLDS):
        share = sum(sum(x > threshold for x in ours) / len(ours) for ours in first) / len(first)
        assert performance_profile(*above, axis=0)[i] == pytest.approx(share)


@pytest.mark.parametrize(("runs", "coverage"), [(46, 0.9), (93, 0.95)])
def test_a_range_takes_as_many_runs_as_wilks_has(runs: int, coverage: float) -> None:
    """S7: the published least sizes of samples at 95 %."""
    scores = np.random.default_rng(0).permutation(runs)
    assert tolerance_interval(scores, coverage=coverage)[:2] == (0, runs - 1)
    assert tolerance_interval(scores, coverage=coverage).coverage >= coverage
    assert tolerance_interval(scores[1:], coverage=coverage).coverage < coverage


@given(st.integers(2, 200), st.sampled_from([0.5, 0.8, 0.9]), st.sampled_from([0.8, 0.95]))
def test_the_share_that_is_covered_is_that_of_the_binomial_distribution(n: int, coverage: float, sure: float) -> None:
    """S7: by its sum; and one more run left out at each end would cover too little."""

    def confidence(share: float, cut: int) -> float:
        """That at least this share of all runs is between the ends: that no more of n draws come from within it."""
        return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 2 - 2 * cut - 1))

    found = tolerance_interval(range(n), coverage=coverage, confidence=sure)
    cut = int(found.low) + 1
    assert found.high == n - cut
    assert confidence(found.coverage, cut) == pytest.approx(sure)
    assert found.coverage >= coverage or cut == 1
    assert cut + 1 > n // 2 or confidence(coverage, cut + 1) < sure


def test_runs_to_come_are_within_the_bounds_as_often_as_promised() -> None:
    """S7: whatever the distribution: of 5 runs the range covers 34 % of runs in 95 of 100 experiments."""
    generator = np.random.default_rng(0)
    found = [tolerance_interval(generator.exponential(size=5)) for _ in range(2_000)]
    within = [np.exp(-each.low) - np.exp(-each.high) for each in found]  # the share of the distribution
    assert np.mean([share >= each.coverage for share, each in zip(within, found)]) == pytest.approx(0.95, abs=0.02)
    assert tolerance_interval([1.0]) is None
