"""Statistics over several runs: interquartile mean, performance profile, probability of improvement, with bootstrap
intervals (rule S4), and tolerance intervals of single runs (S7).

scipy has the bootstrap and the distributions. rliable, by the authors of the paper that most of this follows, has the
same statistics on top of 27 packages; the tests hold its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrl.runs.progress import score_text

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


def pooled_interquartile_mean(*tasks: Any, axis: int) -> Any:
    """The interquartile mean over the runs of all tasks, which are along `axis`."""
    return interquartile_mean(np.concatenate(tasks, axis=axis), axis)


def interval(
    scores: Sequence[Any],
    statistic: Callable[..., Any] = pooled_interquartile_mean,
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    resamples: int = 2_000,
) -> tuple[Any, Any] | None:
    """Bounds of a statistic over tasks: a percentile interval of the stratified bootstrap.

    Each resample draws, separately for every task, as many runs as the task has, with replacement, and takes the
    statistic over all tasks. The bounds are the (1 ∓ confidence)/2 quantiles of the resamples.

    Args:
        scores: One array `[runs]` or `[runs, points]` per task; each point (of a learning curve) has its own
            interval, from the same resamples.
        statistic: Called with the resampled tasks and the `axis` of their runs, which is the last one.
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


def performance_profile(*above: Any, axis: int) -> Any:
    """The share of runs whose score is above a threshold, the mean over tasks.

    Args:
        above: For each task whether the score of a run is above the threshold; runs are along `axis`, and thresholds
            along another.

    Source: Agarwal et al. 2021, section 4.2, "run-score distributions".

    >>> easy, hard = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.0])
    >>> thresholds = np.array([0, 2, 5])
    >>> [float(each) for each in performance_profile(easy[:, None] > thresholds, hard[:, None] > thresholds, axis=0)]
    [0.75, 0.25, 0.0]
    """
    return np.mean([np.mean(task, axis=axis) for task in above], axis=0)


def probability_of_improvement(*scores: Any, axis: int = -1) -> Any:
    """The probability that a run of one algorithm scores more than a run of another, the mean over tasks.

    Of equal scores one half counts: P(X > Y) + P(X = Y) / 2, the statistic of Mann and Whitney over their number.

    Args:
        scores: Those of the first algorithm, an array for each task, then those of the second for the same tasks; runs
            are along `axis`, and none of it depends on the units of a task.

    Source: Agarwal et al. 2021, section 4.3.

    >>> float(probability_of_improvement([3, 2], [2, 1]))
    0.875
    """
    runs = [np.moveaxis(np.asarray(task, dtype=float), axis, -1) for task in scores]
    half = len(runs) // 2
    pairs = [(ours[..., :, None], theirs[..., None, :]) for ours, theirs in zip(runs[:half], runs[half:], strict=True)]
    return np.mean([((x > y) + (x == y) / 2).mean((-2, -1)) for x, y in pairs], axis=0)


class Tolerance(NamedTuple):
    """Bounds of single runs, and the share of all runs between them, at least, with the confidence asked for."""

    low: float
    high: float
    coverage: float


def tolerance_interval(
    scores: Sequence[float], *, coverage: float = 0.9, confidence: float = CONFIDENCE
) -> Tolerance | None:
    """The bounds between which single runs come out (S7), of any distribution of scores.

    The share of runs between the c-th lowest and the c-th highest of n scores has the distribution
    Beta(n + 1 - 2 c, 2 c). Takes the largest c that covers enough with this confidence; if none does, the range of the
    scores, c = 1, and the smaller share that it covers. It takes 46 runs for 0.9 at 95 %; 5 runs cover 0.343.

    An interval of the mean says where the mean is, and shrinks to nothing with more runs. This one says what to expect
    of the next run.

    Args:
        scores: Of runs of one task.
        coverage: The share of runs.
        confidence: How sure that share is, over repetitions of the whole experiment.

    Returns: None for a single run, which covers nothing.

    Source: Wilks 1941, "Determination of sample sizes for setting tolerance limits"; Patterson et al. 2024, "Empirical
    design in reinforcement learning", for what it says of agents.

    >>> tolerance_interval([476.0, 488.0, 500.0, 500.0, 500.0])
    Tolerance(low=476.0, high=500.0, coverage=0.342...)
    """
    from scipy.stats import beta

    ordered, n = np.sort(np.asarray(scores, dtype=float)), len(scores)
    if n < 2:
        return None
    cuts = np.arange(1, n // 2 + 1)
    covered = beta.ppf(1 - confidence, n + 1 - 2 * cuts, 2 * cuts)
    cut = max(1, int((covered >= coverage).sum()))  # the share falls with c
    return Tolerance(float(ordered[cut - 1]), float(ordered[-cut]), float(covered[cut - 1]))


def middle(values: Sequence[float | None]) -> dict[str, Any] | None:
    """The interquartile mean of the known values, with its interval; None if none is known.

    >>> middle([1, 2, None])["mean"], middle([1, 2, 3, 4])["iqm"], middle([7])["low"]
    (1.5, 2.5, None)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = interval([known]) or (None, None)
    name = "iqm" if len(known) >= FEWEST_TRIMMED else "mean"
    return {
        "runs": len(known),
        name: float(interquartile_mean(known)),
        "low": low,
        "high": high,
        "confidence": CONFIDENCE,
    }


def middle_text(figures: Mapping[str, Any], digits: int | None) -> str:
    """The result of `middle` as text; `digits` as for `figure`.

    >>> middle_text(middle([1.0, 2.0]), 1), middle_text(middle([7.0]), 1)
    ('mean 1.5, 95 % interval [1.0, 2.0] (2 runs)', 'mean 7.0 (1 run)')
    """
    name = "iqm" if "iqm" in figures else "mean"
    runs = f"{figures['runs']} run" + ("s" if figures["runs"] > 1 else "")
    text = f"{name.upper() if name == 'iqm' else name} {figure(figures[name], digits)}"
    if figures["low"] is None:
        return f"{text} ({runs})"
    bounds = f"[{figure(figures['low'], digits)}, {figure(figures['high'], digits)}]"
    return f"{text}, {100 * figures['confidence']:g} % interval {bounds} ({runs})"


def figure(value: float | None, digits: int | None) -> str:
    """A number with so many decimals; None: as many as a return needs, see `score_text`."""
    if value is None:
        return "-"
    return score_text(value) if digits is None else f"{value:,.{digits}f}"
