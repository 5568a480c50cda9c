"""Advantages of a fragment: what the adder `GAE` and the actor-critic policies share."""

from __future__ import annotations

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import PROVENANCE, episode_breaks
from flowrl.returns import gae

#: Columns that an advantage is made of.
NEEDED = ("reward", "terminated", "truncated", "value", "next_value")


def with_advantages(batch: Batch, gamma: float, lam: float) -> Batch:
    """A fragment `[T, N, ...]` with `advantage` and `target`, float32.

    advantage is `flowrl.returns.gae`, each environment by itself (G1); target = advantage + value, taken before
    anybody normalises (G2). The trace is cut where an episode ended or, as provenance shows, went missing.
    Padded steps (`mask` 0) enter no other step's estimate and get 0.
    """
    used = batch.select([name for name in (*NEEDED, *PROVENANCE, "mask") if name in batch]).to_numpy()
    real = used["mask"] != 0 if "mask" in used else None
    cut = used["truncated"] != 0
    cut[:-1] |= episode_breaks(used)
    if real is not None:
        cut[:-1] |= ~real[1:]
    reward, value, next_value = used["reward"], used["value"], used["next_value"]
    advantage = gae(reward, value, next_value, used["terminated"], cut, gamma=gamma, lam=lam)
    target = advantage + value
    if real is not None:
        advantage, target = np.where(real, advantage, 0), np.where(real, target, 0)
    return batch.replace(advantage=advantage.astype(np.float32), target=target.astype(np.float32))
