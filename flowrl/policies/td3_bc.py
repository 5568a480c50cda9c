"""TD3+BC: TD3 from a dataset, whose actor also imitates the data."""

from __future__ import annotations

import attrs
import torch

from flowrl.data import Batch
from flowrl.policies.td3 import SmoothingSettings, TD3Learning, TD3Policy
from flowrl.settings import positive


@attrs.frozen(kw_only=True, slots=False)
class ImitatingSettings(SmoothingSettings):
    """TD3 that imitates."""

    value_weight: float = positive(2.5, "weight α of values of unit size beside the squared error of imitation")


class TD3BCPolicy(TD3Policy):
    """A `TD3Policy` that stays near the actions of a dataset; see `TD3BCLearning`."""

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ImitatingSettings, TD3Policy.Settings):
        """The settings of TD3, and how much it imitates."""

    settings: Settings
    algorithm = "TD3+BC"

    def _learning(self) -> TD3Learning:
        return TD3BCLearning(self)


class TD3BCLearning(TD3Learning):
    """The loss of `TD3Learning`, with the actor's −λ Q₁(s, μ(s)) + mean (μ(s) − a)², λ = α / mean |Q₁(s, μ(s))|.

    λ is one number for the minibatch, without a gradient.

    Source: Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", eq. 5, with the values of the
    actor's actions in λ, as in the authors' code.
    """

    policy: TD3BCPolicy
    compiles = True

    def actor_loss(self, rows: Batch, action: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `TD3Learning.actor_loss`."""
        scale = self.policy.settings.value_weight / value.detach().abs().mean().clamp(min=1e-6)
        loss: torch.Tensor = (action - rows.action.reshape(action.shape)).square().mean(1) - scale * value
        return loss
