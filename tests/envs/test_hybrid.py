"""Actions of several parts: environments get their Tuple or Dict, everyone else rows of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space, iterate

from flowrl.envs import make_env, make_manager
from flowrl.envs.hybrid import HybridActions
from flowrl.errors import ConfigError
from flowrl.policies.scripted import RandomPolicy
from tests.spaces_envs import Throws

SPACES: list[Any] = [
    Throws.action_space,
    spaces.Dict(go=spaces.Discrete(4, start=-2), by=spaces.Box(-1 / 3, 0.1, (2, 2), np.float64)),
    spaces.Tuple([spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, 0])]), spaces.Box(-np.inf, 0, (1,))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_row_holds_the_action_of_each_part(space: Any) -> None:
    """G11: one by one, and as a batch of the environment's space."""
    hybrid = HybridActions(space)
    hybrid.seed(0)
    rows = np.stack([hybrid.sample() for _ in range(20)])
    actions = [hybrid.to_env(row) for row in rows]
    assert all(action in space for action in actions)
    assert all(np.array_equal(hybrid.join(hybrid.split(row[None]))[0], row) for row in rows)
    for one, other in zip(actions, iterate(batch_space(space, 20), hybrid.to_env(rows)), strict=True):
        assert data_equivalence(one, other)


def test_rounding_does_not_leave_the_bounds() -> None:
    """G11: 0.1 is more in float32 than in float64."""
    space = spaces.Dict(by=spaces.Box(0, 0.1, (1,), np.float64))
    assert HybridActions(space).to_env(np.float32([0.1])) in space


def test_an_environment_takes_rows_wherever_it_is_stepped() -> None:
    """Its own assertion sees the parts; the rewards are those of the environment in this process."""
    rewards: dict[str, Any] = {}
    for kind in ("local", "subprocess"):
        with make_manager("tests.spaces_envs:Throws", 2, kind=kind) as manager:
            manager.launch(3)
            policy, draw = RandomPolicy(manager.observation_space, manager.action_space), np.random.default_rng(1)
            acts = (policy.act(manager.obs, draw.random((2, policy.draws)), 0) for _ in range(25))
            rewards[kind] = [manager.step(act["env_action"]).reward.copy() for act in acts]
    np.testing.assert_array_equal(rewards["local"], rewards["subprocess"])
    assert np.ptp(rewards["local"]) > 0.5


@pytest.mark.parametrize(
    ("space", "why"),
    [
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), r"has the part Text\(.*TransformAction"),
        (spaces.Dict(on=spaces.MultiBinary((2, 2))), r"has the part MultiBinary\(\(2, 2\)\): expected a Discrete"),
        (spaces.Tuple([]), "is empty: it needs at least one part"),
    ],
    ids=str,
)
def test_other_parts_are_refused_by_name(space: Any, why: str) -> None:
    class Other(Throws):
        action_space = space

    with pytest.raises(ConfigError, match=why):
        make_env(Other)
