"""IQN: the network takes a level τ beside the observation, and gives the τ-quantile of the return of each action."""

from __future__ import annotations

import math
from typing import Any

import attrs
import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.networks.heads import ImplicitHead
from flowrl.networks.in_numpy import Function, linear_in_numpy
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import QNetwork
from flowrl.networks.sampling import Array
from flowrl.policies.dqn import DQNLearning, DQNPolicy, munchausen_target, of_action, of_best, q_learning_loss
from flowrl.settings import Settings, positive


class ImplicitQNetwork(QNetwork):
    """A `QNetwork` that computes quantiles of the return at any `levels` τ `[B, K]`; without them, the head's levels.

    The last hidden layer ψ(s) is multiplied by φ(τ) = relu(W [cos(π i τ)], i = 0 .. cosines − 1, + b), number by
    number; what follows reads the product. Noisy layers have the same noise for all levels of a row.

    Source: Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", section 3.1,
    eq. 4.
    """

    head: ImplicitHead
    frequencies: torch.Tensor

    def __init__(self, *parts: Any, cosines: int, **others: Any) -> None:
        super().__init__(*parts, **others)
        self.embedding = nn.Linear(cosines, self.advantage.in_features)
        self.register_buffer("frequencies", math.pi * torch.arange(cosines), persistent=False)

    def _features(self, hidden: torch.Tensor, levels: torch.Tensor | None = None) -> torch.Tensor:
        levels = self.head.levels if levels is None else levels
        return hidden.unsqueeze(1) * torch.relu(self.embedding(torch.cos(levels.unsqueeze(-1) * self.frequencies)))

    def _features_in_numpy(self) -> Function:
        cosines = np.cos(self.head.levels.numpy()[:, None] * self.frequencies.numpy())
        embedding = linear_in_numpy(self.embedding.weight, self.embedding.bias)

        def features(hidden: Array) -> Array:
            found: Array = hidden[:, None] * np.maximum(embedding(cosines), 0)
            return found

        return features

    def _of_each(self, numbers: Any) -> Any:
        return numbers.swapaxes(1, 2)  # [B, K, A] to [B, A, K]


@attrs.frozen(kw_only=True, slots=False)
class ImplicitSettings(Settings):
    """The distribution of returns, a function of the level."""

    quantiles: int = positive(8, "levels, drawn for each row, at which the network learns (N in the paper)")
    target_quantiles: int = positive(8, "levels, drawn for each row, of targets (N' in the paper)")
    acting_quantiles: int = positive(32, "levels, evenly spaced, whose mean is the value of an action (K in the paper)")
    cosines: int = positive(64, "cosines that a level is encoded by")


class IQNPolicy(DQNPolicy):
    """A `DQNPolicy` with an `ImplicitQNetwork`; see `IQNLearning`.

    Values are means over `acting_quantiles` evenly spaced levels, where the paper draws them: the same mean with less
    noise, so greedy actions depend on the observation alone.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ImplicitSettings, DQNPolicy.Settings):
        """The settings of `DQNPolicy`, and those of the distribution of returns."""

    settings: Settings
    _q_network = ImplicitQNetwork

    def __init__(self, *spaces: gymnasium.Space[Any], **settings: Any) -> None:
        super().__init__(*spaces, **{"algorithm": "IQN", **settings})

    def _build(self) -> None:
        self.head = ImplicitHead(self.settings.acting_quantiles)
        super()._build()
        self.learn_mode = IQNLearning(self)

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "cosines": self.settings.cosines}


class IQNLearning(DQNLearning):
    """The loss of `DQNLearning` at levels that are drawn uniformly for each row of a minibatch.

    Σᵢ mean_j of the quantile Huber loss of θ_τᵢ(s_tm1, a) and r + d θ_τ'ⱼ(s_t, a*) at level τᵢ (Q5), i = 1 .. N,
    j = 1 .. N'. The best action a* is that of `of_best`; without `double`, by the mean of the N' quantiles.

    Source: Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning", eqs. 2 and 3.
    """

    policy: IQNPolicy
    compiles = True

    def over_minibatch(self, rows: Batch) -> Batch:
        """See `Learning.over_minibatch`; adds the levels, `[B, N]` and `[B, N']`."""
        given = self.policy.settings
        return rows.replace(
            levels=self._levels(len(rows), given.quantiles), next_levels=self._levels(len(rows), given.target_quantiles)
        )

    def _levels(self, rows: int, count: int) -> torch.Tensor:
        levels: torch.Tensor = self.policy.tensor(self.policy.stream.uniform((rows, count)))
        return levels

    @torch.no_grad()
    def target(self, rows: Batch) -> torch.Tensor:
        """Targets `[B, N']`. Munchausen's π is that of the values at the levels of acting; those of targets are few."""
        policy, head, given, obs_t = self.policy, self.policy.model.head, self.policy.settings, rows.next_obs
        if given.munchausen:
            q_tm1 = policy.target(rows.obs, policy.noise())
            outputs_t = policy.target(obs_t, policy.noise(), values=False, levels=rows.next_levels)
            return munchausen_target(head, rows, q_tm1, outputs_t, policy.target(obs_t, policy.noise()), given)
        outputs_t = policy.target(obs_t, policy.noise(), values=False, levels=rows.next_levels)
        q_t = policy.model(obs_t, policy.noise()) if given.double else head(outputs_t)
        return head.target(rows.reward.float(), rows.discount, of_best(outputs_t, q_t, action_mask(obs_t)))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, target = self.policy, self.target(rows)
        all_outputs = policy.model(rows.obs, policy.noise(), values=False, levels=rows.levels)
        outputs = of_action(all_outputs, rows.action.long())
        return q_learning_loss(policy.model.head, outputs, target, rows.get("weight"), levels=rows.levels)
