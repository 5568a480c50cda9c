"""Ape-X: the loss of DQN, and workers that each explore with their own epsilon."""

from __future__ import annotations

from typing import Any

import attrs
import gymnasium

from flowrl.policies.dqn import DQNPolicy
from flowrl.policies.policy import ActMode
from flowrl.settings import Settings, fraction, positive


@attrs.frozen
class worker_epsilon:
    """ε_i = ε^(1 + i / (N − 1) · α) of worker i of N, at all times; ε if there is only one worker.

    Workers beyond the N explore like the last one.

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
class WorkerEpsilonSettings(Settings):
    """How often actions are random."""

    epsilon: float = fraction(0.4, "probability of a random action of the first worker")
    epsilon_alpha: float = positive(7.0, "the last worker explores with epsilon ** (1 + epsilon_alpha)")


class ApexDQNPolicy(DQNPolicy):
    """Deep Q-learning for many workers; see `DQNPolicy` for its settings.

    collect: epsilon-greedy with the worker's epsilon, see `worker_epsilon`.

    Args:
        workers: Number of workers.
        epsilon, epsilon_alpha: ε and α of `worker_epsilon`, see `WorkerEpsilonSettings`.
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
        """The mode with that worker's epsilon."""
        return self.exploring(attrs.evolve(self.epsilon, worker=worker))
