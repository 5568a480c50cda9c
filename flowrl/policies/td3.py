"""TD3 and DDPG: a deterministic actor that climbs the values of its critics."""

from __future__ import annotations

from typing import Any

import attrs
import gymnasium
import torch

from flowrl.data import Batch
from flowrl.networks.critics import FIRST, ActorAndCritics
from flowrl.networks.distributions import NoisyChoice
from flowrl.policies.q_actor_critic import ActorAndCriticsSettings, QActorCriticLearning, QActorCriticPolicy
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import not_negative, positive, scheduled


def smoothed(action: torch.Tensor, noise: torch.Tensor, deviation: float, limit: float) -> torch.Tensor:
    """Target actions clip(a + clip(σ n, −c, c), −1, 1), `[B, size]`, of actions and normal `noise [B, size]` (A6).

    Source: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", section 5.3.

    >>> smoothed(torch.tensor([[0.9, 0.0]]), torch.tensor([[0.5, -9.0]]), 0.4, 0.5)
    tensor([[ 1.0000, -0.5000]])
    """
    return (action + (deviation * noise).clamp(-limit, limit)).clamp(-1, 1)


@attrs.frozen(kw_only=True, slots=False)
class ActionNoiseSettings(QActorCriticPolicy.Settings):
    """A deterministic actor that explores by noise, in the scale of actions from -1 to 1."""

    exploration_noise: NumberOrSchedule = scheduled(0.1, "deviation of the Gaussian exploration noise")


@attrs.frozen(kw_only=True, slots=False)
class SmoothingSettings(ActorAndCriticsSettings):
    """TD3's additions to DDPG, beside a second critic."""

    policy_delay: int = positive(2, "updates of the critics per update of the actor")
    target_noise: float = not_negative(0.2, "deviation of the smoothing noise on target actions")
    target_noise_clip: float = positive(0.5, "bound of that noise, on either side", unbounded=True)


class TD3Policy(QActorCriticPolicy):
    """Twin delayed deep deterministic policy gradients, for bounded continuous actions.

    collect: the actor's action plus normal noise, clipped to the bounds; eval: the actor's action.
    Actions are stored in -1 .. 1, whatever their bounds, and all noise is in that scale.

    Raises:
        ConfigError: the actions are not a bounded Box of floats; see `QActorCriticPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(SmoothingSettings, ActionNoiseSettings):
        """The settings of noisy actions and of TD3's additions to DDPG."""

    settings: Settings
    algorithm = "TD3"
    choosing: NoisyChoice
    target: ActorAndCritics

    def _choosing(self) -> NoisyChoice:
        return NoisyChoice(self.action_space, self.algorithm, self.settings.schedule_of("exploration_noise"))

    def _network(self) -> ActorAndCritics:
        return ActorAndCritics(self._critics(self.choosing.size), self.choosing.outputs, self.settings.hidden)

    def _learning(self) -> TD3Learning:
        return TD3Learning(self)

    @property
    def followed(self) -> ActorAndCritics:
        return self.model


class DDPGPolicy(TD3Policy):
    """Deep deterministic policy gradients: TD3 with one critic, without delay and target noise."""

    algorithm = "DDPG"

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], **settings: Any
    ) -> None:
        settings |= {"critics": 1, "policy_delay": 1, "target_noise": 0.0}
        super().__init__(observation_space, action_space, **settings)


class TD3Learning(QActorCriticLearning):
    """The learn mode of a `TD3Policy`. μ is the actor; ' marks target networks.

    critics: ½ (Qₖ(s_tm1, a_tm1) − y)² each, y = r + d minₖ Q'ₖ(s_t, a')  (A5),
    a' = μ'(s_t), `smoothed`;
    actor: −Q₁(s_tm1, μ(s_tm1)), in every `policy_delay`-th update of the policy.

    The policy's version counts the updates, so a resumed run continues the same pattern.

    Source: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods", algorithm 1;
    without noise, delay and a second critic: Lillicrap et al. 2016, "Continuous control with deep reinforcement
    learning", algorithm 1.
    """

    policy: TD3Policy
    compiles = True

    def over_minibatch(self, rows: Batch) -> Batch:
        """Add the `next_noise [B, size]` of the target actions."""
        if not self.policy.settings.target_noise:
            return rows
        return rows.replace(next_noise=self.normal(rows, self.policy.choosing.size))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See `Learning.loss`."""
        policy, model, given = self.policy, self.policy.model, self.policy.settings
        with torch.no_grad():
            judges, next_action = policy.target.critics, torch.tanh(policy.target(rows.next_obs))
            if given.target_noise:
                next_action = smoothed(next_action, rows.next_noise, given.target_noise, given.target_noise_clip)
            value_t = judges(judges.encoder(rows.next_obs), next_action).amin(0)
        features = model.critics.encoder(rows.obs)
        q = model.critics(features, rows.action)
        if self.phase():
            return self.combined(rows, q, value_t, None, {})
        seen = features.detach()
        action = torch.tanh(model.actor(seen))
        actor = self.actor_loss(rows, action, model.critics(seen, action, frozen=True, only=FIRST).squeeze(0))
        return self.combined(rows, q, value_t, actor, {"actor_loss": actor.mean()})

    def actor_loss(self, rows: Batch, action: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The loss `[B]` of the actor's actions `[B, size]` with these values `[B]`."""
        return -value
