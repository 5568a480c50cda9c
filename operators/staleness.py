"""Staleness: how many versions older than the policy that learns the weights were that made what it learns from."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.context import Context
from flowrl.data import Batch

#: Under which name lags are recorded, and the beginning of the entries of a result.
LAG = "policy_lag"
#: The quantiles that a result has, by the end of their names.
QUANTILES = {"p50": 0.5, "p90": 0.9, "max": 1.0}


def record_lags(context: Context, batch: Batch, version: int) -> None:
    """Record the lag of each row of a batch that a policy of this version is about to learn from.

    Rows that do not know their version, of a dataset say, have none.
    """
    if "policy_version" in batch:
        context.record(LAG, version - np.asarray(batch["policy_version"]).reshape(-1))


def lags_in(recorded: list[Any]) -> dict[str, float]:
    """Mean and quantiles over all rows that were recorded; nothing of none.

    >>> lags_in([np.array([0, 0, 1]), np.array([3])])
    {'policy_lag': 1.0, 'policy_lag_p50': 0.0, 'policy_lag_p90': 3.0, 'policy_lag_max': 3.0}
    """
    lags = np.concatenate(recorded) if recorded else np.empty(0)
    if not len(lags):
        return {}
    # One that occurred, not one between two.
    found = np.quantile(lags, list(QUANTILES.values()), method="inverted_cdf")
    return {LAG: float(lags.mean())} | {f"{LAG}_{name}": float(lag) for name, lag in zip(QUANTILES, found)}
