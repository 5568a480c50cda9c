"""GAIL: rewards for steps that pass for demonstrated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.models.reward_model import RewardModel
from flowrl.networks.networks import mlp

#: The reward of a step by its logit x, where D = sigmoid(x).
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "positive": lambda x: nn.functional.softplus(x),  # −log(1 − D)
    "negative": lambda x: -nn.functional.softplus(-x),  # log D
    "both": lambda x: x,  # log D − log(1 − D)
}


class Discriminating(RewardModel):
    """Base of models that tell demonstrated steps (D = 1) from the agent's (D = 0), where D = sigmoid(`logit`).

        L = −½ mean log D(demonstrated) − ½ mean log(1 − D(agent's))

    `TrainReward` passes pairs of batches: one of the agent's, one of demonstrations.
    """

    column = "imitation_reward"
    demonstrations = True

    def logit(self, rows: Batch) -> torch.Tensor:
        """Log-odds that rows are demonstrated rather than the agent's, `[B]`."""
        raise NotImplementedError

    def logits(self, rows: Batch) -> torch.Tensor:
        """The logits of the rows, and of further states that a subclass derives from them, `[B + ...]`."""
        return self.logit(rows)

    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        agent, shown = rows
        of_agent, of_shown = self.logits(agent), self.logits(shown)
        loss = 0.5 * (nn.functional.softplus(of_agent).mean() + nn.functional.softplus(-of_shown).mean())
        right = 0.5 * ((of_agent < 0).float().mean() + (of_shown > 0).float().mean())
        return loss, {"discriminator_loss": loss, "discriminator_accuracy": right}


class GAIL(Discriminating):
    """Generative adversarial imitation: the reward of (s, a) is a discriminator's D(s, a).

    `form` selects the reward:

        "positive"  −log(1 − D)          above 0, favors long episodes: suits tasks where an end is a failure
        "negative"  log D                below 0, favors short episodes: suits tasks with a goal to reach
        "both"      log D − log(1 − D)   of either sign: no such bias if D is right

    A bias is not imitation: with "positive", even a constant D teaches the agent to survive. The gradient penalty,
    λ mean ‖∇ₓ logit(x)‖² at random points x between pairs of rows, keeps D from separating the rows perfectly, and lets
    it converge where agent and demonstrator act alike; without it the two oscillate.

    Args:
        form: "positive", "negative" or "both".
        gradient_penalty: λ; 0 disables it.
        settings: See `RewardModel`.

    State: the network, statistics, optimizer, and the random stream of the points x.
    Source: Ho & Ermon 2016, "Generative Adversarial Imitation Learning"; the penalty, there at demonstrated points:
        Mescheder et al. 2018, "Which Training Methods for GANs do actually Converge?", eq. 9; the biases: Kostrikov et
        al. 2019, "Discriminator-Actor-Critic".
    """

    requires = ("obs", "action")
    model: nn.ModuleDict

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        form: Literal["positive", "negative", "both"] = "positive",
        gradient_penalty: float = 0.1,
        **settings: Any,
    ) -> None:
        if form not in FORMS:
            raise ConfigError(f"form={form!r} is not a form of the reward; take one of {', '.join(FORMS)}")
        if not gradient_penalty >= 0:
            raise ConfigError(f"gradient_penalty is {gradient_penalty}, expected at least 0")
        self.form, self.gradient_penalty = form, gradient_penalty
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        seen, done = self._encoder(), self._action_encoder()
        judge = mlp([seen.features + done.features, *self.hidden, 1], nn.Tanh)
        self.model = nn.ModuleDict({"seen": seen, "done": done, "judge": judge})

    def estimate(self, rows: Batch) -> torch.Tensor:
        return FORMS[self.form](self.logit(rows))

    def logit(self, rows: Batch) -> torch.Tensor:
        return self._judged(self._input(rows))

    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, scalars = super().loss(*rows)
        if self.gradient_penalty:
            penalty = self._penalty(*rows)
            loss, scalars["gradient_penalty"] = loss + self.gradient_penalty * penalty, penalty
        return loss, scalars

    def _input(self, rows: Batch) -> torch.Tensor:
        return torch.cat([self.model["seen"](rows.obs), self.model["done"](rows.action)], 1)

    def _judged(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model["judge"](inputs)[:, 0]
        return logits

    def _penalty(self, agent: Batch, shown: Batch) -> torch.Tensor:
        """The mean of ‖∇ₓ logit(x)‖² over points x between pairs of rows."""
        count = min(len(agent), len(shown))
        apart = np.linspace(0, len(agent) - 1, count).astype(int)  # the agent's rows are in order of time
        one, other = self._input(agent[apart]), self._input(shown[:count])
        share = torch.rand(count, 1).to(one.device)  # from the model's stream
        points = (share * one + (1 - share) * other).detach().requires_grad_()
        (slopes,) = torch.autograd.grad(self._judged(points).sum(), points, create_graph=True)
        return slopes.square().sum(1).mean()
