"""Networks: small, for vector observations. Each maps float32 `[B, features]` to its outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium
import torch
from torch import nn

from flowrl.errors import ConfigError


def features_of(space: gymnasium.Space[Any]) -> int:
    """How many numbers an observation is, flattened.

    Raises:
        ConfigError: the observations are not vectors of numbers.
    """
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) <= 2:
        return math.prod(space.shape)
    raise ConfigError(
        f"these networks need vectors of numbers, the observation space is {space}; "
        "wrap the environment with gymnasium.wrappers.FlattenObservation"
    )


def actions_of(space: gymnasium.Space[Any], algorithm: str) -> int:
    """How many actions a discrete algorithm chooses from.

    Raises:
        ConfigError: the actions are not discrete.
    """
    if isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise ConfigError(
        f"{algorithm} chooses among discrete actions 0 .. n-1, but the environment's action space is {space}; "
        "take a continuous algorithm, or an environment with Discrete(n) actions that start at 0"
    )


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of the given sizes with an activation after each but the last."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


class QNetwork(nn.Module):
    """Action values `[B, A]`, optionally dueling.

    Dueling: Q(s, a) = V(s) + A(s, a) − mean over the valid a' of A(s, a')  (Q3).

    Source: Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning", eq. 9.
    """

    def __init__(self, features: int, actions: int, hidden: Sequence[int], *, dueling: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), mlp([features, *hidden]), nn.ReLU())
        self.advantage = nn.Linear(hidden[-1], actions)
        self.value = nn.Linear(hidden[-1], 1) if dueling else None

    def forward(self, obs: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.trunk(obs)
        advantage: torch.Tensor = self.advantage(hidden)
        if self.value is None:
            return advantage
        if mask is None:
            mean = advantage.mean(1, keepdim=True)
        else:
            mean = (advantage * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        q: torch.Tensor = self.value(hidden) + advantage - mean
        return q


class ActorCritic(nn.Module):
    """Logits `[B, A]` and values `[B]` from two separate networks with tanh units."""

    def __init__(self, features: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Flatten(), mlp([features, *hidden, actions], nn.Tanh))
        self.critic = nn.Sequential(nn.Flatten(), mlp([features, *hidden, 1], nn.Tanh))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(obs), self.critic(obs).squeeze(1)
