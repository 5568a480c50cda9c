"""MARWIL: imitation that weights actions by the exponential of their advantage."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from flowrl.data import Batch
from flowrl.data.steps import one_step_windows
from flowrl.networks.networks import encoder, mlp
from flowrl.policies.bc import ActorNetwork, BCLearning, BCPolicy
from flowrl.settings import fraction, not_negative, positive, proper_fraction


class ActorAndValue(ActorNetwork):
    """An `ActorNetwork` with a value on the same encoder, and the running scale of advantages."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        encoder, _, hidden = args
        self.critic = mlp([encoder.features, *hidden, 1])
        self.mean_square: torch.Tensor
        self.register_buffer("mean_square", torch.zeros(()))

    def value(self, obs: Any) -> torch.Tensor:
        """Values `[B]`."""
        value: torch.Tensor = self.critic(self.encoder(obs)).float().squeeze(1)
        return value


class MARWILPolicy(BCPolicy):
    """Monotonic advantage re-weighted imitation learning. It acts like `BCPolicy`.

    Raises:
        ConfigError: see `BCPolicy`.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(BCPolicy.Settings):
        """The networks, how they learn, and the weighting by advantages."""

        beta: float = not_negative(1.0, "inverse temperature of normalized advantages; 0 is BC")
        gamma: float = fraction(0.99, "discount per step")
        value_coef: float = not_negative(1.0, "weight of the value loss")
        max_weight: float = positive(20.0, "largest weight of a row", unbounded=True)
        norm_rate: float = proper_fraction(0.01, "step of the running mean square of advantages per update")

    settings: Settings
    model: ActorAndValue

    def _network(self) -> ActorAndValue:
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        return ActorAndValue(encoding, self.choosing.outputs, self.settings.hidden)

    def _learning(self) -> MARWILLearning:
        return MARWILLearning(self)


class MARWILLearning(BCLearning):
    """L = −mean w(s, a) log π(a | s) + value_coef · ½ mean (V(s) − R)²,  w = min(exp(β A / c), max_weight).

    A = R − V(s), detached, with R = reward + discount · V(next_obs): for windows to the end of an episode, the return
    to that end, bootstrapped only where the episode was cut. c² is the running mean of A², bias-corrected like
    Adam's moments, so β has no unit; it moves before it is used, and is part of the weights.

    Source: Wang et al. 2018, "Exponentially Weighted Imitation Learning for Batched Historical Data", algorithm 1.
    """

    policy: MARWILPolicy
    columns = ("obs", "action", "reward", "next_obs", "discount")
    requires = ("obs", "action", "reward", "next_obs", "discount or terminated")

    def prepare(self, batch: Batch) -> Batch:
        """Rows, as one-step windows unless an adder made longer ones (T6), without padded steps (N6)."""
        return one_step_windows(batch, self.policy.settings.gamma)

    @torch.no_grad()
    def over_minibatch(self, rows: Batch) -> Batch:
        """Add the returns R and the weights w; c comes from all rows, before learners share them."""
        given, model = self.policy.settings, self.policy.model
        target = rows.reward.float() + rows.discount * model.value(rows.next_obs)
        advantage = target - model.value(rows.obs)
        weight = (given.beta * advantage / self._scale(advantage)).exp().clamp(max=given.max_weight)
        return rows.replace(target=target, imitation_weight=weight)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, model, weight = self.policy, self.policy.model, rows.imitation_weight
        policy_loss = -(weight * policy.choosing.logp(model(rows.obs), rows.action)).mean()
        value_loss = 0.5 * (model.value(rows.obs) - rows.target).square().mean()
        loss = policy_loss + policy.settings.value_coef * value_loss
        means = {"policy_loss": policy_loss, "value_loss": value_loss, "imitation_weight": weight.mean()}
        return loss, {"loss": loss, **means}

    def _scale(self, advantage: torch.Tensor) -> torch.Tensor:
        """Move the running mean towards these rows; return c."""
        rate, mean = self.policy.settings.norm_rate, self.policy.model.mean_square
        mean.lerp_(advantage.square().mean(), rate)
        return (mean / (1 - (1 - rate) ** (self.policy.version + 1))).sqrt().clamp(min=1e-8)
