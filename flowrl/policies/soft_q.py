"""Soft Q-learning over discrete actions, and regularized behavioral cloning on top of it."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.heads import SquaredHead
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.sampling import softmax_sample
from flowrl.policies.dqn import DQNLearning, DQNPolicy, ValueSettings, of_action, q_learning_loss
from flowrl.policies.policy import ValueActing
from flowrl.settings import not_negative, positive


def soft_value(q: torch.Tensor, temperature: float, mask: torch.Tensor | None = None) -> torch.Tensor:
    """V(s) = α log Σ_a exp(Q(s, a) / α) over the valid actions, `[B, A]` to `[B]`.

    Source: Haarnoja et al. 2017, "Reinforcement Learning with Deep Energy-Based Policies", eq. 3.

    >>> soft_value(torch.tensor([[0.0, 0.0], [5.0, -100.0]]), temperature=1.0)
    tensor([0.6931, 5.0000])
    """
    return temperature * torch.logsumexp(masked(q, mask) / temperature, 1)


@attrs.frozen(kw_only=True, slots=False)
class SoftQSettings(ValueSettings):
    """Soft Q-learning."""

    temperature: float = positive(1.0, "entropy temperature α, where a demonstrated step has reward 1")


class SoftQPolicy(DQNPolicy):
    """Q-values of returns that include the entropy of the policy: π(a|s) ∝ exp(Q(s, a) / α).

    collect: draws from π; eval: its most probable action; learn: see `SoftQLearning`.

    Raises:
        ConfigError: `head` or `epsilon`, which it does not support; see `DQNPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(SoftQSettings, DQNPolicy.Settings):
        """With the settings of `DQNPolicy`."""

    settings: Settings

    def __init__(self, *spaces: Any, **settings: Any) -> None:
        for name in ("head", "epsilon"):
            if settings.get(name) is not None:
                raise ConfigError(f"{name}={settings[name]!r}: soft Q-learning learns means, and explores by entropy")
        super().__init__(*spaces, **{"algorithm": "soft Q-learning", **settings, "head": SquaredHead()})

    def _build(self) -> None:
        super()._build()
        self.collect_mode = ValueActing(self, softmax_sample(self.settings.temperature), noise_draws=self.model.draws)
        self.learn_mode = SoftQLearning(self)


class SoftQLearning(DQNLearning):
    """The mean over rows of (Q(s, a) − y)², y = r + d · V_target(s'), with the soft value V; priority |Q(s, a) − y|.

    It takes one-step windows only: longer ones would miss the entropy of the steps between.

    Source: Reddy et al. 2019, "SQIL", section 3, there with the online network in place of the target network.
    """

    policy: SoftQPolicy
    compiles = True

    @torch.no_grad()
    def target(self, rows: Batch) -> torch.Tensor:
        """y, `[B]`."""
        q_t = self.policy.target(rows.next_obs, self.policy.noise())
        value = soft_value(q_t, self.policy.settings.temperature, action_mask(rows.next_obs))
        target: torch.Tensor = rows.reward.float() + rows.discount * value
        return target

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy = self.policy
        q = of_action(policy.model(rows.obs, policy.noise()), rows.action.long())
        return q_learning_loss(policy.model.head, q, self.target(rows), rows.get("weight"))


@attrs.frozen(kw_only=True, slots=False)
class BellmanSettings(SoftQSettings):
    """Soft Q-learning that clones demonstrations."""

    bellman_weight: float = not_negative(1.0, "weight of the squared soft Bellman error at reward 0; 0 is BC")


class RBCPolicy(SoftQPolicy):
    """Regularized behavioral cloning: see `RBCLearning` and `SoftQPolicy`."""

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(BellmanSettings, SoftQPolicy.Settings):
        """With the settings of `SoftQPolicy`."""

    settings: Settings

    def _build(self) -> None:
        super()._build()
        self.learn_mode = RBCLearning(self)


class RBCLearning(SoftQLearning):
    """Behavioral cloning with the policy π(a|s) ∝ exp(Q(s, a) / α), and Q regularized by the environment's dynamics:

    mean over demonstrations of −log π(a|s) + λ · mean over all rows of (Q(s, a) − d · V_target(s'))²

    Cloning alone leaves values open in states without demonstrations; the squared soft Bellman error at reward 0 ties
    them to the values of the demonstrated states they lead to. It reads no reward.

    Source: Reddy et al. 2019, "SQIL: Imitation Learning via Regularized Behavioral Cloning" (the first version of
    arXiv 1905.11108), section 3.
    """

    policy: RBCPolicy
    compiles = True
    columns = ("obs", "action", "next_obs", "discount", "demonstration")
    requires = ("obs", "action", "next_obs", "discount or terminated", "demonstration")
    reports_priority = False

    def over_minibatch(self, rows: Batch) -> Batch:
        """Add the weight `[B]` of each row in a mean over the demonstrations of the minibatch."""
        shown = rows.demonstration.float()
        return rows.replace(shown=shown / shown.mean().clamp(min=1 / len(shown)))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy = self.policy
        q = policy.model(rows.obs, policy.noise())
        action = rows.action.long()
        log_pi = torch.log_softmax(masked(q, action_mask(rows.obs)) / policy.settings.temperature, 1)
        nll = -(of_action(log_pi, action) * rows["shown"]).mean()
        target = self.target(rows.replace(reward=torch.zeros_like(rows.discount)))
        bellman = (of_action(q, action) - target).square().mean()
        loss = nll + policy.settings.bellman_weight * bellman
        return loss, {"loss": loss, "nll": nll, "bellman": bellman, "q": of_action(q, action).mean()}
