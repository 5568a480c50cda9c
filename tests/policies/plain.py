"""The networks of an actor with critics, taken apart into plain ones, and rows for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.networks.critics import Critics


def apart(critics: Critics) -> list[nn.Sequential]:
    """Each critic as a network of its own, with copies of the weights."""
    networks = []
    for k in range(critics.k):
        layers: list[nn.Module] = []
        for stacked, norm in zip_longest(critics.layers, critics.norms):
            linear = nn.Linear(*stacked.weight.shape[1:])
            linear.weight.data = stacked.weight[k].detach().T.clone()
            linear.bias.data = stacked.bias[k, 0].detach().clone()
            layers.append(linear)
            if norm is not None:
                layers.append(nn.LayerNorm(norm.weight.shape[2]))
                layers[-1].weight.data = norm.weight[k, 0].detach().clone()
                layers[-1].bias.data = norm.bias[k, 0].detach().clone()
            layers.append(nn.ReLU())
        networks.append(nn.Sequential(*layers[:-1]))
    return networks


def pairs(critics: Critics, networks: list[nn.Sequential]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Gradients of the critics beside those of the networks apart."""
    for k, network in enumerate(networks):
        linears = [layer for layer in network if isinstance(layer, nn.Linear)]
        for stacked, linear in zip(critics.layers, linears):
            yield stacked.weight.grad[k].T, linear.weight.grad
            yield stacked.bias.grad[k, 0], linear.bias.grad


def rows(n: int, size: int, *, actions: int | None = None, weighted: bool = False) -> Batch:
    """Rows `[n]` with observations `[n, 3]` and actions of `size` numbers in -1 .. 1, or one of `actions`."""
    draw = np.random.default_rng(7)
    columns = {
        "obs": draw.normal(size=(n, 3)).astype(np.float32),
        "action": draw.uniform(-1, 1, (n, size)).astype(np.float32)
        if actions is None
        else draw.integers(actions, size=n),
        "reward": draw.normal(size=n),
        "next_obs": draw.normal(size=(n, 3)).astype(np.float32),
        "discount": np.where(draw.random(n) < 0.3, 0, 0.9).astype(np.float32),
    }
    if weighted:
        columns |= {"weight": draw.random(n).astype(np.float32), "index": np.arange(n), "generation": np.zeros(n, int)}
    return Batch(columns)
