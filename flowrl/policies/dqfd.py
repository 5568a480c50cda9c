"""DQfD: Q-learning that ranks demonstrated actions above all others by a margin."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.masks import action_mask, masked
from flowrl.policies.dqn import DQNLearning, DQNPolicy, of_action
from flowrl.settings import not_negative


def large_margin(
    q: torch.Tensor, action: torch.Tensor, margin: float, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """max_a [Q(s, a) + l(a_E, a)] − Q(s, a_E), `[B, A]` and `[B]` to `[B]`, over the valid actions.

    l is 0 for the demonstrated action a_E and `margin` for all others: the loss is 0 once these are worth less by the
    margin, which keeps undemonstrated actions from being overestimated.

    Source: Hester et al. 2018, "Deep Q-learning from Demonstrations", eq. 2; Piot et al. 2014.

    >>> large_margin(torch.tensor([[1.0, 3.0], [1.0, 1.5]]), torch.tensor([1, 1]), margin=0.8)
    tensor([0.0000, 0.3000])
    """
    assert action.shape == q.shape[:1]
    others = torch.full_like(q, margin).scatter(1, action[:, None], 0.0)
    best: torch.Tensor = masked(q + others, mask).amax(1)
    return best - of_action(q, action)


class DQfDPolicy(DQNPolicy):
    """Deep Q-learning from demonstrations: see `DQfDLearning`, and `DQNPolicy`.

    Raises:
        ConfigError: `normalize_rewards`, which would scale only one of the two windows of a row; see `DQNPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(DQNPolicy.Settings):
        """The Q-network, and λ₁, λ₂ and λ₃ of the loss."""

        margin: float = not_negative(0.8, "margin by which a demonstrated action must beat all others")
        margin_weight: float = not_negative(1.0, "weight of the large-margin loss on demonstrated rows")
        n_step_weight: float = not_negative(1.0, "weight of the n-step loss; the one-step loss has weight 1")
        l2: float = not_negative(1e-5, "weight of the squared norm of all weights")

    settings: Settings

    def __init__(self, *spaces: Any, **settings: Any) -> None:
        if settings.get("normalize_rewards"):
            raise ConfigError("normalize_rewards=True: DQfD learns from raw rewards, over one step and over several")
        super().__init__(*spaces, **{"algorithm": "DQfD", **settings})

    def _build(self) -> None:
        super()._build()
        self.learn_mode = DQfDLearning(self)


class DQfDLearning(DQNLearning):
    """The mean over rows of wᵢ (J_1 + λ₁ J_n + λ₂ J_E), plus λ₃ ‖θ‖².

    J_1 is the loss of DQN on the single step (the nested column `one_step` of `KeepOneStep`), J_n its loss on the
    n-step window, and J_E the `large_margin` of demonstrated rows (the column `demonstration`). J_1 determines the
    priority of a row.

    Source: Hester et al. 2018, "Deep Q-learning from Demonstrations", eq. 3.
    """

    policy: DQfDPolicy
    compiles = True
    columns = (*DQNLearning.columns, "one_step", "demonstration")
    requires = (*DQNLearning.requires, "one_step", "demonstration")

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, head, action, given = self.policy, self.policy.model.head, rows.action.long(), self.policy.settings
        one_step = rows.one_step.replace(obs=rows.obs, action=rows.action)
        target, n_step_target = self.target(one_step), self.target(rows)
        all_outputs = policy.model(rows.obs, policy.noise(), values=False)
        outputs, q = of_action(all_outputs, action), head(all_outputs)
        errors = head.errors(outputs, target)
        margins = large_margin(q, action, given.margin, action_mask(rows.obs)) * rows.demonstration
        each = errors + given.n_step_weight * head.errors(outputs, n_step_target) + given.margin_weight * margins
        norm = torch.stack([parameter.square().sum() for parameter in policy.parameters]).sum()
        loss = (each * rows["weight"] if "weight" in rows else each).mean() + given.l2 * norm
        shown = rows.demonstration.sum().clamp(min=1)
        scalars = {"loss": loss, "q": of_action(q, action).mean(), "margin_loss": margins.sum() / shown}
        return loss, scalars | ({"priority": head.priority(errors, outputs, target)} if "weight" in rows else {})
