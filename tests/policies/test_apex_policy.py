"""What is Ape-X's own in its policy: every worker explores at a rate of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.envs import Environments
from flowrl.policies import ApexDQNPolicy
from flowrl.policies.apex_dqn import worker_epsilon
from flowrl.rollout.worker import RolloutWorker


def policy(workers: int, **settings: Any) -> ApexDQNPolicy:
    observations, actions = ENVIRONMENTS.spaces(8)
    return ApexDQNPolicy(observations, actions, workers=workers, hidden=(8,), device="cpu", **settings)


ENVIRONMENTS = Environments("CartPole-v1")


@pytest.mark.parametrize(("workers", "worker", "wanted"), [(8, 0, 0.4), (8, 7, 0.4**8), (8, 3, 0.4**4), (1, 0, 0.4)])
def test_the_epsilons_are_those_of_the_paper(workers: int, worker: int, wanted: float) -> None:
    """Q7: ε^(1 + i / (N − 1) · α) with ε = 0.4, α = 7, at any time."""
    for env_steps in (0, 10**9):
        assert worker_epsilon(0.4, 7.0, worker, workers)(env_steps) == pytest.approx(wanted)


def test_a_worker_explores_as_often_as_its_epsilon_says() -> None:
    """Q8: of two actions half of the random ones are the greedy one by chance; the last worker hardly draws any."""
    shared = policy(3, epsilon=0.8, epsilon_alpha=30.0)
    others = []
    for index in range(3):
        worker = RolloutWorker(ENVIRONMENTS.manager(8), shared, seed=5, index=index)
        batch = worker.sample(steps=250)
        worker.close()
        assert (batch.worker == index).all()
        with torch.no_grad():
            greedy = shared.model(torch.from_numpy(batch.obs.reshape(-1, 4))).argmax(1).numpy()
        others.append(float((batch.action.ravel() != greedy).mean()))
    wanted = [0.5 * 0.8 ** (1 + 15 * index) for index in range(3)]
    np.testing.assert_allclose(others, wanted, atol=0.03)


def test_another_policy_of_a_worker_is_that_workers() -> None:
    """`reset_policy` keeps the worker's place among the others."""
    worker = RolloutWorker(ENVIRONMENTS.manager(8), policy(2, epsilon=1.0), seed=5, index=1)
    shared = policy(2, epsilon=0.5, epsilon_alpha=100.0)
    worker.reset_policy(shared)
    batch = worker.sample(steps=50)
    worker.close()
    with torch.no_grad():
        greedy = shared.model(torch.from_numpy(batch.obs.reshape(-1, 4))).argmax(1).numpy()
    assert (batch.action.ravel() == greedy).all()
