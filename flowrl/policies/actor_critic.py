"""Acting for actor-critic algorithms: actions with their log-probabilities and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import gymnasium
import numpy as np
import torch

from flowrl.policies.networks import ActorCritic, actions_of, features_of
from flowrl.policies.policy import Policy
from flowrl.policies.wrappers import argmax_sample, multinomial_sample

Array = np.ndarray[Any, np.dtype[Any]]


class ActorCriticPolicy(Policy):
    """Acts with a policy network and a value network over discrete actions; algorithms add how it learns.

    collect: draws from the policy; eval: its most probable action.

    Args:
        hidden: Sizes of the hidden layers of each network.

    Raises:
        ConfigError: the actions are not discrete, or the observations are not vectors.
    """

    model: ActorCritic

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        learning_rate: float = 3e-4,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.features, self.actions = features_of(observation_space), actions_of(action_space, type(self).__name__)
        self.hidden, self.learning_rate = tuple(hidden), learning_rate
        super().__init__(observation_space, action_space, seed=seed, device=device)

    def _build(self) -> None:
        self.model = ActorCritic(self.features, self.actions, self.hidden).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.learning_rate, fused=True)
        self.collect_mode = ActorCriticActing(self, self.model, multinomial_sample())
        self.eval_mode = ActorCriticActing(self, self.model, argmax_sample())


@attrs.frozen
class ActorCriticActing:
    """Draws actions from a policy whose model gives logits `[N, A]` and values `[N]`.

    Columns: action, logp (of the action drawn, G6), value.
    """

    policy: Policy
    model: ActorCritic
    sample: multinomial_sample | argmax_sample

    @property
    def draws(self) -> int:
        return self.sample.draws

    def act(self, obs: Array, noise: Array, env_steps: int) -> dict[str, Array]:
        with torch.inference_mode():
            logits, value = self.model(self.policy.tensor(obs))
            logp = torch.log_softmax(logits, 1).cpu().numpy()
        action = self.sample(logp, noise, env_steps)
        return {"action": action, "logp": logp[np.arange(len(action)), action], "value": value.cpu().numpy()}

    def value(self, obs: Array) -> Array:
        """Values `[N]` of observations `[N, ...]`, for where an episode or fragment ends."""
        with torch.inference_mode():
            value: Array = self.model.critic(self.policy.tensor(obs)).squeeze(1).cpu().numpy()
        return value
