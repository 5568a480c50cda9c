"""CQL: conservative Q-learning, which keeps the values of actions outside the data low."""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.distributions import ActionHead, SquashedChoice
from flowrl.networks.masks import action_mask, masked
from flowrl.policies.dqn import DQNLearning, DQNPolicy, of_action
from flowrl.policies.sac import SACLearning, SACPolicy
from flowrl.settings import Settings, not_negative, positive

Scalars = dict[str, torch.Tensor]


def agreeing(slopes: torch.Tensor) -> torch.Tensor:
    """Σ_{i<k} cos(slopeᵢ, slopeₖ) / (k − 1), `[B]`, of slopes `[k, B, size]`.

    >>> agreeing(torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[-1.0, 0.0]]]))
    tensor([-0.5000])
    """
    units = torch.nn.functional.normalize(slopes, dim=2, eps=1e-10)
    pairs = (units.sum(0).square().sum(1) - units.square().sum((0, 2))) / 2
    return pairs / (len(slopes) - 1)


@attrs.frozen(kw_only=True, slots=False)
class ConservativeSettings(Settings):
    """The penalty."""

    conservatism: float = not_negative(1.0, "weight of the conservative penalty on values; 0 is DQN or SAC")


@attrs.frozen(kw_only=True, slots=False)
class CandidateSettings(ConservativeSettings):
    """The penalty, estimated by sampling for continuous actions."""

    candidates: int = positive(10, "continuous actions: samples per proposal that estimate the penalty")
    diversity: float = not_negative(0.0, "continuous actions: how strongly critics learn to disagree (EDAC)")


class DiscreteCQLPolicy(DQNPolicy):
    """A `DQNPolicy` that learns conservatively; see `DiscreteCQLLearning`."""

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ConservativeSettings, DQNPolicy.Settings):
        """The settings of `DQNPolicy`, and the penalty."""

    settings: Settings

    def _build(self) -> None:
        super()._build()
        self.learn_mode = DiscreteCQLLearning(self)


class DiscreteCQLLearning(DQNLearning):
    """L = L_DQN + conservatism · mean (log Σₐ exp Q(s, a) − Q(s, a_data)), over the valid actions.

    Source: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", eq. 4, CQL(H).
    """

    policy: DiscreteCQLPolicy
    compiles = True

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        loss, scalars = super().loss(rows)
        values = masked(self.policy.model(rows.obs, self.policy.noise()), action_mask(rows.obs))
        gap = (torch.logsumexp(values, 1) - of_action(values, rows.action.long())).mean()
        return loss + self.policy.settings.conservatism * gap, {**scalars, "conservative_gap": gap}


class CQLPolicy(SACPolicy):
    """A `SACPolicy` for continuous actions that learns conservatively; see `CQLLearning`.

    Raises:
        ConfigError: `diversity` of one critic, or of slopes by one number; see `SACPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(CandidateSettings, SACPolicy.Settings):
        """The settings of `SACPolicy`, and the penalty."""

        conservatism: float = 5.0

    settings: Settings

    def _choosing(self) -> ActionHead:
        choosing, weight = SquashedChoice(self.action_space, "CQL"), self.settings.diversity
        if weight and min(self.critics, choosing.draws) < 2:
            raise ConfigError(
                f"diversity={weight:g} with critics={self.critics} and actions of {choosing.draws} numbers: expected "
                "at least two of both: it turns the critics' slopes away from each other"
            )
        return choosing

    def _learning(self) -> SACLearning:
        return CQLLearning(self)


class CQLLearning(SACLearning):
    """L = L_SAC + conservatism · mean Σₖ (log ∫ exp Qₖ(s, a) da − Qₖ(s, a_data)) + diversity · agreement.

    The integral is estimated by importance sampling, the logarithm of the mean of exp(Qₖ(s, aᵢ) − log pᵢ) over
    `candidates` uniform actions aᵢ, as many from the actor at s and as many at s', with their densities pᵢ. The penalty
    sends no gradient to the actor.

    Many critics that disagree outside the data make their minimum low there, without the first penalty:

    agreement = mean Σ_{i<k} cos(∂Qᵢ/∂a, ∂Qₖ/∂a) / (critics − 1), at the data's actions. Critics' squared errors are
    halved here, and so is the published sum, which has each pair twice.

    Source: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", eq. 4, and appendix F; An
    et al. 2021, "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", algorithm 1.
    """

    policy: CQLPolicy
    compiles = True

    def over_minibatch(self, rows: Batch) -> Batch:
        """Add also `candidate_noise [B, 3, candidates, size]`: uniform in -1 .. 1, then twice normal."""
        policy, rows = self.policy, super().over_minibatch(rows)
        if not policy.settings.conservatism:
            return rows
        shape = rows.rows, policy.settings.candidates, policy.choosing.draws
        normal = [self.normal(rows, math.prod(shape[1:])).reshape(shape) for _ in range(3)]
        normal[0] = 2 * torch.special.ndtr(normal[0]) - 1
        return rows.replace(candidate_noise=torch.stack(normal, 1))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        settings, (loss, scalars) = self.policy.settings, super().loss(rows)
        critics = self.policy.model.critics
        features = critics.encoder(rows.obs)
        if settings.conservatism:
            gap = self.gap(rows, features)
            loss, scalars = loss + settings.conservatism * gap, {**scalars, "conservative_gap": gap}
        if settings.diversity:
            agreement = agreeing(critics.slopes(features, rows.action)).mean()
            loss, scalars = loss + settings.diversity * agreement, {**scalars, "agreement": agreement}
        return loss, scalars

    def gap(self, rows: Batch, features: torch.Tensor) -> torch.Tensor:
        """Mean Σₖ (log ∫ exp Qₖ(s, a) da − Qₖ(s, a_data))."""
        critics = self.policy.model.critics
        action, logp = self.drawn(rows)
        n = action.shape[1]
        values = critics(features.repeat_interleave(n, 0), action.flatten(0, 1)).unflatten(1, (-1, n))
        soft = torch.logsumexp(values - logp, 2) - math.log(n)
        gap: torch.Tensor = (soft - critics(features, rows.action)).sum(0).mean()
        return gap

    @torch.no_grad()
    def drawn(self, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates `[B, 3 · candidates, size]` from the three proposals, and their log-densities."""
        policy, noise, size = self.policy, rows.candidate_noise, self.policy.choosing.draws
        count = policy.settings.candidates
        kinds = [(noise[:, 0], torch.full((*noise.shape[:1], count), -size * math.log(2), device=noise.device))]
        for obs, normal in ((rows.obs, noise[:, 1]), (rows.next_obs, noise[:, 2])):
            given = policy.model(obs).repeat_interleave(count, 0)
            choosing: Any = policy.choosing
            action, logp = choosing.sample(given, normal.flatten(0, 1))
            kinds.append((action.unflatten(0, (-1, count)), logp.unflatten(0, (-1, count))))
        actions, densities = zip(*kinds)
        return torch.cat(actions, 1), torch.cat(densities, 1)
