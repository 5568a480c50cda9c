"""Actions of bounded boxes in a policy's own scale, and the ways in which a policy chooses them."""

from __future__ import annotations

import math
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from scipy.special import ndtri

from flowrl.errors import ConfigError
from flowrl.policies.distributions import Categorical, tanh_log_slope
from flowrl.policies.wrappers import Array, above_zero, uniform_choice
from flowrl.schedules import Schedule, value_at

#: Between which the logarithm of a standard deviation is kept, as the authors of SAC do.
LOG_STD = (-20.0, 2.0)


class Choosing(Protocol):
    """From what an actor network gives, arrays `[N, outputs]`, to actions `[N, ...]`, with `noise [N, draws]`."""

    outputs: int
    draws: int

    def explore(self, given: Array, noise: Array, env_steps: int) -> Array:
        """What is done to collect experience."""
        ...

    def greedy(self, given: Array) -> Array:
        """What is done without noise."""
        ...

    def uniform(self, noise: Array, mask: Array | None) -> Array:
        """A valid action at random, whatever the network gives."""
        ...

    def for_env(self, action: Array) -> Array:
        """What the environment gets for it."""
        ...

    def from_env(self, action: Array) -> Array:
        """The inverse: what an action in the environment's own numbers is here."""
        ...

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        """`for_env(greedy(given))` in torch alone."""
        ...


class Likely(Choosing, Protocol):
    """And how probable an action is."""

    def logp(self, given: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """log π(a) `[B]` of actions `[B, ...]` as they are stored."""
        ...


def likely_choice(space: gymnasium.Space[Any], algorithm: str) -> Likely:
    """How an actor chooses that learns from recorded actions: among discrete ones, or by a normal distribution.

    Raises: ConfigError for another space.
    """
    if isinstance(space, spaces.Discrete):
        return DiscreteChoice(int(space.n), int(space.start))
    return GaussianChoice(space, algorithm)


class Bounded:
    """Actions of a Box as numbers from -1, the lower bound, to 1, the upper one, in the shape of the space.

    So they are stored, and so critics see them, whatever the bounds are.

    Raises:
        ConfigError: the space is no Box of floats, or has no bounds.
    """

    def __init__(self, space: gymnasium.Space[Any], algorithm: str) -> None:
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(
                f"{algorithm} takes continuous actions, but the environment's action space is {space}: take an "
                "algorithm for such actions, as dqn or ppo, or an environment with a Box of floats"
            )
        if not space.is_bounded() or not np.isfinite(space.high - space.low).all():
            raise ConfigError(
                f"{algorithm} scales actions between their bounds, but the action space {space} has none: "
                "gymnasium.wrappers.RescaleAction or TransformAction gives it some, or take ppo, which needs none"
            )
        self.shape, self.low, self.high = space.shape, space.low, space.high
        self.size = self.draws = math.prod(space.shape)

    def uniform(self, noise: Array, mask: Array | None = None) -> Array:
        return (2 * noise - 1).astype(np.float32).reshape(-1, *self.shape)

    def for_env(self, action: Array) -> Array:
        scaled = self.low + (action + 1) * ((self.high - self.low) / 2)
        # Rounding must not lead out of the space.
        inside: Array = np.clip(scaled, self.low, self.high)
        return inside

    def from_env(self, action: Array) -> Array:
        reach = np.where(self.high > self.low, (self.high - self.low) / 2, 1)  # some space has a number that is fixed
        scaled = (action - self.low) / reach - 1
        inside: Array = np.clip(scaled, -1, 1).astype(np.float32)
        return inside

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        action = given[:, : self.size].tanh().reshape(-1, *self.shape)
        return (low + (action + 1) * ((high - low) / 2)).clamp(low, high)


class GaussianChoice(Bounded):
    """A normal distribution around tanh of what the network gives, clipped to -1 .. 1; unlike tanh of a normal one it
    has a density at the bounds too, where many recorded actions are.

    The network gives means and logarithms of deviations, `[B, 2 · size]`.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", appendix B.
    """

    #: Between which the logarithm of a deviation is kept.
    LOG_STD = (-5.0, 2.0)

    def __init__(self, space: gymnasium.Space[Any], algorithm: str) -> None:
        super().__init__(space, algorithm)
        self.outputs = 2 * self.size

    def explore(self, given: Array, noise: Array, env_steps: int) -> Array:
        mean, log_std = np.split(given, 2, 1)
        drawn = np.tanh(mean) + np.exp(np.clip(log_std, *self.LOG_STD)) * ndtri(above_zero(noise))
        action: Array = np.clip(drawn, -1, 1).astype(np.float32).reshape(-1, *self.shape)
        return action

    def greedy(self, given: Array) -> Array:
        return np.tanh(given[:, : self.size]).reshape(-1, *self.shape)

    def logp(self, given: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """log π(a) `[B]` of actions `[B, ...]`: Σᵢ −½ ((aᵢ − tanh μᵢ) / σᵢ)² − log σᵢ − ½ log 2π, in -1 .. 1."""
        mean, log_std = given.chunk(2, 1)
        log_std = log_std.clamp(*self.LOG_STD)
        apart = (action.reshape(len(action), -1) - mean.tanh()) * (-log_std).exp()
        return (-0.5 * apart.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(1)


class NoisyChoice(Bounded):
    """tanh of what the network gives, and when exploring normal noise of deviation `std`, clipped to -1 .. 1.

    Args:
        std: A number, or a function of env steps.
    """

    def __init__(self, space: gymnasium.Space[Any], algorithm: str, std: Schedule) -> None:
        super().__init__(space, algorithm)
        self.outputs, self.std = self.size, std

    def explore(self, given: Array, noise: Array, env_steps: int) -> Array:
        added = value_at(self.std, env_steps) * ndtri(above_zero(noise)).reshape(-1, *self.shape)
        action: Array = np.clip(self.greedy(given) + added, -1, 1).astype(np.float32)
        return action

    def greedy(self, given: Array) -> Array:
        return np.tanh(given).reshape(-1, *self.shape)


class SquashedChoice(Bounded):
    """tanh of a normal distribution; the network gives means and logarithms of deviations, `[B, 2 · size]`."""

    def __init__(self, space: gymnasium.Space[Any], algorithm: str) -> None:
        super().__init__(space, algorithm)
        self.outputs = 2 * self.size

    def explore(self, given: Array, noise: Array, env_steps: int) -> Array:
        mean, log_std = np.split(given, 2, 1)
        normal = ndtri(above_zero(noise)).astype(given.dtype)
        return self.greedy(mean + np.exp(np.clip(log_std, *LOG_STD)) * normal)

    def greedy(self, given: Array) -> Array:
        return np.tanh(given[:, : self.size]).reshape(-1, *self.shape)

    def sample(self, given: torch.Tensor, normal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions `[B, size]` made of normal numbers `[B, size]`, so that gradients pass, and their log π `[B]`.

        a = tanh u, u = μ + σ n;  log π(a) = Σᵢ −½ nᵢ² − log σᵢ − ½ log 2π − log (1 − tanh² uᵢ)  (A1).
        It is the density of the action in -1 .. 1, in which nothing is rescaled (A2): units of the environment change
        neither the entropy nor its target.
        """
        mean, log_std = given.chunk(2, 1)
        log_std = log_std.clamp(*LOG_STD)
        u = mean + log_std.exp() * normal
        logp = -0.5 * normal.square() - log_std - tanh_log_slope(u)
        return u.tanh(), logp.sum(1) - self.size * (0.5 * math.log(2 * math.pi))


class DiscreteChoice(Categorical):
    """One of n actions; the network gives logits `[B, n]`."""

    def explore(self, given: Array, noise: Array, env_steps: int) -> Array:
        return self.sample(given, noise)[0]

    def greedy(self, given: Array) -> Array:
        return self.mode(given)

    def logp(self, given: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """log π(a) `[B]` of actions `[B]`."""
        return self.evaluate(given, action)[0]

    def uniform(self, noise: Array, mask: Array | None = None) -> Array:
        return uniform_choice(noise[:, 0], np.ones((len(noise), self.outputs), np.bool_) if mask is None else mask)
