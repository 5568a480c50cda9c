"""Advantages of a fragment, for the adders `GAE` and `VTrace` and for actor-critic policies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import PROVENANCE, episode_breaks
from flowrl.data.steps import discounts
from flowrl.data.types import Array
from flowrl.returns import gae, v_trace

#: Columns that an advantage is computed from.
NEEDED = ("reward", "terminated", "truncated", "value", "next_value")


def with_advantages(batch: Batch, gamma: float, lam: float) -> Batch:
    """A fragment `[T, N, ...]` with `advantage` and `target`, float32.

    advantage is `flowrl.returns.gae` per environment (G1); target = advantage + value, before any normalization (G2).
    gamma is that of each step, see `discounts`. The trace stops where an episode ended or, by provenance, was lost.
    Padded steps (`mask` 0) affect no other step's estimate and get 0.
    """
    used = batch.select(NEEDED).to_numpy()
    cut, value = trace_ends(batch), used["value"]
    of_each = discounts(batch, gamma)
    advantage = gae(used["reward"], value, used["next_value"], used["terminated"], cut, gamma=of_each, lam=lam)
    return _with(batch, advantage, advantage + value)


def with_v_trace(batch: Batch, target_logp: Array, *, gamma: float, **limits: float) -> Batch:
    """A fragment `[T, N, ...]` with the V-trace `advantage` and `target` of the policy that gives `target_logp [T, N]`.

    They are those of `flowrl.returns.v_trace` with these `limits`, float32; `value` and `next_value` must be that
    policy's. For ends of traces and padding see `with_advantages`.
    """
    used = batch.select(["logp", *NEEDED]).to_numpy()
    names = ("reward", "value", "next_value", "terminated")
    columns = [used["logp"], target_logp, *(used[name] for name in names), trace_ends(batch)]
    target, advantage = v_trace(*columns, gamma=discounts(batch, gamma), **limits)
    return _with(batch, advantage, target)


def trace_ends(batch: Batch) -> Array:
    """Where no step of the same episode follows although it did not terminate: `[T, N]`, without the last row."""
    used = batch.select([name for name in ("truncated", "mask", *PROVENANCE) if name in batch]).to_numpy()
    cut: Array = used["truncated"] != 0
    cut[:-1] |= episode_breaks(used)
    if "mask" in used:
        cut[:-1] |= used["mask"][1:] == 0
    return cut


def values_arrived_in(batch: Batch, value: Array, value_of: Callable[..., Array]) -> Array:
    """`next_value [T, N]` of a fragment: the value of the next step inside an episode, else that of `next_obs`.

    So `value_of`, from observations `[B, ...]` to values, is called only where an episode or the fragment ends; with
    the column `next_state` too, if a recurrent policy recorded it.
    """
    ends = trace_ends(batch) | (np.asarray(batch["terminated"]) != 0)
    ends[-1:] = True
    if "mask" in batch:
        ends &= np.asarray(batch["mask"]) != 0
    following = np.zeros_like(value)
    following[:-1] = value[1:]
    arrived = [batch[name][ends] for name in ("next_obs", "next_state") if name in batch]
    following[ends] = value_of(*arrived)
    return following


def _with(batch: Batch, advantage: Array, target: Array) -> Batch:
    if "mask" in batch:
        real = np.asarray(batch["mask"]) != 0
        advantage, target = np.where(real, advantage, 0), np.where(real, target, 0)
    return batch.replace(advantage=advantage.astype(np.float32), target=target.astype(np.float32))
