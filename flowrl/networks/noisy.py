"""Noisy networks: exploration by noise in the weights, whose scale is learned with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.special import ndtri
from torch import nn

from flowrl.networks.in_numpy import Function, layers_of, linear_in_numpy
from flowrl.networks.sampling import Array, above_zero

#: The layers of a network in order, each with a flag whether it is noisy.
Steps: TypeAlias = list[tuple[Function, bool]]

#: σ_0: the noise of a layer with n inputs starts at σ_0 / √n.
SIGMA = 0.5


class NoisyLinear(nn.Linear):
    """A linear layer with factorized noise, y = (μ + σ ∘ ε_out ε_inᵀ) x + μ_b + σ_b ∘ ε_out; without noise σ = 0.

    `weight` and `bias` are the μ. The noise is an argument, ε_in and ε_out side by side: `[B, draws]` per row, or
    `[1, draws]` for all rows, of `[B, in]` or `[B, K, in]`. Neither builds a weight matrix per row.

    Source: Fortunato et al. 2018, "Noisy Networks for Exploration", eq. 9 to 11 and section 3.2.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)  # uniform in ±1/√in, as in the paper
        self.draws = in_features + out_features  #: numbers of noise
        sigma = SIGMA / math.sqrt(in_features)
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), sigma))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), sigma))

    def forward(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x)
        if noise is None:
            return y
        noise = noise[:, None] if x.ndim > 2 else noise
        entering, leaving = noise[..., : self.in_features], noise[..., self.in_features :]
        return y + nn.functional.linear(x * entering, self.weight_sigma, self.bias_sigma) * leaving

    def in_numpy(self) -> Function:
        mean, spread = linear_in_numpy(self.weight, self.bias), linear_in_numpy(self.weight_sigma, self.bias_sigma)
        split = self.in_features

        def forward(x: Array, noise: Array | None = None) -> Array:
            y: Array = mean(x)
            if noise is not None:
                noise = noise[:, None] if x.ndim > 2 else noise
                y += spread(x * noise[..., :split]) * noise[..., split:]
            return y

        return forward


def signed_root(normal: Array) -> Array:
    """f(ε) = sign(ε) √|ε|, the factors of factorized noise from normal numbers; as float32.

    >>> signed_root(np.array([4.0, -9.0]))
    array([ 2., -3.], dtype=float32)
    """
    return (np.sign(normal) * np.sqrt(np.abs(normal))).astype(np.float32)


def noise_of(uniform: Array) -> Array:
    """Noise `[N, draws]` for acting, from uniform numbers in [0, 1) of each environment's stream (D2)."""
    return signed_root(ndtri(above_zero(uniform)))


def steps_of(network: nn.Module, made: Callable[[nn.Module], Function] = lambda layer: layer) -> Steps:
    """The layers of a network, or functions made of them, each with a flag whether it is noisy."""
    return [(made(layer), isinstance(layer, NoisyLinear)) for layer in layers_of(nn.Sequential(network))]


def with_noise(networks: Iterable[Steps], parts: Iterable[Any]) -> list[Function]:
    """Functions that pass `x` through these networks, each to be called once, in order.

    Every noisy layer takes the next part of the noise. Tensors or arrays.
    """
    left = iter(parts)

    def through(steps: Steps, x: Any) -> Any:
        for step, noisy in steps:
            x = step(x, next(left)) if noisy else step(x)
        return x

    return [partial(through, steps) for steps in networks]
