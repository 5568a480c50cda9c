"""Statistics over several runs: the interquartile mean and its confidence interval (rule S4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: The smallest number of scores of which the interquartile mean drops any; below, it is the mean.
FEWEST_TRIMMED = 4
#: The share of resamples inside an interval.
CONFIDENCE = 0.95


def interquartile_mean(scores: Any, axis: int | None = None) -> Any:
    """The mean of the scores without the lowest and the highest quarter.

    Drops ⌊n/4⌋ of n sorted scores at each end: 2 of 8, 1 of 5, none below 4.

    Args:
        scores: An array of any shape; scores of several comparable tasks count as one sample.
        axis: Axis of the mean; None: all scores.

    Source: Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice", section 4.3; the same
    definition as the authors' rliable.

    >>> float(interquartile_mean([0, 1, 2, 3, 100]))
    2.0
    """
    from scipy.stats import trim_mean

    return trim_mean(scores, 0.25, axis=axis)


def interval(
    scores: Sequence[Any], *, confidence: float = CONFIDENCE, seed: int = 0, resamples: int = 2_000
) -> tuple[Any, Any] | None:
    """Bounds of the interquartile mean: a percentile interval of the stratified bootstrap.

    Each resample draws, separately for every task, as many runs as the task has, with replacement, and takes the
    interquartile mean over all tasks. The bounds are the (1 ∓ confidence)/2 quantiles of the resamples.

    Args:
        scores: One array `[runs]` or `[runs, points]` per task; each point (of a learning curve) has its own
            interval, from the same resamples.
        confidence: Share of resamples inside the bounds, above 0 and below 1.
        seed: Seed of the resampling, which uses no other generator.
        resamples: Number of resamples.

    With few runs the interval is too narrow, since no resample leaves their range; 2 runs have 3 different means.

    Returns: the lower and the upper bound, numbers or `[points]` each; None if a task has a single run, which tells
    nothing about the spread.

    Source: Agarwal et al. 2021, section 4.1.

    >>> low, high = interval([[1.0, 2.0, 3.0, 4.0, 5.0]])
    >>> bool(1 < low < 3 < high < 5)
    True
    """
    from scipy.stats import bootstrap

    tasks = [np.asarray(task, dtype=float) for task in scores]
    if any(len(task) < 2 for task in tasks):
        return None

    def statistic(*resampled: Any, axis: int) -> Any:
        return interquartile_mean(np.concatenate(resampled, axis=axis), axis)

    bounds = bootstrap(
        tasks,
        statistic,
        axis=0,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return bounds.low, bounds.high
