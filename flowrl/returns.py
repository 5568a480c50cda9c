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
    goes_on = _goes_on(terminated, truncated)
    result += gamma * xp.where((terminated != 0) | goes_on, 0, bootstrap)
    return _accumulated(xp, result, goes_on, gamma)


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    lam: float,
) -> Array:
    """The generalised advantage estimate of every step.

    δₜ = rₜ + γ · (1 − terminatedₜ) · next_valueₜ − valueₜ
    Âₜ = δₜ + γλ · { 0 if terminatedₜ, truncatedₜ or t = T−1;  Âₜ₊₁ otherwise }

    So a truncated episode and the end of the data are bootstrapped, and the trace is cut there (T4, T5, T7).
    Targets of the value are Â + value (G2).

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; rewards of an integer type count as float32.
        value: of the observation acted from at each step, same shape.
        next_value: of the observation arrived in at each step, same shape; not read where terminated.
        gamma: discount per step. lam: 0 gives δ, 1 the discounted return − value.

    Returns: Â, of the shape and dtype of `reward`.
    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16.

    >>> no = np.zeros(3, bool)
    >>> gae(np.ones(3), np.zeros(3), np.full(3, 4.0), no, no, gamma=0.5, lam=0.5)
    array([3.9375, 3.75  , 3.    ])
    """
    assert reward.shape == value.shape == next_value.shape == terminated.shape == truncated.shape, (
        reward.shape,
        value.shape,
        next_value.shape,
        terminated.shape,
        truncated.shape,
    )
    xp, delta = _float_copy(reward)
    delta += gamma * xp.where(terminated != 0, 0, next_value) - value
    return _accumulated(xp, delta, _goes_on(terminated, truncated), gamma * lam)


def td_lambda(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, *, gamma: float, lam: float
) -> Array:
    """The TD(λ) target of every step's value: its λ-return.

    Gₜ = rₜ + γ · { 0 if terminatedₜ;  next_valueₜ if truncatedₜ or t = T−1;
                    (1 − λ) next_valueₜ + λ Gₜ₊₁ otherwise }

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; rewards of an integer type count as float32.
        next_value: of the observation arrived in at each step, same shape; not read where terminated.
        gamma: discount per step. lam: 0 gives one-step targets, 1 the discounted return.

    Returns: G, of the shape and dtype of `reward`. It is `gae` + value where next_valueₜ = valueₜ₊₁ inside episodes.
    Source: Sutton & Barto 2018, section 12.1, eq. 12.2 as a recursion.

    >>> no = np.zeros(3, bool)
    >>> td_lambda(np.ones(3), np.full(3, 4.0), no, no, gamma=0.5, lam=0.5)
    array([2.6875, 2.75  , 3.    ])
    """
    assert reward.shape == next_value.shape == terminated.shape == truncated.shape, (
        reward.shape,
        next_value.shape,
        terminated.shape,
        truncated.shape,
    )
    xp, target = _float_copy(reward)
    goes_on = _goes_on(terminated, truncated)
    arrived = gamma * xp.where(terminated != 0, 0, next_value)
    target += xp.where(goes_on, (1 - lam) * arrived, arrived)
    return _accumulated(xp, target, goes_on, gamma * lam)


def _goes_on(terminated: Array, truncated: Array) -> Array:
    """Whether the step after is there and belongs to the same episode."""
    goes_on = (terminated == 0) & (truncated == 0)
    goes_on[-1:] = False
    return goes_on


def _accumulated(xp: Any, own: Array, goes_on: Array, discount: float) -> Array:
    """xₜ = ownₜ + discount · xₜ₊₁ where the episode goes on, for all t at once; in place of `own`.

    By doubling (Hillis & Steele 1986): each pass lets every step look twice as far ahead, so log₂ T of them do. With
    the few environments that are usual this is many times quicker than a loop over time.
    """
    span, factor = 1, xp.asarray(goes_on[:-1], dtype=own.dtype) * discount
    while span < len(own):
        # `where`, not the product alone: a NaN beyond the episode's end must not leak in.
        own[:-span] += factor * xp.where(factor != 0, own[span:], 0)
        factor = factor[:-span] * factor[span:]
        span *= 2
    return own


def _float_copy(reward: Array) -> tuple[Any, Array]:
    """The library of an array, and a floating copy of it to add into."""
    torch = sys.modules.get("torch")  # whoever holds a tensor has loaded it
    if torch is not None and isinstance(reward, torch.Tensor):
        return torch, reward.clone() if reward.is_floating_point() else reward.float()
    return np, reward.copy() if reward.dtype.kind == "f" else reward.astype(np.float32)
