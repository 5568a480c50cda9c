"""Returns: pure functions of rewards and ends, `[T, N]` arrays or tensors in, the same kind out.

Throughout, `terminated[t]` and `truncated[t]` say how step t ended its episode (both: terminated wins, T4).
A value "arrived in at t" is that of the true observation after step t, the final one where an episode ended.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


def n_step(reward: Array, terminated: Array, truncated: Array, *, gamma: float, n: int) -> tuple[Array, Array, Array]:
    """The n-step window that starts at every step: its return, its length, the discount of what follows.

    Gₜ = Σᵢ₌₀ᵏ⁻¹ γⁱ rₜ₊ᵢ,  dₜ = γᵏ · (1 − terminatedₜ₊ₖ₋₁);  a target is then Gₜ + dₜ V(sₜ₊ₖ).

    The window holds k ≤ n steps: it stops after the first end of an episode and at T (rules N1-N4, T4).

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; rewards of an integer type count as float32.
        gamma: discount per step. n: longest window, in steps.

    Returns:
        `(window_return, steps, bootstrap_discount)`, each of the shape of `reward`: G and d in its dtype, k as
        int64.

    Raises: ValueError if n < 1.
    Source: Sutton & Barto 2018, section 7.1.

    >>> no = np.zeros(3, bool)
    >>> n_step(np.ones(3), no, no, gamma=0.5, n=2)
    (array([1.5, 1.5, 1. ]), array([2, 2, 1]), array([0.25, 0.25, 0.5 ]))
    """
    assert reward.shape == terminated.shape == truncated.shape, (
        reward.shape,
        terminated.shape,
        truncated.shape,
    )
    assert reward.ndim in (1, 2), f"reward must be [T, N] or [T], not {tuple(reward.shape)}"
    if n < 1:
        raise ValueError(f"n is {n}: a window holds at least 1 step")
    xp, total = _float_copy(reward)
    last_terminated = terminated != 0  # a fresh array, and right for masks of any dtype
    ended = last_terminated | (truncated != 0)
    steps = xp.ones_like(reward, dtype=xp.int64)
    open_, length = ~ended, len(reward)  # open_[t]: the window of t goes on after its first i steps
    for i in range(1, min(n, length)):
        fits = length - i
        open_ = open_[:fits]
        # `where`, not a product: a NaN beyond the episode's end must not leak in.
        total[:fits] += xp.where(open_, gamma**i * reward[i:], 0)
        steps[:fits] += open_
        last_terminated[:fits] |= open_ & (terminated[i:] != 0)
        open_ = open_ & ~ended[i:]
    powers = xp.asarray([gamma**k for k in range(n + 1)], dtype=total.dtype, device=total.device)
    return total, steps, xp.where(last_terminated, 0, powers[steps])


def discounted(reward: Array, terminated: Array, truncated: Array, bootstrap: Array, *, gamma: float) -> Array:
    """The discounted return from every step to its episode's end, bootstrapped where the data ends first.

    Gₜ = rₜ + γ · { 0 if terminatedₜ;  bootstrapₜ if truncatedₜ or t = T−1;  Gₜ₊₁ otherwise }

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; rewards of an integer type count as float32.
        bootstrap: value of the observation arrived in at each step, same shape; read at truncations and T−1.
        gamma: discount per step.

    Returns: G, of the shape and dtype of `reward`.
    Source: Sutton & Barto 2018, section 3.3.

    >>> discounted(np.ones(3), np.zeros(3, bool), np.zeros(3, bool), np.full(3, 8.0), gamma=0.5)
    array([2.75, 3.5 , 5.  ])
    """
    assert reward.shape == terminated.shape == truncated.shape == bootstrap.shape, (
        reward.shape,
        terminated.shape,
        truncated.shape,
        bootstrap.shape,
    )
    xp, result = _float_copy(reward)
    cut, following = truncated != 0, bootstrap[-1:]
    for t in reversed(range(len(reward))):
        onward = xp.where(cut[t], bootstrap[t], following[0])
        result[t] += gamma * xp.where(terminated[t] != 0, 0, onward)
        following = result[t : t + 1]
    return result


def _float_copy(reward: Array) -> tuple[Any, Array]:
    """The library of an array, and a floating copy of it to add into."""
    torch = sys.modules.get("torch")  # whoever holds a tensor has loaded it
    if torch is not None and isinstance(reward, torch.Tensor):
        return torch, reward.clone() if reward.is_floating_point() else reward.float()
    return np, reward.copy() if reward.dtype.kind == "f" else reward.astype(np.float32)
