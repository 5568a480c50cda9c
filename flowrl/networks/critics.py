"""Critics: several Q-networks computed as one; and the actor that learns from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import nn

from flowrl.networks.in_numpy import Function, in_numpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import Encoder, mlp

#: Some of several networks, by their numbers.
Some = slice | torch.Tensor

ALL, FIRST = slice(None), slice(1)


class Stacked(nn.Module):
    """Linear layers of k networks side by side: `[k, B, in]` to `[k, B, out]`, initialized like `nn.Linear`."""

    def __init__(self, k: int, fan_in: int, fan_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(k, fan_in, fan_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(k, 1, fan_out).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor, frozen: bool = False, only: Some = ALL) -> torch.Tensor:
        """Inputs of `only` these networks. With `frozen`, gradients flow to `x` but not to the weights."""
        weight, bias = weights_of(self, frozen, only)
        if weight.shape[2] == 1:  # several times as fast as a product with a matrix of one column
            single: torch.Tensor = (x * weight.mT).sum(2, keepdim=True) + bias
            return single
        return torch.baddbmm(bias, x, weight)


class StackedNorm(nn.Module):
    """Layer normalization of k networks side by side, `[k, B, width]`."""

    def __init__(self, k: int, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(k, 1, width)), nn.Parameter(torch.zeros(k, 1, width))

    def forward(self, x: torch.Tensor, frozen: bool = False, only: Some = ALL) -> torch.Tensor:
        """Arguments as for `Stacked`."""
        weight, bias = weights_of(self, frozen, only)
        return torch.addcmul(bias, nn.functional.layer_norm(x, x.shape[2:]), weight)


def weights_of(layer: Any, frozen: bool, only: Some = ALL) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight and bias of `only` these networks. With `frozen` they get no gradients."""
    weight, bias = (layer.weight.detach(), layer.bias.detach()) if frozen else (layer.weight, layer.bias)
    return (weight, bias) if only is ALL else (weight[only], bias[only])


class Critics(nn.Module):
    """k networks that evaluate actions, and the encoder of observations that they share.

    Args:
        size: Numbers of an action; 0: there are n discrete actions, all evaluated at once.
        outputs: 1, or n.
        dropout: Share of the hidden units that each evaluation drops; learning draws them from the policy's stream.
        layer_norm: Normalize each hidden layer before its activation.
    """

    def __init__(
        self,
        encoder: Encoder,
        size: int,
        outputs: int,
        hidden: Sequence[int],
        k: int,
        *,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.k, self.size, self.dropout = encoder, k, size, dropout
        sizes = [encoder.features + size, *hidden, outputs]
        self.layers = nn.ModuleList(Stacked(k, *pair) for pair in pairwise(sizes))
        self.norms = nn.ModuleList(StackedNorm(k, width) for width in hidden if layer_norm)

    def forward(
        self,
        features: torch.Tensor,
        action: torch.Tensor | None = None,
        *,
        frozen: bool = False,
        only: Some = ALL,
        **how: Any,
    ) -> torch.Tensor:
        """Values `[k, B]` of actions `[B, ...]`, or without actions `[k, B, n]`, from features `[B, ...]`.

        `[k, B, outputs]` of actions if there are several outputs. With `frozen`, gradients flow to the actions but not
        to the critics' weights. `only` some of the critics evaluate. `how` are further arguments of `_values`.
        """
        x = features if action is None else torch.cat([features, action.reshape(len(action), self.size)], 1)
        x = x.expand(self.k if only is ALL else len(torch.arange(self.k)[only]), *x.shape)
        values = self._values(x, frozen, only, **how).float()  # whatever precision the layers use
        return values if action is None else values.squeeze(2)

    def slopes(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """∂Qₖ/∂a `[k, B, size]` of actions `[B, ...]`; gradients flow through it to the weights."""
        flat = action.reshape(len(action), self.size).clone().requires_grad_()
        x = torch.cat([features, flat], 1).expand(self.k, -1, -1).contiguous()
        (found,) = torch.autograd.grad(self._values(x, False, ALL).sum(), x, create_graph=True)
        return found[..., -self.size :]

    def _values(self, x: torch.Tensor, frozen: bool, only: Some) -> torch.Tensor:
        """The outputs `[k, B, outputs]` for inputs `[k, B, ...]`."""
        *hidden, last = self.layers
        for layer, norm in zip_longest(hidden, self.norms):
            x = layer(x, frozen, only)
            if self.dropout:  # on the CPU, whose generator the policy's stream replaces
                x = x * (torch.rand(x.shape) >= self.dropout).to(x.device) / (1 - self.dropout)
            if norm is not None:
                x = norm(x, frozen, only)
            x = torch.relu_(x)  # in place: large new arrays cost as much as the products
        values: torch.Tensor = last(x, frozen, only)
        return values


class ActorAndCritics(nn.Module):
    """An actor on the critics' features, and the critics. `forward` is the actor's: `[B, outputs]`.

    An encoder with weights (of images, say) learns from the critics alone. An actor that reads other entries of the
    observations than the critics has an `encoder` of its own, which learns with it.

    Source: Yarats et al. 2021, "Improving Sample Efficiency in Model-Free Reinforcement Learning from Images".
    """

    def __init__(self, critics: Critics, outputs: int, hidden: Sequence[int], encoder: Encoder | None = None) -> None:
        super().__init__()
        self.critics, self.encoder = critics, encoder
        features = (encoder or critics.encoder).features
        self.actor = self._layers([features, *hidden, outputs])

    def _layers(self, sizes: Sequence[int]) -> nn.Module:
        """The layers of the actor."""
        return mlp(sizes, partial(nn.ReLU, inplace=True))

    def forward(self, obs: Any) -> torch.Tensor:
        return self.choose((self.encoder or self.critics.encoder)(obs), obs)

    def choose(self, features: torch.Tensor, obs: Any) -> torch.Tensor:
        """The actor's output from the features of these observations; invalid actions have probability 0."""
        seen = features.detach() if self.encoder is None else features
        given: torch.Tensor = masked(self.actor(seen).float(), action_mask(obs))
        return given

    def in_numpy(self) -> Function:
        encode, actor = in_numpy(self.encoder or self.critics.encoder), in_numpy(self.actor)
        return lambda obs: masked(actor(encode(obs)), action_mask(obs))
