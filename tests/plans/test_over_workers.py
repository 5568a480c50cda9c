"""Plans whose workers are processes: what they learn is what one process learns."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.testing import same
from tests.plans.small import final, weights

DOORS = "tests.masked_envs:Doors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rainbow", {"env": DOORS}),
        ("r2d2", {"normalize_obs": True, "normalize_rewards": True}),
        ("ppo recurrent", {"normalize_obs": True, "normalize_rewards": True}),
        ("sac", {"precision": "bfloat16", "network": "tests.policies.test_learner_options:Flattened"}),
        ("sac discrete", {"env": DOORS, "act_backend": "numpy"}),
        ("her_dqn", {}),
        ("alphazero", {}),
        ("ddpg", {"exploration_noise": "linear(0.5, 0.1, 100)", "critic_learning_rate": "linear(0.01, 0, 200)"}),
    ],
)
def test_the_same_groups_over_processes_learn_the_same(ray_cluster: None, name: str, settings: dict[str, Any]) -> None:
    """D2, O1: actions, masks, memories, noise in weights and statistics travel with the weights and the rows."""
    here, one = final(name, 4, env_groups=2, envs_per_worker=4, **settings)
    there, two = final(name, 4, num_workers=2, envs_per_worker=2, **settings)
    assert here == there
    assert same(weights(one), weights(two))
