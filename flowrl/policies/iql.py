"""IQL: implicit Q-learning, which never asks for the value of an action that the data has not."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.policies.critics import ActorAndCritics, Critics
from flowrl.policies.distributions import Likely, likely_choice
from flowrl.policies.networks import mlp
from flowrl.policies.q_actor_critic import ActorAndCriticsSettings, QActorCriticLearning, QActorCriticPolicy
from flowrl.settings import fraction, not_negative, positive


def expectile_loss(error: torch.Tensor, tau: float) -> torch.Tensor:
    """|τ − 1(u < 0)| u², of each error u = Q − V: what an expectile of Q minimises; of τ = ½ it is half the square.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", eq. 5.

    >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.75)
    tensor([3., 1.])
    """
    return torch.where(error < 0, 1 - tau, tau) * error.square()


class ActorCriticsAndValue(ActorAndCritics):
    """And the value of observations, by the critics' features."""

    def __init__(self, critics: Critics, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__(critics, outputs, hidden)
        self.state_value = mlp([critics.encoder.features, *hidden, 1])

    def value(self, features: torch.Tensor) -> torch.Tensor:
        """Values `[B]` by the encoder's features, which do not learn from them."""
        value: torch.Tensor = self.state_value(features.detach()).float().squeeze(1)
        return value


@attrs.frozen(kw_only=True, slots=False)
class ImplicitSettings(ActorAndCriticsSettings):
    """Implicit Q-learning."""

    expectile: float = fraction(0.7, "which of the data's actions count: 0.5 their mean, 1 the best")
    beta: float = not_negative(3.0, "how much an advantage counts in imitating; 0 is BC")
    max_weight: float = positive(100.0, "the most that a row counts in it")


class IQLPolicy(QActorCriticPolicy):
    """Implicit Q-learning: twin critics, the value that the better actions of the data have, and an actor of these.

    collect: draws from the actor; eval: its most probable action. Continuous actions are stored in -1 .. 1.

    Raises:
        ConfigError: the actions are neither discrete nor a bounded Box of floats; see `QActorCriticPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(ImplicitSettings, QActorCriticPolicy.Settings):
        """Those of every actor with critics, and of implicit Q-learning."""

    settings: Settings
    model: ActorCriticsAndValue
    target: Critics
    choosing: Likely

    def _choosing(self) -> Likely:
        return likely_choice(self.action_space, "IQL")

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

    All of them are of the data's actions alone. An expectile above ½ is nearer to the best of them, the nearer the
    more the data has of a state.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", eqs. 5 to 7.
    """

    policy: IQLPolicy

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
    """Values `[k, B]` of actions that are given, discrete ones `[B]` or numbers `[B, ...]`."""
    values: torch.Tensor = critics(features, action if critics.size else None)
    if critics.size:
        return values
    return values.gather(2, action.long().expand(len(values), -1).unsqueeze(2)).squeeze(2)
