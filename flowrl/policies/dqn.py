"""DQN: the loss, and a policy with double Q-learning and dueling networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import one_step_windows
from flowrl.policies.networks import QNetwork, actions_of, encoder, follow
from flowrl.policies.policy import Learning, Policy, ValueActing
from flowrl.policies.wrappers import argmax_sample, eps_greedy_sample
from flowrl.schedules import Schedule, linear_schedule, value_at


def dqn_target(
    reward: torch.Tensor,
    discount: torch.Tensor,
    q_online_t: torch.Tensor,
    q_target_t: torch.Tensor,
    *,
    double: bool,
    mask_t: torch.Tensor | None = None,
) -> torch.Tensor:
    """The value that Q(s_tm1, a_tm1) should have, `[B]`.

    y = r + d · Q_target(s_t, argmax_a Q(s_t, a)); the argmax is over the online network's values if `double`
    (Q1), else over the target network's, and over the valid actions only.

    Args:
        reward: `[B]`, the return of the window.
        discount: `[B]`, gamma**k for a window of k steps, 0 where it ended with the terminal state (N2, T6).
        q_online_t, q_target_t: `[B, A]`, both networks' values of the state arrived in.
        mask_t: `[B, A]` bool, the actions that are valid there; all if not given.

    Source: van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning", eq. 4.
    """
    assert reward.shape == discount.shape == q_online_t.shape[:1]
    assert q_online_t.shape == q_target_t.shape
    chooser = q_online_t if double else q_target_t
    if mask_t is not None:
        chooser = chooser.masked_fill(~mask_t, -torch.inf)
    best = chooser.argmax(1, keepdim=True)
    return reward + discount * q_target_t.gather(1, best).squeeze(1)


class DQNPolicy(Policy):
    """Deep Q-learning over discrete actions.

    collect: epsilon-greedy; eval: greedy; learn: one step of Adam on the Huber loss.

    Args:
        hidden: Sizes of the hidden layers.
        dueling, double: See `QNetwork` and `dqn_target`.
        gamma: Discount per step.
        learning_rate: Of Adam; a number, or a function of env steps.
        grad_clip: Largest norm of the gradient; None for no limit.
        normalize_obs, normalize_rewards: See `Policy`.
        epsilon: Exploration as a function of env steps.

    Raises:
        ConfigError: the actions are not discrete, or there is no network for the observations.
    """

    model: QNetwork

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        dueling: bool = True,
        double: bool = True,
        gamma: float = 0.99,
        learning_rate: Schedule = 1e-3,
        grad_clip: float | None = 10.0,
        epsilon: Callable[[int], float] = linear_schedule(1.0, 0.05, 10_000),  # noqa: B008  frozen
        normalize_obs: bool = False,
        normalize_rewards: bool = False,
        seed: int = 0,
        device: str = "auto",
        act_backend: str = "torch",
    ) -> None:
        self.actions = actions_of(action_space, "DQN")
        self.hidden, self.dueling, self.double = tuple(hidden), dueling, double
        self.gamma, self.epsilon = gamma, epsilon
        super().__init__(
            observation_space,
            action_space,
            learning_rate=learning_rate,
            grad_clip=grad_clip,
            normalize_obs=normalize_obs,
            normalize_rewards=normalize_rewards,
            seed=seed,
            device=device,
            act_backend=act_backend,
        )

    def _build(self) -> None:
        encoding = encoder(self.observation_space, normalize=self.normalize_obs)
        network = QNetwork(encoding, self.actions, self.hidden, dueling=self.dueling)
        self.model = network.to(self.device)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=value_at(self.learning_rate, 0), fused=True)
        self.collect_mode = ValueActing(self, eps_greedy_sample(self.epsilon))
        self.eval_mode = ValueActing(self, argmax_sample())
        self.learn_mode = DQNLearning(self)

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "target": self.target}

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · online + (1 − tau) · target (Q2).

        So it is with the statistics that observations are normalised by, for they are part of the weights (O1): between
        two moves the target network gives an observation the same values.
        """
        follow(self.target, self.model, tau)


class DQNLearning(Learning):
    """The learn mode of a `DQNPolicy`: the Huber loss (delta 1) of Q(s_tm1, a_tm1) and `dqn_target`.

    The mean over rows of wᵢ · huberᵢ where they have a `weight`; their priority is |TD error|.
    """

    policy: DQNPolicy
    columns = ("obs", "action", "reward", "next_obs", "discount")
    optional = ("action_mask", "next_action_mask", "weight")
    requires = ("obs", "action", "reward", "next_obs", "discount or terminated")
    reports_priority = True

    def prepare(self, batch: Batch) -> Batch:
        """Rows, of one-step windows where no adder made longer ones (T6); padded steps are left out (N6)."""
        return one_step_windows(batch, self.policy.gamma)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See `Learning.loss`."""
        policy = self.policy
        mask_tm1, mask_t = rows.get("action_mask"), rows.get("next_action_mask")
        with torch.no_grad():
            q_target_t = policy.target(rows.next_obs, mask_t)
            q_online_t = policy.model(rows.next_obs, mask_t) if policy.double else q_target_t
            target = dqn_target(
                rows.reward.float(), rows.discount, q_online_t, q_target_t, double=policy.double, mask_t=mask_t
            )
        q = policy.model(rows.obs, mask_tm1).gather(1, rows.action.long().unsqueeze(1)).squeeze(1)
        errors = nn.functional.smooth_l1_loss(q, target, reduction="none")
        if "weight" not in rows:
            return errors.mean(), {"loss": errors.mean(), "q": q.mean()}
        loss = (errors * rows["weight"]).mean()
        return loss, {"loss": loss, "q": q.mean(), "priority": (target - q).abs()}
