"""Acting for actor-critic algorithms: actions with their log-probabilities and values."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch

from flowrl.policies.networks import ActorCritic
from flowrl.policies.policy import Policy
from flowrl.policies.wrappers import argmax_sample, multinomial_sample

Array = np.ndarray[Any, np.dtype[Any]]


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
