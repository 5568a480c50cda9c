"""Staleness of training rows, in a result; see `flowrl.learners.training.lags`."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.learners.training import LAG

#: The quantiles of a result, by the suffix of their names.
QUANTILES = {"p50": 0.5, "p90": 0.9, "max": 1.0}


def lags_in(recorded: list[Any]) -> dict[str, float]:
    """Mean and quantiles over all recorded rows; empty if there are none.

    >>> lags_in([np.array([0, 0, 1]), np.array([3])])
    {'policy_lag': 1.0, 'policy_lag_p50': 0.0, 'policy_lag_p90': 3.0, 'policy_lag_max': 3.0}
    """
    lags = np.concatenate(recorded) if recorded else np.empty(0)
    if not len(lags):
        return {}
    # A lag that occurred, not an interpolated one.
    found = np.quantile(lags, list(QUANTILES.values()), method="inverted_cdf")
    return {LAG: float(lags.mean())} | {f"{LAG}_{name}": float(lag) for name, lag in zip(QUANTILES, found)}
