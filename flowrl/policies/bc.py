"""BC: behavioral cloning, an actor that learns to repeat recorded actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.networks.adam import Adam
from flowrl.networks.distributions import LikelihoodHead, likelihood_head
from flowrl.networks.in_numpy import Function, in_numpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import Encoder, encoder, mlp
from flowrl.networks.sampling import Array
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy
from flowrl.policies.q_actor_critic import Exploring, Greedy
from flowrl.settings import sizes


class ActorNetwork(nn.Module):
    """The actor network, `[B, outputs]`; invalid actions have probability 0."""

    def __init__(self, encoder: Encoder, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.encoder = encoder
        self.actor = mlp([encoder.features, *hidden, outputs])

    def forward(self, obs: Any) -> torch.Tensor:
        given: torch.Tensor = masked(self.actor(self.encoder(obs)).float(), action_mask(obs))
        return given

    def in_numpy(self) -> Function:
        encode, actor = in_numpy(self.encoder), in_numpy(self.actor)
        return lambda obs: masked(actor(encode(obs)), action_mask(obs))


class BCPolicy(Policy):
    """An actor that learns from recorded actions: a distribution over discrete actions, or a normal distribution.

    collect: draws from the actor; eval: its most probable action. Continuous actions are stored in -1 .. 1,
    whatever their bounds.

    Raises:
        ConfigError: the actions are neither discrete nor a bounded Box of floats, or no network fits the
            observations; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(Policy.Settings):
        """The network, and how it learns."""

        hidden: tuple[int, ...] = sizes(256, 256, meaning="sizes of the hidden layers")

    settings: Settings
    model: ActorNetwork
    choosing: LikelihoodHead
    random_steps = 0  #: no uniform actions at the start

    def _build(self) -> None:
        self.choosing = likelihood_head(self.action_space, type(self).__name__.removesuffix("Policy"))
        self.model = self._network().to(self.device)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode, self.eval_mode = Exploring(self), Greedy(self)
        self.learn_mode = self._learning()

    def _network(self) -> ActorNetwork:
        """The model."""
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=self.settings.network)
        return ActorNetwork(encoding, self.choosing.outputs, self.settings.hidden)

    def _learning(self) -> Learning:
        """The learn mode."""
        return BCLearning(self)

    def from_env(self, action: Array) -> Array:
        """Convert actions `[B, ...]` from the environment's scale to the actor's."""
        return self.choosing.from_env(action)

    def for_env(self, action: Array) -> Array:
        """See `Policy.for_env`."""
        return self.choosing.for_env(action)


class BCLearning(Learning):
    """L = −mean log π(a | s): the cross entropy of discrete actions, the normal log-density of continuous ones.

    A squared error would learn the mean alone. This learns the spread too, so samples are as varied as the data, and
    states in which the actions vary much weigh less.

    Source: Pomerleau 1988, "ALVINN: An Autonomous Land Vehicle in a Neural Network".
    """

    policy: BCPolicy
    columns: tuple[str, ...] = ("obs", "action")
    requires: ClassVar[tuple[str, ...]] = ("obs", "action")

    def prepare(self, batch: Batch) -> Batch:
        """Rows without padded steps (N6)."""
        return self.real_rows(batch)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        loss = -self.policy.choosing.logp(self.policy.model(rows.obs), rows.action).mean()
        return loss, {"loss": loss}
