"""Returns: pure functions of rewards and episode ends; `[T, N]` arrays or tensors in, the same kind out.

Throughout, `terminated[t]` and `truncated[t]` say how step t ended its episode (if both, terminated wins, T4).
The observation "arrived in" at t is the true one after step t: the final observation where an episode ended.

`gamma` is one number, the discount per step, or an array of the shape of `reward` with that of each step, such as γᵏ of
an option of k steps (Sutton, Precup & Singh 1999). Formulas have γ for γₜ.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


def n_step(
    reward: Array, terminated: Array, truncated: Array, *, gamma: float | Array, n: int
) -> tuple[Array, Array, Array]:
    """The n-step window that starts at each step: its return, its length, and the discount of the value after it.

    Gₜ = Σᵢ₌₀ᵏ⁻¹ γⁱ rₜ₊ᵢ,  dₜ = γᵏ · (1 − terminatedₜ₊ₖ₋₁);  a target is then Gₜ + dₜ V(sₜ₊ₖ).

    With a discount of each step, γⁱ is the product γₜ γₜ₊₁ ... γₜ₊ᵢ₋₁. The window holds k ≤ n steps: it stops at the
    end of the episode and at T (rules N1-N4, T4).

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; integer rewards are converted to float32.
        gamma: discount per step. n: length of the longest window, in steps.

    Returns:
        `(window_return, steps, bootstrap_discount)`, each of the shape of `reward`: G and d in its dtype, k as
        int64.

    Raises: ValueError if n < 1.
    Source: Sutton & Barto 2018, section 7.1.

    >>> no = np.zeros(3, bool)
    >>> n_step(np.ones(3), no, no, gamma=0.5, n=2)
    (array([1.5, 1.5, 1. ]), array([2, 2, 1]), array([0.25, 0.25, 0.5 ]))
    """
    _check_shapes(reward, terminated, truncated)
    if n < 1:
        raise ValueError(f"n is {n}: a window holds at least 1 step")
    xp, total = _float_copy(reward)
    last_terminated = terminated != 0  # a new array, whatever the dtype of the mask
    ended = last_terminated | (truncated != 0)
    steps = xp.ones_like(reward, dtype=xp.int64)
    of_each: Any = None if np.ndim(gamma) == 0 else xp.asarray(gamma, dtype=total.dtype)
    product: Any = None if of_each is None else of_each * xp.ones_like(total)  # of the steps of the window so far
    open_, length = ~ended, len(reward)  # open_[t]: the window that starts at t goes on after i steps
    for i in range(1, min(n, length)):
        fits = length - i
        open_ = open_[:fits]
        # `where`, not a product: a NaN beyond the episode's end must not leak in.
        total[:fits] += xp.where(open_, (gamma**i if product is None else product[:fits]) * reward[i:], 0)
        if product is not None:
            product[:fits] *= xp.where(open_, of_each[i:], 1)
        steps[:fits] += open_
        last_terminated[:fits] |= open_ & (terminated[i:] != 0)
        open_ = open_ & ~ended[i:]
    if product is not None:
        return total, steps, xp.where(last_terminated, 0, product)
    powers = xp.asarray([gamma**k for k in range(min(n, length) + 1)], dtype=total.dtype, device=total.device)
    return total, steps, xp.where(last_terminated, 0, powers[steps])


def discounted(reward: Array, terminated: Array, truncated: Array, bootstrap: Array, *, gamma: float | Array) -> Array:
    """The discounted return from each step to the end of its episode, bootstrapped where the data ends first.

    Gₜ = rₜ + γ · { 0 if terminatedₜ;  bootstrapₜ if truncatedₜ or t = T−1;  Gₜ₊₁ otherwise }

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; integer rewards are converted to float32.
        bootstrap: value of the observation arrived in at each step, same shape; read at truncations and T−1.
        gamma: discount per step.

    Returns: G, of the shape and dtype of `reward`.
    Source: Sutton & Barto 2018, section 3.3.

    >>> discounted(np.ones(3), np.zeros(3, bool), np.zeros(3, bool), np.full(3, 8.0), gamma=0.5)
    array([2.75, 3.5 , 5.  ])
    """
    _check_shapes(reward, terminated, truncated, bootstrap)
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
    gamma: float | Array,
    lam: float,
) -> Array:
    """The generalized advantage estimate of each step.

    δₜ = rₜ + γ · (1 − terminatedₜ) · next_valueₜ − valueₜ
    Âₜ = δₜ + γλ · { 0 if terminatedₜ, truncatedₜ or t = T−1;  Âₜ₊₁ otherwise }

    So truncated episodes and the end of the data bootstrap, and cut the trace (T4, T5, T7). Value targets are
    Â + value (G2).

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; integer rewards are converted to float32.
        value: of the observation acted from at each step, same shape.
        next_value: of the observation arrived in at each step, same shape; not read where terminated.
        gamma: discount per step. lam: 0 gives δ, 1 the discounted return − value.

    Returns: Â, of the shape and dtype of `reward`.
    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16.

    >>> no = np.zeros(3, bool)
    >>> gae(np.ones(3), np.zeros(3), np.full(3, 4.0), no, no, gamma=0.5, lam=0.5)
    array([3.9375, 3.75  , 3.    ])
    """
    _check_shapes(reward, value, next_value, terminated, truncated)
    xp, delta = _float_copy(reward)
    delta += gamma * xp.where(terminated != 0, 0, next_value) - value
    return _accumulated(xp, delta, _goes_on(terminated, truncated), gamma * lam)


def td_lambda(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, *, gamma: float | Array, lam: float
) -> Array:
    """The TD(λ) target of the value of each step: its λ-return.

    Gₜ = rₜ + γ · { 0 if terminatedₜ;  next_valueₜ if truncatedₜ or t = T−1;
                    (1 − λ) next_valueₜ + λ Gₜ₊₁ otherwise }

    Args:
        reward, terminated, truncated: `[T, N]` or `[T]`; integer rewards are converted to float32.
        next_value: of the observation arrived in at each step, same shape; not read where terminated.
        gamma: discount per step. lam: 0 gives one-step targets, 1 the discounted return.

    Returns: G, of the shape and dtype of `reward`. It is `gae` + value where next_valueₜ = valueₜ₊₁ inside episodes.
    Source: Sutton & Barto 2018, section 12.1, eq. 12.2 as a recursion.

    >>> no = np.zeros(3, bool)
    >>> td_lambda(np.ones(3), np.full(3, 4.0), no, no, gamma=0.5, lam=0.5)
    array([2.6875, 2.75  , 3.    ])
    """
    _check_shapes(reward, next_value, terminated, truncated)
    xp, target = _float_copy(reward)
    goes_on = _goes_on(terminated, truncated)
    arrived = gamma * xp.where(terminated != 0, 0, next_value)
    target += xp.where(goes_on, (1 - lam) * arrived, arrived)
    return _accumulated(xp, target, goes_on, gamma * lam)


def v_trace(
    behaviour_logp: Array,
    target_logp: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float | Array,
    lam: float = 1,
    rho_bar: float = 1,
    c_bar: float = 1,
    rho_pg_bar: float = 1,
) -> tuple[Array, Array]:
    """V-trace: value targets and advantages under a policy π, from the actions of another policy μ (rules V1, V2).

    πₜ/μₜ = exp(target_logpₜ − behaviour_logpₜ);  ρₜ = min(ρ̄, πₜ/μₜ);  cₜ = λ min(c̄, πₜ/μₜ)
    δₜ = ρₜ (rₜ + γ · (1 − terminatedₜ) · next_valueₜ − Vₜ)
    vsₜ = Vₜ + δₜ + γ cₜ · { 0 if terminatedₜ, truncatedₜ or t = T−1;  vsₜ₊₁ − Vₜ₊₁ otherwise }
    qₜ₊₁ = { next_valueₜ if truncatedₜ or t = T−1;  λ vsₜ₊₁ + (1 − λ) Vₜ₊₁ otherwise }
    Âₜ = min(ρ̄_pg, πₜ/μₜ) (rₜ + γ · (1 − terminatedₜ) · qₜ₊₁ − Vₜ)

    The advantage includes its importance weight: a loss multiplies it by log π and nothing else. On policy with
    λ = 1, vs is the TD(λ = 1) target and Â is vs − V.

    Args:
        behaviour_logp, target_logp: log-probabilities of the actions taken, under μ and under π, `[T, N]` or `[T]`
            like all other arguments.
        reward, terminated, truncated: integer rewards are converted to float32.
        value: the learner's V of the observation acted from.
        next_value: the learner's V of the observation arrived in, so valueₜ₊₁ inside an episode; not read where
            terminated.
        gamma: discount per step. lam: 0 gives one-step targets.
        rho_bar, c_bar, rho_pg_bar: upper bounds of the weights of errors, traces and advantages; may be inf.

    Returns: `(vs, advantage)`, of the shape and dtype of `reward`.
    Source: Espeholt et al. 2018, "IMPALA", section 4.1, eq. 1 and remarks 1 and 2.

    >>> no, zero = np.zeros(2, bool), np.zeros(2)
    >>> v_trace(zero, np.log([2.0, 0.5]), np.ones(2), zero, np.full(2, 4.0), no, no, gamma=0.5)
    (array([3.75, 1.5 ]), array([1.75, 1.5 ]))
    """
    _check_shapes(behaviour_logp, target_logp, reward, value, next_value, terminated, truncated)
    xp, vs = _float_copy(reward)
    goes_on, ratio = _goes_on(terminated, truncated), _ratio(xp, behaviour_logp, target_logp)
    vs += gamma * xp.where(terminated != 0, 0, next_value) - value
    vs *= xp.clip(ratio, None, rho_bar)
    vs = _accumulated(xp, vs, goes_on, gamma * lam * xp.clip(ratio, None, c_bar))
    vs += value
    _, advantage = _float_copy(reward)
    following = xp.where(terminated != 0, 0, next_value)
    following[:-1] = xp.where(goes_on[:-1], lam * vs[1:] + (1 - lam) * value[1:], following[:-1])
    advantage += gamma * following - value
    advantage *= xp.clip(ratio, None, rho_pg_bar)
    return vs, advantage


def retrace(
    q: Array,
    target_value: Array,
    behaviour_logp: Array,
    target_logp: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float | Array,
    lam: float = 1,
) -> Array:
    """The Retrace(λ) target of Q for each action taken, under a policy π, from the actions of another policy μ.

    cₜ = λ min(1, πₜ/μₜ);  πₜ/μₜ = exp(target_logpₜ − behaviour_logpₜ)
    Gₜ = rₜ + γ · { 0 if terminatedₜ;  target_valueₜ if truncatedₜ or t = T−1;
                    target_valueₜ + cₜ₊₁ (Gₜ₊₁ − qₜ₊₁) otherwise }

    Args:
        q: Q(sₜ, aₜ) of the action taken, `[T, N]` or `[T]` like all other arguments.
        target_value: Σₐ π(a | s) Q(s, a) of the observation s *arrived in* at t: the true final one where an
            episode was truncated; not read where terminated.
        behaviour_logp, target_logp: log-probabilities of the actions taken, under μ and π; row 0 is not read.
        reward, terminated, truncated: integer rewards are converted to float32.
        gamma: discount per step. lam: 0 gives one-step targets (expected SARSA).

    Returns: G, of the shape and dtype of `reward`.
    Source: Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", eq. 3 and 4.

    >>> no, zero = np.zeros(2, bool), np.zeros(2)
    >>> retrace(np.ones(2), np.full(2, 4.0), zero, np.log([1.0, 0.5]), np.ones(2), no, no, gamma=0.5)
    array([3.5, 3. ])
    """
    _check_shapes(q, target_value, behaviour_logp, target_logp, reward, terminated, truncated)
    xp, target = _float_copy(reward)
    target += gamma * xp.where(terminated != 0, 0, target_value) - q
    following_trace = xp.roll(lam * xp.clip(_ratio(xp, behaviour_logp, target_logp), None, 1), -1, 0)
    target = _accumulated(xp, target, _goes_on(terminated, truncated), gamma * following_trace)
    target += q
    return target


def _ratio(xp: Any, behaviour_logp: Array, target_logp: Array) -> Array:
    """π/μ, finite in float32 however far apart the two are."""
    return xp.exp(xp.clip(target_logp - behaviour_logp, None, 80))


def _check_shapes(*columns: Array) -> None:
    """Assert that all columns are `[T, N]`, or all `[T]`."""
    shapes = [tuple(column.shape) for column in columns]
    assert all(shape == shapes[0] for shape in shapes), f"shapes differ: {shapes}"
    assert len(shapes[0]) in (1, 2), f"columns are [T, N] or [T], not {shapes[0]}"


def _goes_on(terminated: Array, truncated: Array) -> Array:
    """Whether a next step exists and belongs to the same episode."""
    goes_on = (terminated == 0) & (truncated == 0)
    goes_on[-1:] = False
    return goes_on


def _accumulated(xp: Any, own: Array, goes_on: Array, factor: Array) -> Array:
    """xₜ = ownₜ + factorₜ · xₜ₊₁ where the episode goes on, for all t at once; in place of `own`.

    `factor` is one number, or one per step. By doubling (Hillis & Steele 1986): each pass lets every step look
    twice as far ahead, so log₂ T passes suffice. With the usual few environments this is many times faster than a
    loop over time.
    """
    span, link = 1, xp.asarray(goes_on[:-1], dtype=own.dtype)
    one_number = np.ndim(factor) == 0
    link = link * factor if one_number else xp.where(link != 0, factor[:-1], 0)
    while span < len(own):
        # `where`, not a product: a NaN beyond the episode's end must not leak in.
        own[:-span] += link * xp.where(link != 0, own[span:], 0)
        further = link[:-span] * link[span:]
        link = further if one_number else xp.where(link[:-span] != 0, further, 0)
        span *= 2
    return own


def _float_copy(reward: Array) -> tuple[Any, Array]:
    """The library of an array, and a floating-point copy of it to add to."""
    torch = sys.modules.get("torch")  # loaded already if anyone holds a tensor
    if torch is not None and isinstance(reward, torch.Tensor):
        return torch, reward.clone() if reward.is_floating_point() else reward.float()
    return np, reward.copy() if reward.dtype.kind == "f" else reward.astype(np.float32)
