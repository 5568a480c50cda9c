"""RND: rewards for novelty, the error of a network that is trained on the observations seen so far."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.models.curiosity import Curiosity, squared_error
from flowrl.networks.networks import Encoder, mlp, orthogonal


class RND(Curiosity):
    """Random network distillation: reward = ‖f̂(s') − f(s')‖² / σ, of a fixed random network f and its predictor f̂.

    s' is the observation arrived in, its numbers, but not images, normalized by running statistics and clipped to ±5,
    and σ the running deviation of the discounted sum of these errors. L = mean ‖f̂(s') − f(s')‖². Norms are mean squares
    over the width of the outputs.

    Here the sum ends with the episode, and one value function serves both rewards; in the paper the novelty reward
    continues across episodes and has its own value function.

    Args:
        features: Width of the output of f.
        settings: See `Curiosity` and `RewardModel`.

    State: both networks, statistics, optimizer; the sum of every running episode so far.
    Source: Burda et al. 2018, "Exploration by Random Network Distillation", sections 2.2 and 2.4.
    """

    requires = ("next_obs",)

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        features: int = 64,
        **settings: Any,
    ) -> None:
        self.features = features
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        self.target, self.predictor = self._network(), self._network(deeper=True)
        self.target.requires_grad_(False)
        self.model = nn.ModuleDict({"target": self.target, "predictor": self.predictor})

    def _network(self, *, deeper: bool = False) -> nn.Module:
        """The target, or the predictor, which has one layer more so that it can match the target."""
        encoder: Encoder = self._encoder()
        hidden = [*self.hidden, *self.hidden[-1:]] if deeper else self.hidden
        network = nn.Sequential(encoder, mlp([encoder.features, *hidden, self.features]))
        orthogonal(network, last=2**0.5)
        return network

    def estimate(self, rows: Batch) -> torch.Tensor:
        return squared_error(self.predictor(rows.next_obs), self.target(rows.next_obs))

    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = self.estimate(rows[0]).mean()
        return loss, {"rnd_loss": loss}
