"""AIRL: a reward that explains demonstrations, separated from its shaping."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.models.gail import Discriminating
from flowrl.networks.networks import Encoder, mlp


class AIRL(Discriminating):
    """Adversarial inverse reinforcement learning: a discriminator that separates a reward g from its shaping h.

        f(s, a, s') = g(s) + γ (1 − terminated) h(s') − h(s),   D = exp f / (exp f + π(a | s))
        reward = log D − log(1 − D) = f − log π(a | s)

    The column `logp` holds log π of the policy that acted; `EstimateLogp` adds it to demonstrations, under the current
    policy. With `state_only=False` g sees actions too: it explains more, but transfers less to other dynamics.

    With `absorbing`, a terminated episode enters a state whose only action is to stay. Its reward is learned like that
    of other states, and its discounted sum, γ / (1 − γ) times as much, is added to the reward of the last step.
    Without it an end is worth 0, and an agent that does not pass for a demonstrator, so that its rewards are negative,
    learns to end episodes early.

    Args:
        gamma: Discount per step.
        state_only: Whether g depends on s alone.
        absorbing: Whether terminal states have a reward.
        settings: See `RewardModel`.

    State: both networks, statistics, optimizer.
    Raises: ValueError if gamma is not in 0 .. 1; ConfigError if it is 1 with `absorbing`: the sum would be infinite.
    Source: Fu et al. 2018, "Learning Robust Rewards with Adversarial Inverse Reinforcement Learning", eq. 4; absorbing
        states: Kostrikov et al. 2019, "Discriminator-Actor-Critic", section 4.2.
    """

    requires = ("obs", "action", "next_obs", "terminated", "logp")
    model: nn.ModuleDict

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        gamma: float = 0.99,
        state_only: bool = True,
        absorbing: bool = True,
        **settings: Any,
    ) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}, expected a discount in 0 .. 1")
        if absorbing and gamma == 1:
            raise ConfigError("gamma is 1: the return of an absorbing state would be infinite; take absorbing=False")
        self.gamma, self.state_only, self.absorbing = gamma, state_only, absorbing
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        seen, shaping = self._encoder(), self._encoder()
        done: Encoder | None = None if self.state_only else self._action_encoder()
        width = seen.features + (0 if done is None else done.features) + self.absorbing
        parts: dict[str, nn.Module] = {"seen": seen, "reward": mlp([width, *self.hidden, 1], nn.Tanh)}
        parts["shaping"] = nn.Sequential(shaping, mlp([shaping.features, *self.hidden, 1], nn.Tanh))
        self.model = nn.ModuleDict(parts if done is None else {**parts, "done": done})
        if self.absorbing:  # a 1 in the last place marks the absorbing state
            self.model.register_buffer("absorbed", torch.eye(width)[-1:], persistent=False)

    def estimate(self, rows: Batch) -> torch.Tensor:
        reward = self.logit(rows)
        if self.absorbing:
            reward = reward + rows.terminated.float() * self.gamma / (1 - self.gamma) * self.end()
        return reward

    def logits(self, rows: Batch) -> torch.Tensor:
        """The logits of the rows, then one of the absorbing state for each terminated row."""
        logits = self.logit(rows)
        if not self.absorbing:
            return logits
        return torch.cat([logits, self.end().expand(int((rows.terminated != 0).sum()))])

    def logit(self, rows: Batch) -> torch.Tensor:
        logit: torch.Tensor = self.advantage(rows) - rows.logp
        return logit

    def advantage(self, rows: Batch) -> torch.Tensor:
        """f(s, a, s'), `[B]`."""
        goes_on: torch.Tensor = 1 - rows.terminated.float()
        return self.explained(rows) + self.gamma * goes_on * self._shaping(rows.next_obs) - self._shaping(rows.obs)

    def explained(self, rows: Batch) -> torch.Tensor:
        """The reward g that explains the demonstrations, `[B]`."""
        inputs = self.model["seen"](rows.obs)
        if not self.state_only:
            inputs = torch.cat([inputs, self.model["done"](rows.action)], 1)
        if self.absorbing:
            inputs = nn.functional.pad(inputs, (0, 1))
        reward: torch.Tensor = self.model["reward"](inputs)[:, 0]
        return reward

    def end(self) -> torch.Tensor:
        """The logit of the absorbing state, `[1]`: its g, since h and log π are 0 there."""
        reward: torch.Tensor = self.model["reward"](self.model.absorbed)[:, 0]
        return reward

    def _shaping(self, obs: Any) -> torch.Tensor:
        """h, `[B]`."""
        shaping: torch.Tensor = self.model["shaping"](obs)[:, 0]
        return shaping
