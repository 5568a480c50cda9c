"""PQN: Q-learning on fresh fragments of many environments, with layer normalization in place of a target network."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import gymnasium
import torch

from flowrl.data import Batch
from flowrl.data.steps import real_rows
from flowrl.networks.adam import Adam
from flowrl.networks.networks import QNetwork, actions_of, encoder
from flowrl.networks.sampling import argmax_sample, eps_greedy_sample
from flowrl.policies.dqn import of_action
from flowrl.policies.learning import Learning
from flowrl.policies.policy import Policy, ValueActing
from flowrl.schedules import NumberOrSchedule, Schedule, linear_schedule
from flowrl.settings import Settings, fraction, scheduled, setting, sizes, span


@attrs.frozen(kw_only=True, slots=False)
class LambdaSettings(Settings):
    """Q(λ) returns."""

    gamma: float = fraction(0.99, "discount per step")
    lam: float = fraction(
        0.65, "λ of the returns: 0 bootstraps after one step, 1 at the ends of fragments and episodes"
    )


class PQNPolicy(Policy):
    """A Q-network over discrete actions that learns from its own newest experience.

    collect: epsilon-greedy, and the column `value`, max_a Q(s, a); eval: greedy; learn: see `PQNLearning`.

    Args:
        epsilon: Exploration rate: a number, or a function of env steps. See `EpsilonSettings`.
        settings: The fields of `Settings`, see `Policy`.

    Raises:
        ConfigError: the actions are not discrete, or no network fits the observations; see `Policy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(Policy.Settings):
        """The Q-network, and how it learns."""

        hidden: tuple[int, ...] = sizes(128, 128, meaning="sizes of the hidden layers")
        layer_norm: bool = setting(True, "normalize each hidden layer before its activation")
        learning_rate: NumberOrSchedule = scheduled(1e-3, "learning rate of Adam at the start")
        learning_rate_end: float | None = setting(
            0.0, "learning rate at the end of the schedule; None: constant", resume="fork"
        )
        schedule_steps: int | None = span("env steps over which the settings with an _end change")
        grad_clip: float | None = 10.0

    settings: Settings
    model: QNetwork

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        epsilon: Schedule = linear_schedule(1.0, 0.05, 10_000),  # noqa: B008  frozen
        **settings: Any,
    ) -> None:
        self.actions = actions_of(action_space, "PQN")
        self.epsilon = epsilon
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        given = self.settings
        encoding = encoder(self.observation_space, normalize=self.normalize_obs, network=given.network)
        network = QNetwork(encoding, self.actions, given.hidden, dueling=False, layer_norm=given.layer_norm)
        self.model = network.to(self.device)
        self.optimizer = Adam(self.model.parameters(), lr=self.rate())
        self.collect_mode = ValueActing(self, eps_greedy_sample(self.epsilon), records_value=True)
        self.eval_mode = ValueActing(self, argmax_sample())
        self.learn_mode = PQNLearning(self)


class PQNLearning(Learning):
    """The mean of ½ (Q(s, a) − G)², G the Q(λ) return: the column `target`.

    Gₜ = rₜ + γ [(1 − λ) max_a Q(sₜ₊₁, a) + λ Gₜ₊₁], without what follows the end of an episode, and with the first part
    alone where the fragment or a truncated episode ends. It is the target that `GAE` makes of `value` = max_a Q(s, a).

    Source: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", section 4 and algorithm 1; of the
    return: Peng & Williams 1994, "Incremental Multi-Step Q-Learning".
    """

    policy: PQNPolicy
    columns: tuple[str, ...] = ("obs", "action", "target")
    requires: ClassVar[dict[str, str]] = {
        "obs": "",
        "action": "",
        "target": "put GAE before it: with values max_a Q(s, a) its target is the Q(λ) return",
        "on_policy": "without a target network PQN learns from fresh experience: take it from ParallelRollouts",
    }

    def prepare(self, batch: Batch) -> Batch:
        """Rows `[B, ...]`, without padded steps (`mask` 0)."""
        return real_rows(batch)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        q = of_action(self.policy.model(rows.obs), rows.action.long())
        loss = 0.5 * (q - rows.target).square().mean()
        return loss, {"loss": loss, "q": q.mean()}
