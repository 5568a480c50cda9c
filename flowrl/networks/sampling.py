"""Model wrappers: one shared model, several behaviors.

A wrapper turns a model's outputs for `[N]` observations into the columns of `[N]` actions. Wrappers work on host
arrays, since N is the number of environments that act together. Randomness is an argument: `noise`, uniform in
[0, 1) `[N, draws]`, each row from the stream of its environment, so actions do not depend on which environments act
together (D2).
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from flowrl.schedules import Schedule, value_at

Array = np.ndarray[Any, np.dtype[Any]]


def above_zero(noise: Array) -> Array:
    """Uniform numbers in (0, 1) from those in [0, 1): 0 has no quantile if there is no lower bound."""
    return np.maximum(noise, 2.0**-54)


def uniform_choice(noise: Array, mask: Array) -> Array:
    """One of the valid actions `[N, A]` at random, by uniform noise `[N]`; 0 if none is valid."""
    rank = (noise * mask.sum(1)).astype(np.int64)
    chosen: Array = (mask.cumsum(1) > rank[:, None]).argmax(1)
    return chosen


@attrs.frozen
class argmax_sample:
    """The valid action of highest value `[N, A]`. Draws nothing."""

    draws = 0

    def __call__(
        self, value: Array, noise: Array | None = None, env_steps: int = 0, mask: Array | None = None
    ) -> Array:
        best: Array = (value if mask is None else np.where(mask, value, -np.inf)).argmax(1)
        return best


@attrs.frozen
class eps_greedy_sample:
    """With probability epsilon a random valid action, else the valid action of highest value.

    One coin per environment (Q8), from `noise[:, 0]`; `noise[:, 1]` chooses the random action. `epsilon` is a
    number, or a function of the env steps so far (Q7).
    """

    epsilon: Schedule
    draws = 2

    def __call__(self, value: Array, noise: Array, env_steps: int, mask: Array | None = None) -> Array:
        greedy = argmax_sample()(value, mask=mask)
        chosen = noise[:, 1]
        random = (chosen * value.shape[1]).astype(np.int64) if mask is None else uniform_choice(chosen, mask)
        return np.where(noise[:, 0] < value_at(self.epsilon, env_steps), random, greedy)


@attrs.frozen
class multinomial_sample:
    """A valid action with probability proportional to exp(log-probability), by inversion of `noise[:, 0]`."""

    draws = 1

    def __call__(self, logp: Array, noise: Array, env_steps: int = 0, mask: Array | None = None) -> Array:
        bounds = np.exp(logp if mask is None else np.where(mask, logp, -np.inf)).cumsum(1)
        # Scaled by the last bound: rounding must not leave a gap above it.
        action: Array = (bounds > noise[:, :1] * bounds[:, -1:]).argmax(1)
        return action


@attrs.frozen
class softmax_sample:
    """A valid action with probability proportional to exp(value / temperature), by inversion of `noise[:, 0]`."""

    temperature: float
    draws = 1

    def __call__(self, value: Array, noise: Array, env_steps: int = 0, mask: Array | None = None) -> Array:
        best = (value if mask is None else np.where(mask, value, -np.inf)).max(1, keepdims=True)
        return multinomial_sample()((value - best) / self.temperature, noise, env_steps, mask)
