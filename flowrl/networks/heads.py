"""Heads of Q-networks: they model the return of an action by its mean, a categorical distribution, or quantiles.

DQN, C51 and QR-DQN differ only in their head. `outputs` of the network are `[B, A, *shape]`, or `[B, *shape]` for one
action per row. `_tm1` is the state acted from, `_t` the state arrived in.
"""

from __future__ import annotations

import abc
import math

import attrs
import numpy as np
import torch
from torch import nn

from flowrl.errors import ConfigError
from flowrl.networks.in_numpy import Function, log_softmax
from flowrl.settings import Settings, positive, setting


class ValueHead(nn.Module, abc.ABC):
    """Base of heads."""

    shape: tuple[int, ...]  #: of the outputs for one action

    @property
    def width(self) -> int:
        """The outputs of the network's last layer for one action."""
        return math.prod(self.shape)

    @abc.abstractmethod
    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values, `[..., *shape]` to `[...]`."""

    def in_numpy(self) -> Function:
        """The same function on arrays."""
        return self.forward

    @abc.abstractmethod
    def target(self, reward: torch.Tensor, discount: torch.Tensor, outputs_t: torch.Tensor) -> torch.Tensor:
        """Targets `[B, ...]` of the outputs for the action taken, from `outputs_t` of the best next action.

        Args:
            reward: `[B]`, the return of the window.
            discount: `[B]`, gamma**k for a window of k steps, 0 if it ended in a terminal state (N2, T6).
        """

    @abc.abstractmethod
    def errors(self, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of each row, `[B]`."""

    def priority(self, errors: torch.Tensor, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Priority of each row, how much there was to learn from it, `[B]`: here its loss."""
        return errors


class MeanHead(ValueHead):
    """The mean return alone, as DQN learns it: y = r + d · Q_t.

    The loss is the Huber loss with delta 1 of Q and y, the priority |y − Q|.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning"; of the priority: Schaul et al.
    2016, "Prioritized Experience Replay", section 3.3.
    """

    shape = ()

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs

    def target(self, reward: torch.Tensor, discount: torch.Tensor, outputs_t: torch.Tensor) -> torch.Tensor:
        return reward + discount * outputs_t

    def errors(self, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.smooth_l1_loss(outputs_tm1, target, reduction="none")

    def priority(self, errors: torch.Tensor, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (target - outputs_tm1).abs()


class SquaredHead(MeanHead):
    """The mean return, learned by the squared error."""

    def errors(self, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (outputs_tm1 - target).square()


@attrs.frozen(kw_only=True, slots=False)
class CategoricalSettings(Settings):
    """The distribution of returns."""

    atoms: int = positive(51, "atoms of the distribution of returns, evenly spaced")
    v_min: float = setting(0.0, "smallest atom: a lower bound of discounted returns")
    v_max: float = setting(100.0, "largest atom: an upper bound of discounted returns")


class CategoricalHead(ValueHead):
    """Logits of the probabilities of `atoms` returns z_0 .. z_{K−1}, evenly spaced from `v_min` to `v_max`.

    The value is Σ p_i z_i. The target is the distribution of r + d z, projected onto the atoms; the loss is its
    cross entropy with the prediction. The priority is their KL divergence: the cross entropy without the entropy of the
    target, which no learning can reduce.

    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", algorithm 1; of the
    priority: Hessel et al. 2018, "Rainbow", section "The Integrated Agent".

    Raises:
        ConfigError: fewer than two atoms, or v_min >= v_max.
    """

    support: torch.Tensor

    def __init__(self, atoms: int, v_min: float, v_max: float) -> None:
        super().__init__()
        if atoms < 2:
            raise ConfigError(f"atoms={atoms}: a categorical distribution of returns needs at least 2")
        if not v_min < v_max:
            raise ConfigError(f"v_min={v_min} and v_max={v_max}: expected v_min < v_max, the bounds of the return")
        self.shape, self.v_min, self.v_max = (atoms,), v_min, v_max
        # A constant: neither saved nor sent.
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms), persistent=False)

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(outputs, -1) * self.support).sum(-1)  # a product `@` would be rounded in mixed precision

    def in_numpy(self) -> Function:
        support = self.support.numpy()
        return lambda outputs: np.exp(log_softmax(outputs)) @ support

    def target(self, reward: torch.Tensor, discount: torch.Tensor, outputs_t: torch.Tensor) -> torch.Tensor:
        moved = reward[:, None] + discount[:, None] * self.support
        return project(torch.softmax(outputs_t, -1), moved, self.v_min, self.v_max)

    def errors(self, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -(target * torch.log_softmax(outputs_tm1, -1)).sum(-1)

    def priority(self, errors: torch.Tensor, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        entropy = -torch.xlogy(target, target).sum(-1)
        return (errors - entropy).clamp(min=0)  # rounding may give less than 0


def project(probabilities: torch.Tensor, returns: torch.Tensor, v_min: float, v_max: float) -> torch.Tensor:
    """Probabilities `[B, K]` of any `returns [B, K]` as those of K atoms evenly spaced from v_min to v_max (Q4).

    The probability of a return between two atoms is split between them, in favor of the nearer; beyond the range it
    goes to the nearest end. No probability is lost, even if a return equals an atom: the lower neighbor is never the
    last atom, so the upper one is always another.

    >>> project(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[-1.0, 1.0, 1.5]]), 0.0, 2.0)
    tensor([[0.5000, 0.3750, 0.1250]])
    """
    assert probabilities.shape == returns.shape
    last = returns.shape[1] - 1
    place = ((returns.clamp(v_min, v_max) - v_min) / (v_max - v_min) * last).clamp(0, last)
    lower = place.floor().clamp(max=last - 1)
    above = probabilities * (place - lower)
    index = lower.long()
    projected = torch.zeros_like(probabilities).scatter_add_(1, index, probabilities - above)
    return projected.scatter_add_(1, index + 1, above)


@attrs.frozen(kw_only=True, slots=False)
class QuantileSettings(Settings):
    """The distribution of returns."""

    quantiles: int = positive(10, "quantiles of the distribution of returns, evenly spaced")


class QuantileHead(ValueHead):
    """Quantiles θ_0 .. θ_{K−1} of the return, at the midpoints τ_i = (2i + 1) / 2K.

    The value is their mean. The target is r + d θ_t, K samples of the return; the loss is the quantile Huber loss, and
    so is the priority: the paper samples uniformly; the loss as priority follows Rainbow.

    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", algorithm 1.

    Raises:
        ConfigError: fewer than one quantile.
    """

    levels: torch.Tensor

    def __init__(self, quantiles: int) -> None:
        super().__init__()
        if quantiles < 1:
            raise ConfigError(f"quantiles={quantiles}: expected at least 1")
        self.shape = (quantiles,)
        self.register_buffer("levels", (torch.arange(quantiles) + 0.5) / quantiles, persistent=False)

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.mean(-1)

    def target(self, reward: torch.Tensor, discount: torch.Tensor, outputs_t: torch.Tensor) -> torch.Tensor:
        return reward[:, None] + discount[:, None] * outputs_t

    def errors(
        self, outputs_tm1: torch.Tensor, target: torch.Tensor, levels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `ValueHead.errors`; `levels [B, K]` of the outputs, if they are not the midpoints."""
        return quantile_huber(outputs_tm1, target, self.levels if levels is None else levels)


class ImplicitHead(QuantileHead):
    """The quantiles of an `ImplicitQNetwork`, which computes one at a time, at any level.

    Values are means over the midpoints of `quantiles` levels; the loss is that at the levels of the outputs.
    """

    width = 1


def quantile_huber(quantiles: torch.Tensor, samples: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """How far `quantiles [B, K]` at `levels [K]` or `[B, K]` are from those of `samples [B, J]`, `[B]` (Q5).

    Σ_i mean_j |τ_i − 1{u_ij < 0}| · huber(u_ij), u_ij = sample_j − θ_i, delta 1: a sample above a quantile costs τ_i,
    one below it 1 − τ_i.

    Source: Dabney et al. 2018, eq. 10 and algorithm 1.

    >>> quantile_huber(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0]]), torch.tensor([0.25, 0.75]))
    tensor([0.2500])
    """
    assert quantiles.shape == (len(samples), levels.shape[-1])
    u = samples[:, None, :] - quantiles[:, :, None]
    size = u.abs()
    huber = torch.where(size < 1, 0.5 * u * u, size - 0.5)
    return ((levels[..., None] - (u < 0).float()).abs() * huber).mean(2).sum(1)
