"""CrossQ: SAC without target networks, whose networks normalize their inputs by the statistics of batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.networks.critics import ALL, Critics, Some, weights_of
from flowrl.networks.distributions import ActionHead, SquashedChoice
from flowrl.networks.in_numpy import Function, in_numpy
from flowrl.networks.networks import Encoder, encoder
from flowrl.networks.sampling import Array
from flowrl.policies.learning import AllReduce
from flowrl.policies.q_actor_critic import QActorCriticPolicy
from flowrl.policies.sac import (
    DelaySettings,
    SACLearning,
    SACPolicy,
    Scalars,
    SoftActorAndCritics,
    TemperatureSettings,
)
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import fraction, not_negative, sizes

#: Added to variances; bounds of the corrections r and d.
EPS, R_MAX, D_MAX = 1e-3, 3.0, 5.0


@attrs.frozen(eq=False)
class Minibatch:
    """Has each `BatchRenorm` normalize by the statistics of its batch, which it notes here: mean and variance.

    With `renormalize` they are corrected towards the running statistics.
    """

    renormalize: bool = False
    statistics: dict[BatchRenorm, torch.Tensor] = attrs.field(factory=dict)


class BatchRenorm(nn.Module):
    """Normalizes each of W numbers, of rows `[B, W]`, or of k networks side by side, `[k, B, W]`.

    Acting: y = w (x − μ) / σ + b with the running μ and σ; σ² = variance + ε.
    Learning: y = w x̂ + b, x̂ = (x − μ_B) / σ_B with the statistics of the batch, which gradients pass through; and with
    `renormalize` x̂ = r (x − μ_B) / σ_B + d, r = clip(σ_B / σ, 1/r_max, r_max), d = clip((μ_B − μ) / σ, −d_max, d_max),
    both without gradients: within their bounds this is what acting computes.

    A forward changes nothing: the running statistics `follow` those of the batches that were learned from.

    Args:
        shape: `1, W`, or `k, 1, W`.

    Source: Ioffe 2017, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models",
    algorithm 1; without r and d, Ioffe & Szegedy 2015, "Batch Normalization".
    """

    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))

    def forward(self, x: torch.Tensor, batch: Minibatch | None = None, frozen: bool = False) -> torch.Tensor:
        """By the statistics of the `batch`; None: by the running ones. `frozen` is as for `Stacked`."""
        weight, bias = weights_of(self, frozen)
        mean, var, x = self.mean, self.var, x.float()  # whatever precision the layers use
        if batch is not None:
            var, mean = torch.var_mean(x, -2, correction=0, keepdim=True)
            batch.statistics[self] = torch.stack([mean, var]).detach()
            if batch.renormalize:
                with torch.no_grad():
                    deviation = (self.var + EPS).sqrt()
                    r = ((var + EPS).sqrt() / deviation).clamp(1 / R_MAX, R_MAX)
                    d = ((mean - self.mean) / deviation).clamp(-D_MAX, D_MAX)
                weight, bias = weight * r, bias + weight * d
        return torch.addcmul(bias, x - mean, weight * (var + EPS).rsqrt())

    def follow(self, statistics: torch.Tensor, momentum: float) -> None:
        """Move the running statistics towards those of a batch."""
        mean, var = statistics
        self.mean.lerp_(mean, momentum)
        self.var.lerp_(var, momentum)

    def in_numpy(self) -> Function:
        weight, bias, mean, var = (each.detach().numpy() for each in (self.weight, self.bias, self.mean, self.var))

        def forward(x: Array) -> Array:
            normalized: Array = (x - mean) * (weight / (var + EPS) ** 0.5) + bias
            return normalized

        return forward


class RenormedLayers(nn.Sequential):
    """Linear layers of these sizes with a `BatchRenorm` before each, and a ReLU after each but the last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [BatchRenorm(1, fan_in), nn.Linear(fan_in, fan_out), nn.ReLU(inplace=True)]
        super().__init__(*layers[:-1])

    def forward(self, x: torch.Tensor, batch: Minibatch | None = None) -> torch.Tensor:
        for layer in self:
            x = layer(x, batch) if isinstance(layer, BatchRenorm) else layer(x)
        return x

    def in_numpy(self) -> Function:
        return in_numpy(nn.Sequential(*self))


class RenormedCritics(Critics):
    """`Critics` with a `BatchRenorm` before each layer."""

    def __init__(self, encoder: Encoder, size: int, outputs: int, hidden: Sequence[int], k: int) -> None:
        super().__init__(encoder, size, outputs, hidden, k)
        self.norms = nn.ModuleList(BatchRenorm(k, 1, width) for width in [encoder.features + size, *hidden])

    def _values(self, x: torch.Tensor, frozen: bool, only: Some, batch: Minibatch | None = None) -> torch.Tensor:
        assert only is ALL
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers)):
            x = layer(norm(torch.relu_(x) if i else x, batch, frozen), frozen)
        return x


class RenormedActorAndCritics(SoftActorAndCritics):
    """A `SoftActorAndCritics` whose actor has a `BatchRenorm` before each layer."""

    def _layers(self, sizes: Sequence[int]) -> nn.Module:
        return RenormedLayers(sizes)


class CrossQPolicy(SACPolicy):
    """A `SACPolicy` for continuous actions without target networks; see `CrossQLearning`.

    Running statistics are part of the weights. The policy's version counts the updates of the warm-up.

    Raises:
        ConfigError: see `SACPolicy`.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(DelaySettings, TemperatureSettings, QActorCriticPolicy.Settings):
        """Those of `SACPolicy` for continuous actions, the width of the critics, and the normalization."""

        hidden: tuple[int, ...] = sizes(256, 256, meaning="sizes of the hidden layers of the actor")
        critic_hidden: tuple[int, ...] = sizes(256, 256, meaning="sizes of the hidden layers of each critic")
        learning_rate: NumberOrSchedule = 1e-3
        policy_delay: int = 3
        norm_momentum: float = fraction(0.01, "step of the running statistics toward those of a batch")
        renorm_warmup: int = not_negative(
            100_000, "updates by the statistics of batches alone, before running statistics correct them"
        )

    settings: Settings  # type: ignore[assignment]  # it asks for nothing that counts for discrete actions alone
    network_kind = RenormedActorAndCritics
    betas = (0.5, 0.999)
    update_target = None  # type: ignore[assignment]  # so it is no `HasTarget`

    @property
    def followed(self) -> None:
        return None

    def _choosing(self) -> ActionHead:
        return SquashedChoice(self.action_space, "CrossQ")

    def _critics(self, size: int, outputs: int = 1, **how: Any) -> Critics:
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        return RenormedCritics(encoding, size, outputs, self.settings.critic_hidden, self.critics)

    def _learning(self) -> SACLearning:
        return CrossQLearning(self)


class CrossQLearning(SACLearning):
    """The loss of `SACLearning`, with targets from the critics themselves.

    One forward of the critics gives Qₖ(s_tm1, a_tm1) and Qₖ(s_t, a'), so that both are normalized by the statistics of
    both; the target, y = r + d (minₖ Qₖ(s_t, a') − α log π(a' | s_t)), is detached. a' is drawn by the actor with its
    running statistics. The actor's loss normalizes the actor by the statistics of s_tm1, and the critics by their
    running statistics. All statistics in use are those before the update; they follow those of its batches when it is
    done, the actor's in every `policy_delay`-th update.

    Of several learners, each normalizes by the statistics of its own rows, and the running ones follow their mean.

    Source: Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency
    and Simplicity", section 4 and figure 3.
    """

    policy: CrossQPolicy
    beyond_gradients = "CrossQ has running statistics"
    _minibatch = Minibatch()

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        policy, model, critics = self.policy, self.policy.model, self.policy.model.critics
        choosing: Any = policy.choosing
        minibatch = self._minibatch = Minibatch(policy.version >= policy.settings.renorm_warmup)
        alpha = model.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, next_logp = choosing.sample(model(rows.next_obs), rows.next_noise)
        features = critics.encoder(rows.obs)
        both = torch.cat([features, critics.encoder(rows.next_obs)])
        actions = torch.cat([rows.action.reshape(next_action.shape), next_action])
        q, q_t = critics(both, actions, batch=minibatch).chunk(2, 1)
        value_t = q_t.detach().amin(0) - alpha * next_logp
        if self.phase():
            return self.combined(rows, q, value_t, None, {})
        action, logp = choosing.sample(model.actor(features.detach(), minibatch), rows.noise)
        actor = alpha * logp - critics(features.detach(), action, frozen=True).amin(0)
        return self.with_temperature(rows, q, value_t, actor, -logp, policy.entropy)

    def _agreed(self, scalars: Scalars, rows: int, all_reduce: AllReduce) -> Scalars:
        found = self._minibatch.statistics
        mean = all_reduce.mean(torch.cat([each.flatten() for each in found.values()]), rows)
        parts = torch.split(mean, [each.numel() for each in found.values()])
        found.update({norm: part.view_as(found[norm]) for norm, part in zip(found, parts)})
        return super()._agreed(scalars, rows, all_reduce)

    def stepped(self) -> None:
        """The running statistics follow those of the batches."""
        for norm, statistics in self._minibatch.statistics.items():
            norm.follow(statistics, self.policy.settings.norm_momentum)
        self._minibatch = Minibatch()
