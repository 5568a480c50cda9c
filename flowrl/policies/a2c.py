"""A2C: the advantage actor-critic loss."""

from __future__ import annotations

from typing import ClassVar

import attrs
import torch

from flowrl.data import Batch
from flowrl.policies.actor_critic import OVER_TIME, ActorCriticLearning, ActorCriticPolicy, EntropySettings


class A2CPolicy(ActorCriticPolicy):
    """Advantage actor-critic; see `ActorCriticPolicy`."""

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(EntropySettings, ActorCriticPolicy.Settings):
        """The networks, and how they learn."""

    settings: Settings

    def _learning(self) -> A2CLearning:
        return A2CLearning(self)


class A2CLearning(ActorCriticLearning):
    """L = −mean(log π(a | s) · A) + value_coef · mean (V(s) − target)² − entropy_coef · mean H.

    Source: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", section 4.
    """

    requires: ClassVar[dict[str, str]] = {
        "obs": "",
        "action": "",
        "advantage or value": "",
        "advantage or fragments": OVER_TIME,
        "on_policy or corrected": "A2C is right only for experience of the current weights: "
        "take it from ParallelRollouts, or put VTrace before it",
    }
    columns = ("obs", "action", "advantage", "target", "value")

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        given, value = self.policy.model(rows.obs)
        logp, entropy = self.policy.model.distribution.evaluate(given, rows.action)
        policy_loss = -(logp * rows.advantage).mean()
        value_loss = (value - rows.target).square().mean()
        entropy = entropy.mean()
        loss = policy_loss + self.policy.settings.value_coef * value_loss - self.entropy_coef * entropy
        return loss, {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
