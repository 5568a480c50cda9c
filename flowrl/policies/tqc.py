"""TQC: SAC whose critics learn quantiles of the return, of which targets leave out the highest."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.critics import Critics
from flowrl.networks.distributions import ActionHead, SquashedChoice
from flowrl.networks.heads import QuantileHead, QuantileSettings, quantile_huber
from flowrl.policies.sac import SACLearning, SACPolicy
from flowrl.settings import not_negative


class TQCPolicy(SACPolicy):
    """A `SACPolicy` for continuous actions with truncated quantile critics; see `TQCLearning`.

    Raises:
        ConfigError: all quantiles are dropped, or there is only one; see `SACPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(QuantileSettings, SACPolicy.Settings):
        """The settings of `SACPolicy`, and those of the distribution of returns."""

        quantiles: int = 25
        dropped_quantiles: int = not_negative(2, "highest quantiles per critic that targets leave out")

    settings: Settings

    def _choosing(self) -> ActionHead:
        given = self.settings
        if given.quantiles == 1:
            raise ConfigError("quantiles=1: expected at least 2; critics of one number each are those of SAC")
        if given.dropped_quantiles >= given.quantiles:
            raise ConfigError(
                f"dropped_quantiles={given.dropped_quantiles} of quantiles={given.quantiles}: nothing is left to learn "
                "from; expected less"
            )
        return SquashedChoice(self.action_space, "TQC")

    def _critics(self, size: int, outputs: int = 1, **how: Any) -> Critics:
        return super()._critics(size, self.settings.quantiles, **how)

    def _learning(self) -> SACLearning:
        return TQCLearning(self)


class TQCLearning(SACLearning):
    """The loss of `SACLearning`, with M quantiles θₖ of the return from each critic in place of its mean.

    critics: Σₖ mean_ij of the quantile Huber loss of θₖᵢ(s_tm1, a_tm1) and y_j (Q5),
    y_j = r + d (z_j − α log π(a' | s_t)), z the quantiles of all target critics, sorted, without the highest
    `dropped_quantiles` for each critic;
    actor: α log π(a | s_tm1) − the mean of all quantiles, through a.

    Source: Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional
    Quantile Critics", eqs. 8 to 12.
    """

    policy: TQCPolicy
    compiles = True

    def __init__(self, policy: TQCPolicy) -> None:
        super().__init__(policy)
        self.levels = QuantileHead(policy.settings.quantiles).levels.to(policy.device)

    def next_value(self, rows: Batch, action: torch.Tensor) -> torch.Tensor:
        """The quantiles `[J, B]` of targets, in place of their mean."""
        target = self.policy.target
        quantiles = target(target.encoder(rows.next_obs), action)
        kept = target.k * (len(self.levels) - self.policy.settings.dropped_quantiles)
        return quantiles.transpose(1, 2).flatten(0, 1).sort(0).values[:kept]  # type: ignore[no-any-return]

    def actor_value(self, values: torch.Tensor) -> torch.Tensor:
        """See `SACLearning.actor_value`; of `[k, B, M]`."""
        return values.mean((0, 2))

    def critic_loss(self, q: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """See `QActorCriticLearning.critic_loss`; of `[k, B, M]` and `[J, B]`."""
        samples = y.mT.expand(len(q), *y.mT.shape)
        errors = quantile_huber(q.flatten(0, 1), samples.flatten(0, 1), self.levels)
        return errors.view(q.shape[:2]).sum(0) / len(self.levels)

    def priority(self, q: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean over critics of how far the mean of their quantiles is from that of the targets, `[B]`."""
        return (q.mean(2) - y.mean(0)).abs().mean(0)
