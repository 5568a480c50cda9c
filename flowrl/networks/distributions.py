"""Action distributions: from network outputs `[B, outputs]` to actions, their log-probabilities and entropy.

Sampling inverts uniform `noise [B, draws]`, each row from the stream of its environment (D2).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from scipy.special import ndtri
from torch import nn

from flowrl.envs.hybrid import HybridActions
from flowrl.errors import ConfigError
from flowrl.networks.in_numpy import log_softmax, to_numpy
from flowrl.networks.sampling import Array, above_zero, argmax_sample, multinomial_sample, uniform_choice
from flowrl.schedules import Schedule, value_at

Pair = tuple[torch.Tensor, torch.Tensor]
#: Outputs of the network: a tensor, or an array if its numpy twin acts.
Given: TypeAlias = Any


#: More choices are refused: a layer of 64 neurons, with a weight for each, would take 4 GiB.
MOST_CHOICES = 2**24

#: An action at a bound of -1 .. 1 counts as ± this, since the inverse of tanh is infinite there.
AT_BOUND = 1 - 1e-6


def check_choices(count: int, role: str) -> None:
    """Raises: ConfigError for so many discrete choices that no network has an input or an output for each."""
    if count > MOST_CHOICES:
        raise ConfigError(
            f"the {role} space has {count} discrete choices, and a network needs a neuron for each: at most "
            f"{MOST_CHOICES} are supported; gymnasium.wrappers.Transform{role.capitalize()} maps them to fewer, or to "
            "a Box of numbers"
        )


class Acting(Protocol):
    """A distribution as acting uses it: `draws` uniform numbers make an action."""

    @property
    def draws(self) -> int: ...

    def sample(self, given: Given, noise: Array) -> tuple[Array, Array]:
        """Sampled actions `[B, ...]` and their log-probabilities `[B]` (G6)."""
        ...

    def mode(self, given: Given) -> Array:
        """The most probable actions `[B, ...]`."""
        ...

    def for_env(self, action: Array) -> Array:
        """The environment's form of a sampled action."""
        ...


class Distribution(Acting, Protocol):
    """A distribution over actions, with `outputs` numbers from the network and `draws` uniform numbers per sample."""

    outputs: int

    def evaluate(self, given: torch.Tensor, action: torch.Tensor) -> Pair:
        """Log-probabilities of actions, and the entropy, each `[B]`."""
        ...

    def divergence(self, given: torch.Tensor, other: Any, other_given: torch.Tensor) -> torch.Tensor:
        """KL(self | other) `[B]`, where `other` is a distribution of the same kind."""
        ...

    def from_env(self, action: Array) -> Array:
        """The sampled action behind an action in the environment's form: the inverse of `for_env`."""
        ...

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        """`for_env(mode(given))` in pure torch."""
        ...

    def in_numpy(self) -> Acting:
        """The same distribution on arrays, which follows the learned parameters."""
        ...


def distribution(space: gymnasium.Space[Any], *, squash: bool = False, log_std: float = 0.0) -> Distribution:
    """The distribution for an action space.

    Args:
        squash: Map continuous actions into their bounds by tanh instead of clipping.
        log_std: Initial logarithm of a Gaussian's standard deviation.

    Raises:
        ConfigError: no distribution fits the space, or `squash` without bounds.
    """
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiCategorical(space.nvec.tolist(), space.start.tolist())
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return MultiCategorical([2] * space.shape[0], [0] * space.shape[0], np.int8)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if squash and not bounded(space):
            raise ConfigError(
                f"squash=True needs bounds to squash into, but the action space {space} has none: leave it out, or "
                "give it some with gymnasium.wrappers.TransformAction"
            )
        return (SquashedGaussian if squash else Gaussian)(space, log_std)
    if isinstance(space, HybridActions):
        return Product(space, [distribution(part, squash=squash, log_std=log_std) for part in space.parts])
    raise ConfigError(f"there is no action distribution for the action space {space}: {way_out(space)}")


def way_out(space: gymnasium.Space[Any]) -> str:
    """What serves an action space that an algorithm does not, to end an error message.

    >>> way_out(spaces.Discrete(2)), way_out(spaces.MultiBinary(3))
    ('take an algorithm for such actions, dqn, ppo or sac', 'take an algorithm for such actions, ppo')
    """
    served = "take an algorithm for such actions, "
    if isinstance(space, spaces.Discrete):
        return served + ("ppo or sac" if space.start else "dqn, ppo or sac")
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return served + ("ppo or sac, or the wrapper DiscretizeAction(5)" if bounded(space) else "ppo")
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and len(space.shape) == 1:
        return served + ("dqn or ppo" if isinstance(space, spaces.MultiDiscrete) and not space.start.any() else "ppo")
    if isinstance(space, HybridActions):
        return served + "ppo, a2c, a3c, impala, appo, ddppo or trpo"
    return "make it Discrete, or a Box of floats with bounds, with gymnasium.wrappers.TransformAction"


def bounded(space: spaces.Box) -> bool:
    """Whether every action of a Box has two bounds, at a finite distance."""
    with np.errstate(over="ignore"):
        return space.is_bounded() and bool(np.isfinite(space.high - space.low).all())


def reach(low: Array, high: Array) -> Array:
    """Half of the distance between bounds; 1 where they are one number, which a Box may have.

    >>> reach(np.array([-1.0, 3.0]), np.array([3.0, 3.0]))
    array([2., 1.])
    """
    return np.where(high > low, (high - low) / 2, 1)


class Categorical:
    """One of n actions; the network gives logits `[B, n]`."""

    draws = 1

    def __init__(self, n: int, start: int = 0) -> None:
        check_choices(n, "action")
        self.outputs, self.start = n, start

    def sample(self, given: Given, noise: Array) -> tuple[Array, Array]:
        logp = log_softmax(given)
        action = multinomial_sample()(logp, noise)
        return action, logp[np.arange(len(action)), action]

    def mode(self, given: Given) -> Array:
        return argmax_sample()(to_numpy(given))

    def evaluate(self, given: torch.Tensor, action: torch.Tensor) -> Pair:
        logp = torch.log_softmax(given, 1)
        return logp.gather(1, action.long().unsqueeze(1)).squeeze(1), -(logp.exp() * logp).sum(1)

    def divergence(self, given: torch.Tensor, other: Categorical, other_given: torch.Tensor) -> torch.Tensor:
        logp = torch.log_softmax(given, 1)
        return (logp.exp() * (logp - torch.log_softmax(other_given, 1))).sum(1)

    def for_env(self, action: Array) -> Array:
        return action + self.start if self.start else action

    def from_env(self, action: Array) -> Array:
        counted: Array = action.astype(np.int64) - self.start
        return counted

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        return given.argmax(1) + self.start

    def in_numpy(self) -> Acting:
        return self


class MultiCategorical:
    """Several independent choices; the network gives their logits side by side."""

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], dtype: Any = np.int64) -> None:
        check_choices(sum(sizes), "action")
        self.sizes, self.starts, self.dtype = list(sizes), np.array(starts, dtype), dtype
        self.choices = [Categorical(size) for size in sizes]
        self.outputs, self.draws = sum(sizes), len(sizes)

    def sample(self, given: Given, noise: Array) -> tuple[Array, Array]:
        drawn = [
            choice.sample(part, noise[:, i : i + 1])
            for i, (choice, part) in enumerate(zip(self.choices, self._parts(given)))
        ]
        return np.stack([action for action, _ in drawn], 1), np.sum([logp for _, logp in drawn], 0)

    def mode(self, given: Given) -> Array:
        return np.stack([choice.mode(part) for choice, part in zip(self.choices, self._parts(given))], 1)

    def evaluate(self, given: torch.Tensor, action: torch.Tensor) -> Pair:
        parts = zip(self.choices, self._parts(given), action.unbind(1))
        logp, entropy = zip(*(choice.evaluate(part, chosen) for choice, part, chosen in parts))
        return torch.stack(logp).sum(0), torch.stack(entropy).sum(0)

    def divergence(self, given: torch.Tensor, other: MultiCategorical, other_given: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.choices, self._parts(given), other._parts(other_given))
        return torch.stack([choice.divergence(part, choice, theirs) for choice, part, theirs in pairs]).sum(0)

    def for_env(self, action: Array) -> Array:
        shifted: Array = action.astype(self.dtype, copy=False) + self.starts
        return shifted

    def from_env(self, action: Array) -> Array:
        counted: Array = action.astype(np.int64) - self.starts
        return counted

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        chosen = [choice.mode_for_env(part) for choice, part in zip(self.choices, self._parts(given))]
        return torch.stack(chosen, 1) + torch.from_numpy(self.starts)

    def in_numpy(self) -> Acting:
        return self

    def _parts(self, given: Given) -> Sequence[Given]:
        return _split(given, self.sizes)


class Gaussian(nn.Module):
    """Independent normal distributions; the network outputs the means, the deviations are parameters.

    log p(u) = Σᵢ −½ ((uᵢ − μᵢ) / σᵢ)² − log σᵢ − ½ log 2π;  the environment gets u, clipped to its bounds.
    """

    def __init__(self, space: spaces.Box, log_std: float = 0.0) -> None:
        super().__init__()
        self.shape, self.low, self.high = space.shape, space.low, space.high
        self.outputs = self.draws = math.prod(space.shape)
        self.log_std = nn.Parameter(torch.full((self.outputs,), float(log_std)))

    def sample(self, given: torch.Tensor, noise: Array) -> tuple[Array, Array]:
        # 0 has no normal quantile; half the smallest step of a uniform number does.
        uniform = torch.from_numpy(above_zero(noise)).to(given.device)
        action = given + self.log_std.exp() * torch.special.ndtri(uniform).to(given.dtype)
        logp = self._logp(given, action)
        return action.cpu().numpy().reshape(-1, *self.shape), logp.cpu().numpy()

    def mode(self, given: torch.Tensor) -> Array:
        mode: Array = given.cpu().numpy().reshape(-1, *self.shape)
        return mode

    def evaluate(self, given: torch.Tensor, action: torch.Tensor) -> Pair:
        entropy = self.log_std.sum() + self.outputs * 0.5 * math.log(2 * math.pi * math.e)
        return self._logp(given, action.reshape(len(action), -1)), entropy.expand(len(action))

    def divergence(self, given: torch.Tensor, other: Gaussian, other_given: torch.Tensor) -> torch.Tensor:
        # Of the Gaussian u; tanh is invertible, so the divergence after it is the same.
        wider = other.log_std - self.log_std
        apart = (given - other_given) * (-other.log_std).exp()
        return (wider + 0.5 * ((-2 * wider).exp() + apart.square() - 1)).sum(1)

    def _logp(self, mean: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        scaled = (action - mean) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(1)

    def for_env(self, action: Array) -> Array:
        return np.clip(action, self.low, self.high)

    def from_env(self, action: Array) -> Array:
        return action

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        return given.reshape(-1, *self.shape).clamp(torch.from_numpy(self.low), torch.from_numpy(self.high))

    def in_numpy(self) -> Acting:
        return GaussianInNumpy(self)


class SquashedGaussian(Gaussian):
    """A Gaussian u whose tanh is scaled into the bounds: the environment gets low + (tanh u + 1) / 2 · (high − low).

    The stored action is u; its log-probability is that of the environment's action:
    log p(u) − Σᵢ log (highᵢ − lowᵢ) / 2 + 2 (log 2 − uᵢ − softplus(−2 uᵢ))  (A1, A2). The entropy is that of u.
    """

    def __init__(self, space: spaces.Box, log_std: float = 0.0) -> None:
        super().__init__(space, log_std)
        self.reach = reach(self.low, self.high)
        self.log_scale = float(np.log(self.reach).sum())

    def _logp(self, mean: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return super()._logp(mean, action) - tanh_log_slope(action).sum(1) - self.log_scale

    def for_env(self, action: Array) -> Array:
        # Rounding must not leave the space.
        inside: Array = np.clip(self.low + (np.tanh(action) + 1) * self.reach, self.low, self.high)
        return inside

    def from_env(self, action: Array) -> Array:
        inside = np.clip((action - self.low) / self.reach - 1, -AT_BOUND, AT_BOUND)  # atanh of a bound is infinite
        drawn: Array = np.arctanh(inside).astype(np.float32)
        return drawn

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        low, high, half = (torch.from_numpy(each) for each in (self.low, self.high, self.reach))
        return (low + (given.reshape(-1, *self.shape).tanh() + 1) * half).clamp(low, high)

    def in_numpy(self) -> Acting:
        return SquashedInNumpy(self)


class Product(nn.Module):
    """Several distributions, independent given the network's outputs: of the parts of `HybridActions` (G11).

    log p(a) = Σₖ log pₖ(aₖ), and so the entropy and the divergence. The outputs of the network and the uniform numbers
    lie side by side, as the parts of an action do. Choices are stored counted from 0.
    """

    def __init__(self, space: HybridActions, parts: Sequence[Any]) -> None:
        super().__init__()
        self.space, self.parts = space, list(parts)
        self._sizes = [part.outputs for part in parts]
        self._learned = nn.ModuleList([part for part in parts if isinstance(part, nn.Module)])
        self.outputs, self.draws = sum(self._sizes), sum(part.draws for part in parts)

    def sample(self, given: Given, noise: Array) -> tuple[Array, Array]:
        numbers = np.split(noise, np.cumsum([part.draws for part in self.parts])[:-1], 1)
        drawn = [part.sample(own, uniform) for part, own, uniform in zip(self.parts, self._given(given), numbers)]
        return self.space.join([action for action, _ in drawn]), np.sum([logp for _, logp in drawn], 0)

    def mode(self, given: Given) -> Array:
        return self.space.join([part.mode(own) for part, own in zip(self.parts, self._given(given))])

    def evaluate(self, given: torch.Tensor, action: torch.Tensor) -> Pair:
        parts = zip(self.parts, self._given(given), self.space.split(action))
        logp, entropy = zip(*(part.evaluate(own, chosen) for part, own, chosen in parts))
        return torch.stack(logp).sum(0), torch.stack(entropy).sum(0)

    def divergence(self, given: torch.Tensor, other: Product, other_given: torch.Tensor) -> torch.Tensor:
        parts = zip(self.parts, self._given(given), other.parts, other._given(other_given))
        return torch.stack([part.divergence(own, theirs, their) for part, own, theirs, their in parts]).sum(0)

    def for_env(self, action: Array) -> Array:
        return self.space.join([part.for_env(own) for part, own in zip(self.parts, self.space.split(action))])

    def from_env(self, action: Array) -> Array:
        return self.space.join([part.from_env(own) for part, own in zip(self.parts, self.space.split(action))])

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        chosen = [part.mode_for_env(own) for part, own in zip(self.parts, self._given(given))]
        return torch.cat([own.reshape(own.shape[0], -1).float() for own in chosen], 1)

    def in_numpy(self) -> Acting:
        twin = copy.copy(self)
        twin.parts = [part.in_numpy() for part in self.parts]
        return twin

    def _given(self, given: Given) -> Sequence[Given]:
        return _split(given, self._sizes)


def _split(given: Given, sizes: Sequence[int]) -> Sequence[Given]:
    """The outputs `[B, sizes]` of each part."""
    if isinstance(given, torch.Tensor):
        return torch.split(given, list(sizes), 1)
    return np.split(given, np.cumsum(sizes)[:-1], 1)


def tanh_log_slope(u: torch.Tensor) -> torch.Tensor:
    """log d tanh(u) / du = log (1 − tanh² u) = 2 (log 2 − u − softplus(−2 u)), finite for any u (A1)."""
    slope: torch.Tensor = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
    return slope


class GaussianInNumpy:
    """A `Gaussian` on arrays."""

    def __init__(self, gaussian: Gaussian) -> None:
        self.draws, self.shape, self.for_env = gaussian.draws, gaussian.shape, gaussian.for_env
        self.log_std = gaussian.log_std.detach().numpy()

    def sample(self, given: Array, noise: Array) -> tuple[Array, Array]:
        std = np.exp(self.log_std)
        action = given + std * ndtri(above_zero(noise)).astype(given.dtype)
        scaled = (action - given) / std
        logp = (-0.5 * scaled * scaled - self.log_std - 0.5 * math.log(2 * math.pi)).sum(1)
        return self.mode(action), logp + self._log_slope(action)

    def mode(self, given: Array) -> Array:
        return given.reshape(-1, *self.shape)

    def _log_slope(self, action: Array) -> Array | float:
        return 0.0


class SquashedInNumpy(GaussianInNumpy):
    """A `SquashedGaussian` on arrays."""

    def __init__(self, gaussian: SquashedGaussian) -> None:
        super().__init__(gaussian)
        self.log_scale = gaussian.log_scale

    def _log_slope(self, action: Array) -> Array:
        slope = 2 * (math.log(2) - action - np.logaddexp(0, -2 * action))
        log_slope: Array = -slope.sum(1) - self.log_scale
        return log_slope


#: Bounds of the logarithm of a standard deviation, as in the code of SAC's authors.
LOG_STD = (-20.0, 2.0)


class ActionHead(Protocol):
    """From outputs of an actor network, arrays `[N, outputs]`, to actions `[N, ...]`, with `noise [N, draws]`."""

    outputs: int
    draws: int

    def explore(self, given: Array, noise: Array, env_steps: int) -> Array:
        """The actions that collect experience."""
        ...

    def greedy(self, given: Array) -> Array:
        """The actions without noise."""
        ...

    def uniform(self, noise: Array, mask: Array | None) -> Array:
        """Uniformly random valid actions."""
        ...

    def for_env(self, action: Array) -> Array:
        """Convert actions to the environment's scale."""
        ...

    def from_env(self, action: Array) -> Array:
        """Convert actions from the environment's scale: the inverse of `for_env`."""
        ...

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        """`for_env(greedy(given))` in pure torch."""
        ...


class LikelihoodHead(ActionHead, Protocol):
    """An `ActionHead` that also tells log-probabilities."""

    def logp(self, given: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """log π(a) `[B]` of stored actions `[B, ...]`."""
        ...


def likelihood_head(space: gymnasium.Space[Any], algorithm: str) -> LikelihoodHead:
    """The action head of an actor that learns from recorded actions: categorical or normal.

    Raises: ConfigError if the space is neither discrete nor a bounded Box.
    """
    if isinstance(space, spaces.Discrete):
        return DiscreteChoice(int(space.n), int(space.start))
    return GaussianChoice(space, algorithm)


class Bounded:
    """Actions of a Box as numbers from -1, the lower bound, to 1, the upper one, in the shape of the space.

    They are stored like this, and critics see them like this, whatever the bounds.

    Raises:
        ConfigError: the space is not a Box of floats, or has no bounds.
    """

    def __init__(self, space: gymnasium.Space[Any], algorithm: str) -> None:
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(
                f"{algorithm} takes continuous actions, but the environment's action space is {space}: {way_out(space)}"
            )
        if not bounded(space):
            raise ConfigError(
                f"{algorithm} scales actions between their bounds, but the action space {space} has none: "
                f"{way_out(space)}, or give it some with gymnasium.wrappers.TransformAction"
            )
        self.shape, self.low, self.high = space.shape, space.low, space.high
        self.size = self.draws = math.prod(space.shape)

    def uniform(self, noise: Array, mask: Array | None = None) -> Array:
        return (2 * noise - 1).astype(np.float32).reshape(-1, *self.shape)

    def for_env(self, action: Array) -> Array:
        scaled = self.low + (action + 1) * ((self.high - self.low) / 2)
        # Rounding must not leave the space. For few numbers this is faster than np.clip.
        inside: Array = np.minimum(np.maximum(scaled, self.low), self.high)
        return inside

    def from_env(self, action: Array) -> Array:
        scaled = (action - self.low) / reach(self.low, self.high) - 1
        inside: Array = np.clip(scaled, -1, 1).astype(np.float32)
        return inside

    def mode_for_env(self, given: torch.Tensor) -> torch.Tensor:
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        action = given[:, : self.size].tanh().reshape(-1, *self.shape)
        return (low + (action + 1) * ((high - low) / 2)).clamp(low, high)


class GaussianChoice(Bounded):
    """A normal distribution around tanh of the network's output, clipped to -1 .. 1; unlike tanh of a normal
    distribution, it has a density at the bounds, where many recorded actions lie.

    The network outputs means and log-deviations, `[B, 2 · size]`.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", appendix B.
    """

    #: Bounds of the logarithm of a deviation.
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
    """tanh of the network's output, plus normal noise of deviation `std` when exploring, clipped to -1 .. 1.

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
    """tanh of a normal distribution; the network outputs means and log-deviations, `[B, 2 · size]`."""

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
        """Reparametrised actions `[B, size]` from normal numbers `[B, size]`, and their log π `[B]`.

        a = tanh u, u = μ + σ n;  log π(a) = Σᵢ −½ nᵢ² − log σᵢ − ½ log 2π − log (1 − tanh² uᵢ)  (A1).
        This is the density of the action in -1 .. 1, before rescaling (A2): the environment's units change neither the
        entropy nor its target.
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
