"""SAC: soft actor-critic with a learned temperature, for continuous and discrete actions."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs
import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.critics import ActorAndCritics, Critics
from flowrl.networks.distributions import ActionHead, DiscreteChoice, SquashedChoice
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import Encoder
from flowrl.policies.q_actor_critic import QActorCriticLearning, QActorCriticPolicy
from flowrl.settings import Settings, fraction, positive, setting

Scalars = dict[str, torch.Tensor]


class SoftActorAndCritics(ActorAndCritics):
    """An `ActorAndCritics` with the logarithm of the temperature."""

    def __init__(
        self,
        critics: Critics,
        outputs: int,
        hidden: tuple[int, ...],
        temperature: float,
        encoder: Encoder | None = None,
    ) -> None:
        super().__init__(critics, outputs, hidden, encoder)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))


@attrs.frozen(kw_only=True, slots=False)
class TemperatureSettings(Settings):
    """The temperature α, the value of a unit of entropy, and the target entropy H (A3)."""

    temperature: float = positive(1.0, "entropy temperature α at the start")
    learn_temperature: bool = setting(True, "adapt the temperature to reach target_entropy")
    target_entropy: float | None = setting(None, "entropy that the temperature aims at; None: minus the action size")


@attrs.frozen(kw_only=True, slots=False)
class DelaySettings(Settings):
    """An actor that learns in some of the updates."""

    policy_delay: int = positive(1, "updates of the critics per update of the actor and the temperature")


class SACPolicy(QActorCriticPolicy):
    """Soft actor-critic: twin critics, a stochastic actor, and a temperature that keeps its entropy at a target.

    collect: draws from the actor; eval: tanh of the mean, or the most probable of discrete actions.
    Actions are stored as drawn: continuous ones in -1 .. 1, whatever their bounds.

    Raises:
        ConfigError: the actions are neither discrete nor a bounded Box of floats; see `QActorCriticPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(TemperatureSettings, QActorCriticPolicy.Settings):
        """An actor and critics, the entropy, and how they learn."""

        #: A fraction of log n, the largest possible entropy (A3).
        entropy_fraction: float = fraction(0.5, "target entropy of n discrete actions, as a fraction of log n")

    settings: Settings
    model: SoftActorAndCritics
    target: Critics
    network_kind: ClassVar[type[SoftActorAndCritics]] = SoftActorAndCritics

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], **settings: Any
    ) -> None:
        if not 0 < (share := settings.get("entropy_fraction", 0.5)) < 1:
            raise ConfigError(
                f"entropy_fraction={share}, expected 0 .. 1: it is a fraction of the largest possible entropy"
            )
        self.discrete = isinstance(action_space, spaces.Discrete)
        super().__init__(observation_space, action_space, **settings)

    def _choosing(self) -> ActionHead:
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return DiscreteChoice(int(space.n), int(space.start))
        return SquashedChoice(space, "SAC")

    @property
    def entropy(self) -> float:
        """H, the target entropy of the actor if all actions are valid (A3)."""
        if self.settings.target_entropy is not None:
            return self.settings.target_entropy
        outputs = self.choosing.outputs
        return self.settings.entropy_fraction * math.log(outputs) if self.discrete else -outputs / 2

    def _network(self) -> SoftActorAndCritics:
        outputs = self.choosing.outputs
        critics = self._critics(0, outputs) if self.discrete else self._critics(outputs // 2)
        model = self.network_kind(critics, outputs, self.settings.hidden, self.settings.temperature)
        model.log_temperature.requires_grad_(self.settings.learn_temperature)
        return model

    def _learning(self) -> SACLearning:
        return (DiscreteSACLearning if self.discrete else SACLearning)(self)

    @property
    def followed(self) -> Critics | None:
        return self.model.critics


class SACLearning(QActorCriticLearning):
    """The learn mode for continuous actions; it samples new ones: a at s_tm1, a' at s_t.

    critics: ½ (Qₖ(s_tm1, a_tm1) − y)² each, y = r + d (minₖ Q'ₖ(s_t, a') − α log π(a' | s_t))  (A5);
    actor: α log π(a | s_tm1) − minₖ Qₖ(s_tm1, a), through a;
    temperature: log α · (−log π(a | s_tm1) − H), with log π detached (A4).

    Source: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", eqs. 5, 9 and 18, which is of α:
    like the authors' code, this takes log α.
    """

    policy: SACPolicy
    compiles = True

    def over_minibatch(self, rows: Batch) -> Batch:
        """Add the `noise` and `next_noise [B, size]` that sample the actions."""
        size = self.policy.choosing.draws
        return rows.replace(noise=self.normal(rows, size), next_noise=self.normal(rows, size))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        policy, model = self.policy, self.policy.model
        choosing: Any = policy.choosing
        alpha = model.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, next_logp = choosing.sample(model(rows.next_obs), rows.next_noise)
            value_t = self.next_value(rows, next_action) - alpha * next_logp
        features = model.critics.encoder(rows.obs)
        q = model.critics(features, rows.action)
        if self.phase():
            return self.combined(rows, q, value_t, None, {})
        action, logp = choosing.sample(model.actor(features.detach()), rows.noise)
        actor = alpha * logp - self.actor_value(model.critics(features.detach(), action, frozen=True))
        return self.with_temperature(rows, q, value_t, actor, -logp, policy.entropy)

    def next_value(self, rows: Batch, action: torch.Tensor) -> torch.Tensor:
        """What the target critics expect of actions `[B, ...]` at s_t: `[B]`, without the entropy."""
        target = self.policy.target
        return target(target.encoder(rows.next_obs), action).amin(0)  # type: ignore[no-any-return]

    def actor_value(self, values: torch.Tensor) -> torch.Tensor:
        """What the actor climbs, `[B]`, of the critics' values `[k, B]`."""
        return values.amin(0)

    def with_temperature(
        self,
        rows: Batch,
        q: torch.Tensor,
        value_t: torch.Tensor,
        actor: torch.Tensor,
        entropy: torch.Tensor,
        wanted: torch.Tensor | float,
    ) -> tuple[torch.Tensor, Scalars]:
        """The loss of all three; `entropy [B]` is the actor's, exact or sampled, and `wanted` is H."""
        log_temperature, entropy = self.policy.model.log_temperature, entropy.detach()
        temperature = log_temperature * (entropy - wanted)
        reported = {
            "actor_loss": actor.mean(),
            "entropy": entropy.mean(),
            "temperature": log_temperature.exp(),
        }
        return self.combined(rows, q, value_t, actor + temperature, reported)


class DiscreteSACLearning(SACLearning):
    """The learn mode for discrete actions: expectations under π replace sampled actions.

    critics: y = r + d Σₐ π(a | s_t) (minₖ Q'ₖ(s_t, a) − α log π(a | s_t));
    actor: Σₐ π(a | s_tm1) (α log π(a | s_tm1) − minₖ Qₖ(s_tm1, a)).

    Source: Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings", section 3.
    """

    compiles = True

    def over_minibatch(self, rows: Batch) -> Batch:
        """The rows unchanged: nothing is sampled."""
        return rows

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        model, target = self.policy.model, self.policy.target
        alpha = model.log_temperature.detach().exp()
        with torch.no_grad():
            next_logp = torch.log_softmax(model(rows.next_obs), 1)
            soft = target(target.encoder(rows.next_obs)).amin(0) - alpha * next_logp
            value_t = (next_logp.exp() * soft).sum(1)
        features = model.critics.encoder(rows.obs)
        values = model.critics(features)
        taken = rows.action.long().expand(len(values), -1).unsqueeze(2)
        logp = torch.log_softmax(model.choose(features, rows.obs), 1)
        probability = logp.exp()
        actor = (probability * (alpha * logp - values.detach().amin(0))).sum(1)
        entropy = -(probability * logp).sum(1)
        wanted = self.wanted(action_mask(rows.obs))
        return self.with_temperature(rows, values.gather(2, taken).squeeze(2), value_t, actor, entropy, wanted)

    def wanted(self, mask: torch.Tensor | None) -> torch.Tensor | float:
        """H `[B]`: `entropy_fraction` of the logarithm of the number of valid actions (A3), unless it is set."""
        if mask is None or self.policy.settings.target_entropy is not None:
            return self.policy.entropy
        return self.policy.settings.entropy_fraction * mask.sum(1).clamp(min=1).log()
