"""Statistics over several runs: the interquartile mean, and how sure it is (rule S4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Fewest scores from which the interquartile mean leaves any out; below, it is the mean.
FEWEST_TRIMMED = 4
#: The share of resamples inside an interval.
CONFIDENCE = 0.95


def interquartile_mean(scores: Any, axis: int | None = None) -> Any:
    """The mean of the scores without the lowest and the highest quarter.

    Of n scores, sorted, ⌊n/4⌋ are left out at each end, whole ones only: 2 of 8, 1 of 5, none below 4.

    Args:
        scores: Of any shape; those of several tasks, comparable with each other, count as one sample.
        axis: Along which, or over all.

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

    Each resample draws, for every task on its own, as many runs as it has, with replacement; its interquartile
    mean is that of all tasks together. The bounds are the (1 ∓ confidence)/2 quantiles of the resamples.

    Args:
        scores: One array `[runs]` or `[runs, points]` for each task; points (of a learning curve) have an
            interval each, from the same resamples.
        confidence: The share of resamples inside, above 0 and below 1.
        seed: Of the resampling, which draws from no other generator.
        resamples: How many.

    Of few runs it is too narrow, since no resample goes beyond them; 2 runs have 3 different means.

    Returns: the lower and the upper bound, numbers or `[points]` each; None where a task has a single run, of
    which nothing is known about the spread.

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

    found = bootstrap(
        tasks,
        statistic,
        axis=0,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return found.low, found.high
