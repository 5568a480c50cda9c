"""Action masks: the entry `action_mask` of dictionary observations marks the valid actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from flowrl.data import Batch
from flowrl.data.columns import ACTION_MASK

#: The score of an invalid action: exp of it is 0, and a temperature leaves it finite.
LOWEST = -1e30


def action_mask(obs: Any) -> Any:
    """The valid actions of observations `[B, ...]`: bool `[B, A]`, of the mask's library; None if all are valid.

    >>> action_mask(Batch(obs=np.zeros((1, 4)), action_mask=np.array([[1, 0, 1]], np.int8)))
    array([[ True, False,  True]])
    """
    if type(obs) is not np.ndarray and isinstance(obs, Batch | Mapping) and ACTION_MASK in obs:
        return obs[ACTION_MASK] != 0
    return None


def masked(scores: Any, mask: Any) -> Any:
    """Scores `[B, A]` with a very low score for invalid actions, whose probability is then 0.

    Scores stay finite, and so do entropies, divergences and gradients, even in rows without a valid action.
    """
    if mask is None:
        return scores
    if isinstance(scores, torch.Tensor):
        return scores.masked_fill(~mask, max(torch.finfo(scores.dtype).min, LOWEST))
    return np.where(mask, scores, scores.dtype.type(LOWEST))


def valid_mean(values: Any, mask: Any) -> Any:
    """The mean over the valid actions, `[B, A, ...]` -> `[B, 1, ...]`; 0 if there are none.

    >>> valid_mean(np.array([[1.0, 5.0, 3.0]]), np.array([[True, False, True]]))
    array([[2.]])
    """
    if mask is None:
        tensor = isinstance(values, torch.Tensor)
        return values.mean(1, keepdim=True) if tensor else values.sum(1, keepdims=True) / values.shape[1]
    mask = mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim))
    return (values * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True).clip(min=1)
