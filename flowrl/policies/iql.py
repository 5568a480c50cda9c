"""IQL: implicit Q-learning, which never evaluates an action outside the data."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.networks.critics import ActorAndCritics, Critics
from flowrl.networks.distributions import LikelihoodHead, likelihood_head
from flowrl.networks.networks import mlp
from flowrl.policies.q_actor_critic import ActorAndCriticsSettings, QActorCriticLearning, QActorCriticPolicy
from flowrl.settings import fraction, not_negative, positive


def expectile_loss(error: torch.Tensor, tau: float) -> torch.Tensor:
    """|τ − 1(u < 0)| u², of each error u = Q − V, which the τ-expectile of Q minimizes; half the square for τ = ½.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", eq. 5.

    >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.75)
    tensor([3., 1.])
    """
    return torch.where(error < 0, 1 - tau, tau) * error.square()


class ActorCriticsAndValue(ActorAndCritics):
    """An `ActorAndCritics` with a value of observations, on the critics' features."""

    def __init__(self, critics: Critics, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__(critics, outputs, hidden)
        self.state_value = mlp([critics.encoder.features, *hidden, 1])

    def value(self, features: torch.Tensor) -> torch.Tensor:
        """Values `[B]` from the encoder's features, without a gradient to the encoder."""
        value: torch.Tensor = self.state_value(features.detach()).float().squeeze(1)
        return value


@attrs.frozen(kw_only=True, slots=False)
class ImplicitQSettings(ActorAndCriticsSettings):
    """Implicit Q-learning."""

    expectile: float = fraction(0.7, "expectile of the value: 0.5 averages the data's actions, 1 takes the best")
    beta: float = not_negative(3.0, "inverse temperature of advantages in imitation; 0 is BC")
    max_weight: float = positive(100.0, "largest weight of a row in imitation", unbounded=True)


class IQLPolicy(QActorCriticPolicy):
    """Implicit Q-learning: twin critics, the value of the better actions in the data, and an actor that imitates them.

    collect: draws from the actor; eval: its most probable action. Continuous actions are stored in -1 .. 1.

    Raises:
        ConfigError: the actions are neither discrete nor a bounded Box of floats; see `QActorCriticPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ImplicitQSettings, QActorCriticPolicy.Settings):
        """The settings of `QActorCriticPolicy` and of implicit Q-learning."""

    settings: Settings
    model: ActorCriticsAndValue
    target: Critics
    choosing: LikelihoodHead

    def _choosing(self) -> LikelihoodHead:
        return likelihood_head(self.action_space, "IQL")

    def _network(self) -> ActorCriticsAndValue:
        outputs = self.choosing.outputs
        discrete = isinstance(self.action_space, spaces.Discrete)
        critics = self._critics(0, outputs) if discrete else self._critics(outputs // 2)
        return ActorCriticsAndValue(critics, outputs, self.settings.hidden)

    def _learning(self) -> IQLLearning:
        return IQLLearning(self)

    @property
    def followed(self) -> Critics:
        return self.model.critics


class IQLLearning(QActorCriticLearning):
    """critics: ½ (Qₖ(s, a) − y)² each, y = r + d V(s');  value: |τ − 1(u < 0)| u², u = minₖ Q'ₖ(s, a) − V(s);
    actor: −min(exp(β u), max_weight) log π(a | s), with u detached.

    All terms use the actions of the data alone. An expectile above ½ is nearer to the best of them, the nearer the
    more rows the data has for a state.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", eqs. 5 to 7.
    """

    policy: IQLPolicy
    compiles = True

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See `Learning.loss`."""
        policy, model, target, given = self.policy, self.policy.model, self.policy.target, self.policy.settings
        features = model.critics.encoder(rows.obs)
        value = model.value(features)
        with torch.no_grad():
            value_t = model.value(model.critics.encoder(rows.next_obs))
            judged = of_actions(target, target.encoder(rows.obs), rows.action).amin(0)
            weight = (given.beta * (judged - value)).exp().clamp(max=given.max_weight)
        value_loss = expectile_loss(judged - value, given.expectile)
        actor = -weight * policy.choosing.logp(model.choose(features, rows.obs), rows.action)
        q = of_actions(model.critics, features, rows.action)
        reported = {
            "actor_loss": actor.mean(),
            "value_loss": value_loss.mean(),
            "value": value.mean(),
            "imitation_weight": weight.mean(),
        }
        return self.combined(rows, q, value_t, value_loss + actor, reported)


def of_actions(critics: Critics, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Values `[k, B]` of discrete actions `[B]`, or of continuous ones `[B, ...]`."""
    values: torch.Tensor = critics(features, action if critics.size else None)
    if critics.size:
        return values
    return values.gather(2, action.long().expand(len(values), -1).unsqueeze(2)).squeeze(2)
