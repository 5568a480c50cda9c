"""ICM: rewards where the agent cannot predict the effect of its own actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.models.curiosity import Curiosity, squared_error
from flowrl.networks.distributions import Gaussian, distribution
from flowrl.networks.networks import mlp


class ICM(Curiosity):
    """An intrinsic curiosity module: reward = ½ ‖f(φ(s), a) − φ(s')‖² / σ, in features φ of what actions affect.

    The inverse model g infers the action from the features before and after it, so φ need not represent anything that
    actions do not affect; the forward model f predicts the features after an action:

        L_I = mean −log g(a | φ(s), φ(s')),   L_F = mean ½ ‖f(φ(s), a) − φ(s')‖²,   L = (1 − β) L_I + β L_F.

    For continuous actions, ½ ‖a − ĝ‖² replaces the log-probability in L_I. Norms are mean squares over the width. σ is
    the running deviation of the discounted sum of the errors, see `Curiosity`.

    Args:
        features: Width of φ.
        beta: β, the weight of the forward model's loss.
        settings: See `Curiosity` and `RewardModel`.

    State: the three networks, statistics, optimizer; the sum of every running episode so far.
    Source: Pathak et al. 2017, "Curiosity-driven Exploration by Self-supervised Prediction", section 2.
    """

    requires = ("obs", "action", "next_obs")
    model: nn.ModuleDict

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        features: int = 32,
        beta: float = 0.2,
        **settings: Any,
    ) -> None:
        if not 0 <= beta <= 1:
            raise ConfigError(f"beta is {beta}: the weight of the forward model's loss, expected 0 .. 1")
        self.features, self.beta = features, beta
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        seen, done, width = self._encoder(), self._action_encoder(), self.features
        self.actions = distribution(self.action_space)
        self.model = nn.ModuleDict(
            {
                "features": nn.Sequential(seen, mlp([seen.features, *self.hidden, width])),
                "actions": done,
                "forward_model": mlp([width + done.features, *self.hidden, width]),
                "inverse_model": mlp([2 * width, *self.hidden, self.actions.outputs]),
            }
        )

    def estimate(self, rows: Batch) -> torch.Tensor:
        return self._forward_error(rows, self._features(rows.obs), self._features(rows.next_obs))

    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        (batch,) = rows
        before, after = self._features(batch.obs), self._features(batch.next_obs)
        forward = self._forward_error(batch, before, after).mean()
        inverse = self._inverse_error(batch.action, before, after).mean()
        loss = (1 - self.beta) * inverse + self.beta * forward
        return loss, {"icm_loss": loss, "forward_loss": forward, "inverse_loss": inverse}

    def _features(self, obs: Any) -> torch.Tensor:
        features: torch.Tensor = self.model["features"](obs)
        return features

    def _forward_error(self, rows: Batch, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        action = self.model["actions"](rows.action)
        return 0.5 * squared_error(self.model["forward_model"](torch.cat([before, action], 1)), after)

    def _inverse_error(self, action: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        given = self.model["inverse_model"](torch.cat([before, after], 1))
        if isinstance(self.actions, Gaussian):
            return 0.5 * squared_error(given, action.reshape(given.shape).to(given.dtype))
        return -self.actions.evaluate(given, action)[0]
