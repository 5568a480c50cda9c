"""Q-learning over several choices at once: a network with a branch for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.distributions import check_choices, way_out
from flowrl.networks.heads import MeanHead
from flowrl.networks.in_numpy import to_numpy
from flowrl.networks.masks import action_mask, masked, valid_mean
from flowrl.networks.networks import QNetwork
from flowrl.networks.sampling import Array, argmax_sample, eps_greedy_sample
from flowrl.policies.dqn import DQNLearning, DQNPolicy, of_action, of_best, q_learning_loss
from flowrl.policies.policy import ValueActing
from flowrl.schedules import Schedule


def parts_of(values: Any, sizes: Sequence[int]) -> list[Any]:
    """Values `[B, A₁ + A₂ + ...]`, tensors or arrays, by choice: `[B, A₁]`, `[B, A₂]` ...; None stays None for each."""
    if values is None:
        return [None] * len(sizes)
    if isinstance(values, torch.Tensor):
        return list(torch.split(values, list(sizes), 1))
    return np.split(values, np.cumsum(sizes)[:-1], 1)


@attrs.frozen
class branching_sample:
    """The action `[N, choices]` of a wrapper that samples for each choice, all with the same coin (Q8)."""

    sizes: tuple[int, ...]
    sample: Any

    @property
    def draws(self) -> int:
        return 1 + len(self.sizes) if self.sample.draws else 0

    def __call__(self, value: Array, noise: Array, env_steps: int = 0, mask: Array | None = None) -> Array:
        chosen = []
        for i, (part, valid) in enumerate(zip(parts_of(value, self.sizes), parts_of(mask, self.sizes))):
            chosen.append(self.sample(part, noise[:, [0, 1 + i]] if self.draws else noise, env_steps, mask=valid))
        return np.stack(chosen, 1)


class BranchingActing(ValueActing):
    """Acts on values `[N, A₁ + A₂ + ...]`."""

    policy: BranchingDQNPolicy

    def in_torch(self, model: Any, obs: Any) -> torch.Tensor:
        """The best actions `[B, choices]`, for `Policy.export`."""
        parts = parts_of(masked(model(obs), action_mask(obs)), self.policy.sizes)
        return torch.stack([part.argmax(1) for part in parts], 1)

    def value(self, obs: Array) -> Array:
        """The mean over choices of the value of the best valid one."""
        with self.policy.inference():
            values = to_numpy(self.policy.acting()(self.policy.observed(obs)))
        best = [part.max(1) for part in parts_of(masked(values, action_mask(obs)), self.policy.sizes)]
        found: Array = np.mean(best, 0)
        return found


class BranchingQNetwork(QNetwork):
    """Values `[B, A₁ + A₂ + ...]` of several choices; dueling, all have one V, and each its own advantages."""

    def __init__(self, *given: Any, sizes: Sequence[int], **how: Any) -> None:
        super().__init__(*given, **how)
        self.sizes = tuple(sizes)

    def _mean(self, outputs: Any, mask: Any) -> Any:
        means = map(valid_mean, parts_of(outputs, self.sizes), parts_of(mask, self.sizes))
        if isinstance(outputs, torch.Tensor):
            return torch.cat([mean.expand(-1, size) for mean, size in zip(means, self.sizes)], 1)
        return np.concatenate([np.repeat(mean, size, 1) for mean, size in zip(means, self.sizes)], 1)


class BranchingHead(MeanHead):
    """The mean return: all choices learn y = r + d · mean over choices of Q_t; losses are means over choices.

    Source: Tavakoli et al. 2018, "Action Branching Architectures for Deep Reinforcement Learning", eqs. 5 and 6, whose
    errors are squared.
    """

    def target(self, reward: torch.Tensor, discount: torch.Tensor, outputs_t: torch.Tensor) -> torch.Tensor:
        return super().target(reward, discount, outputs_t.mean(1))

    def errors(self, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().errors(outputs_tm1, target[:, None].expand_as(outputs_tm1)).mean(1)

    def priority(self, errors: torch.Tensor, outputs_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().priority(errors, outputs_tm1, target[:, None]).mean(1)


class BranchingDQNPolicy(DQNPolicy):
    """Deep Q-learning over several choices, `MultiDiscrete` actions; see `DQNPolicy`.

    Its network has as many outputs as all choices together have actions, not as many as there are combinations.

    Raises:
        ConfigError: other actions, or Munchausen rewards; see `DQNPolicy` too.
    """

    _q_network = BranchingQNetwork

    def __init__(self, *spaces: Any, **settings: Any) -> None:
        super().__init__(*spaces, head=BranchingHead(), **settings)

    def _count(self, action_space: gymnasium.Space[Any], algorithm: str) -> int:
        if not isinstance(action_space, spaces.MultiDiscrete) or action_space.nvec.ndim > 1 or action_space.start.any():
            raise ConfigError(
                f"{algorithm} makes choices among actions 0 .. n-1, side by side in one row, but the environment's "
                f"action space is {action_space}: {way_out(action_space)}"
            )
        self.sizes = tuple(action_space.nvec.tolist())
        check_choices(sum(self.sizes), "action")
        return sum(self.sizes)

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), "sizes": self.sizes}

    def _build(self) -> None:
        if self.settings.munchausen:
            raise ConfigError(
                f"munchausen={self.settings.munchausen:g} is for one choice, not for several: set it to 0"
            )
        super()._build()
        self.eval_mode = BranchingActing(self, branching_sample(self.sizes, argmax_sample()))
        self.learn_mode = BranchingLearning(self)

    def exploring(self, epsilon: Schedule) -> ValueActing:
        """See `DQNPolicy.exploring`."""
        sample = branching_sample(self.sizes, eps_greedy_sample(epsilon))
        return BranchingActing(self, sample, noise_draws=self.model.draws)


class BranchingLearning(DQNLearning):
    """The learn mode: double Q-learning, choice by choice, and one target for all, see `BranchingHead`."""

    policy: BranchingDQNPolicy
    compiles = True

    @torch.no_grad()
    def target(self, rows: Batch) -> torch.Tensor:
        """Targets `[B]`, from the values `[B, choices]` of the best actions."""
        policy, obs_t = self.policy, rows.next_obs
        outputs_t = policy.target(obs_t, policy.noise())
        q_t = policy.model(obs_t, policy.noise()) if policy.settings.double else outputs_t
        by_choice = zip(*(parts_of(each, policy.sizes) for each in (outputs_t, q_t, action_mask(obs_t))))
        best = torch.stack([of_best(*each) for each in by_choice], 1)
        return policy.model.head.target(rows.reward.float(), rows.discount, best)

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, target = self.policy, self.target(rows)
        parts = parts_of(policy.model(rows.obs, policy.noise()), policy.sizes)
        q = torch.stack([of_action(part, taken) for part, taken in zip(parts, rows.action.long().unbind(1))], 1)
        return q_learning_loss(policy.model.head, q, target, rows.get("weight"))
