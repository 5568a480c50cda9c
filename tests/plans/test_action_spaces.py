"""A plan learns to choose actions of any space, or its refusal says what does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs.hybrid import HybridActions
from flowrl.envs.wrapping import wrapper_of
from flowrl.errors import ConfigError
from flowrl.plans.ppo import PPO
from flowrl.runs.config import build_config
from flowrl.trainer.plan_file import load_plan_file
from flowrl.trainer.policy_factory import PolicyFactory
from tests.spaces_envs import Pictures, Throws

FAR = np.float32(3e38)
BOUNDED = spaces.Box(-1, 1, (2,), np.float32)
ACTIONS: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [2, 3]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    BOUNDED,
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(np.float32(-1), np.float32(np.inf), (2,), np.float32),
    spaces.Box(-FAR, FAR, (2,), np.float32),
    spaces.Box(0, 9, (2,), np.int64),
    HybridActions(Throws.action_space),
]
#: One plan for each way to choose actions, and a setting of it.
PLANS = {
    "dqn": {},
    "ppo": {},
    "ppo squash": {"squash": True},
    "sac": {},
    "td3": {},
    "bc": {"data": "nowhere"},
    "dreamer": {},
}
#: What TransformAction is to make of the actions, by a word of the advice.
TRANSFORMED = {"Discrete": spaces.Discrete(3), "Box": BOUNDED, "some": BOUNDED}


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_the_advice_for_actions_that_are_not_served_works(space: Any) -> None:
    for plan in PLANS:
        if (message := refusal(plan, space)) is None:
            continue
        advice = message.rpartition(": ")[2]
        plans = PLANS.keys() & set(re.findall(r"\w+", advice))
        assert [other for other in plans if refusal(other, space)] == [], message
        others = list(advised(advice, space))
        assert plans or others or "leave it out" in advice, message
        assert not others or None in [refusal(plan, other) for other in others], message


def test_actions_of_several_parts_are_for_ppo_and_come_as_the_environment_takes_them() -> None:
    """G11: others refuse them by name."""
    refused = {plan: refusal(plan, HybridActions(Throws.action_space)) for plan in PLANS}
    assert {plan for plan, message in refused.items() if message is None} == {"ppo", "ppo squash"}
    (advice,) = {message.rpartition("for such actions, ")[2] for message in refused.values() if message}
    served = re.split(", | or ", advice)
    assert served == ["ppo", "a2c", "a3c", "impala", "appo", "ddppo", "trpo"]
    assert [plan for plan in served if refusal(plan, HybridActions(Throws.action_space))] == []
    assert PPO(env=Throws).act(np.zeros(4, np.float32)) in Throws.action_space


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_ppo_learns_what_to_choose_and_how_far(backend: str) -> None:
    """G11: at random the return is 2.2 of 10, with the right hand alone 6.7."""
    trainer = PPO(env=Throws, act_backend=backend, seed=2)
    result = trainer.train(until={"env_steps": 16_000})
    assert result["episode_return"] > 8
    near, far = (trainer.act(np.array([0, 1, 0, target], np.float32)) for target in (-0.9, 0.9))
    assert near in Throws.action_space
    assert near[0] == far[0] == 2
    assert far[1]["reach"] - near[1]["reach"] > 0.8


def refusal(plan: str, space: Any) -> str | None:
    """The error of a plan's policy for these actions."""
    plan_file = load_plan_file(plan.split()[0])
    policy = PolicyFactory(
        plan_file.trainer.policy, build_config(plan_file.Config, {"hidden": [2]}, PLANS.get(plan, {}))
    )
    try:
        policy(BOUNDED, space)
    except ConfigError as error:
        return str(error)
    return None


def advised(advice: str, space: Any) -> Iterator[Any]:
    """The spaces that wrappers named in the advice make of these actions."""
    if "TransformAction" in advice:
        yield from (made for word, made in TRANSFORMED.items() if word in re.findall(r"\w+", advice))
    for name in re.findall(r"DiscretizeAction\(.*?\)", advice):
        env: gymnasium.Env[Any, Any] = Pictures()
        env.action_space = space
        yield wrapper_of(name)(env).action_space
