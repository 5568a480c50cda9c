"""Ape-X: the loss of DQN, and workers that explore each at a rate of its own."""

from __future__ import annotations

from typing import Any

import attrs
import gymnasium

from flowrl.policies.dqn import DQNPolicy
from flowrl.policies.policy import ActMode
from flowrl.settings import Settings, fraction, positive


@attrs.frozen
class worker_epsilon:
    """ε_i = ε^(1 + i / (N − 1) · α) of worker i of N, at any time; ε where there is one worker only.

    A worker that came later than the N explores as the last of them.

    Source: Horgan et al. 2018, "Distributed Prioritized Experience Replay", section 4.1.

    >>> [round(worker_epsilon(0.4, 7.0, i, 3)(0), 4) for i in range(4)]
    [0.4, 0.0162, 0.0007, 0.0007]
    """

    base: float
    alpha: float
    worker: int
    workers: int

    def __call__(self, env_steps: int) -> float:
        place = min(1.0, self.worker / (self.workers - 1)) if self.workers > 1 else 0.0
        return float(self.base ** (1 + place * self.alpha))


@attrs.frozen(kw_only=True, slots=False)
class WorkerEpsilon(Settings):
    """How often actions are random."""

    epsilon: float = fraction(0.4, "exploration of the first worker")
    epsilon_alpha: float = positive(7.0, "of the last one: epsilon to the power of 1 + epsilon_alpha")


class ApexDQNPolicy(DQNPolicy):
    """Deep Q-learning for many workers; see `DQNPolicy` for its settings.

    collect: epsilon-greedy, with the epsilon of the worker, see `worker_epsilon`.

    Args:
        workers: How many there are.
        epsilon, epsilon_alpha: ε and α of their epsilons, see `WorkerEpsilon`.
    """

    epsilon: worker_epsilon

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        workers: int = 1,
        epsilon: float = 0.4,
        epsilon_alpha: float = 7.0,
        **settings: Any,
    ) -> None:
        first = worker_epsilon(epsilon, epsilon_alpha, 0, workers)
        super().__init__(observation_space, action_space, epsilon=first, algorithm="Ape-X", **settings)

    def collect_mode_of(self, worker: int) -> ActMode:
        """As that worker explores."""
        return self.exploring(attrs.evolve(self.epsilon, worker=worker))
