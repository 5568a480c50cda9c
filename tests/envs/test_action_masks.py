"""Action masks on their way from an environment: out of `info`, through every manager, and refused where wrong."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from flowrl.envs import Environments, make_env, make_manager
from flowrl.envs.masks import ActionMask, VectorActionMask, valid_sample, without_choice
from flowrl.envs.spaces import shared_memory
from flowrl.envs.wrappers import has_raw_returns
from flowrl.errors import ConfigError, SchemaError
from flowrl.policies import RandomPolicy, ScriptedPolicy
from flowrl.rollout import RolloutWorker, evaluate
from flowrl.tools.doctor import diagnose
from tests.masked_envs import ACTIONS, Doors

IN_INFO = {"where": "info", "length": 3}
KINDS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind} for kind in ("local", "subprocess", "async", "thread")},
    **{mode.name: {"kind": "vector", "autoreset_mode": mode.name} for mode in AutoresetMode},
}


def collected(kind: str, steps: int = 14, **where: Any) -> Any:
    """A fragment; a kind that KINDS has not is the autoreset mode of a ready-made vector environment."""
    spec: Any = Doors if kind in KINDS else partial(ready_made, kind)
    wrappers = ["ActionMask"] if where["where"] == "info" else []
    with make_manager(spec, 3, where, wrappers=wrappers, **KINDS.get(kind, {})) as manager:
        policy = RandomPolicy(manager.observation_space, manager.action_space)
        return RolloutWorker(manager, policy, seed=0).sample(steps)


def ready_made(mode: str, num_envs: int, **where: Any) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Doors, **where)] * num_envs, autoreset_mode=AutoresetMode(mode))


@pytest.mark.parametrize("kind", [*KINDS, *(mode.value for mode in AutoresetMode)])
def test_masks_of_info_are_those_of_the_observation(kind: str) -> None:
    """T1, T2, T3: each row has the mask that it was acted from, and the one that it arrived in, also at an end."""
    told, seen = collected(kind, **IN_INFO), collected(kind, **{**IN_INFO, "where": "obs"})
    np.testing.assert_array_equal(told.action, seen.action)
    for column in ("obs", "next_obs"):
        np.testing.assert_array_equal(told[column].obs, seen[column].seen)
        np.testing.assert_array_equal(told[column].action_mask, seen[column].action_mask)
    assert (told.next_obs.action_mask.any(-1) == ~told.terminated).all()  # nothing is left to do there
    inside = ~(told.terminated | told.truncated)[:-1]
    np.testing.assert_array_equal(
        told.next_obs.action_mask[:-1][inside], told.obs.action_mask[1:][inside], "the next row is acted from there"
    )


def test_the_wrapper_keeps_what_there_is() -> None:
    """Entries of a dictionary; returns are raw (S1); a recorder is not needed for it."""
    env = make_env(Nested, wrappers=["ActionMask"])
    assert list(env.observation_space) == ["action_mask", "near", "where"]  # in gymnasium's order
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert obs["action_mask"].tolist() == info["action_mask"]
    assert has_raw_returns(env)


class Nested(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict(near=spaces.Box(0, 1, (1,)), where=spaces.Discrete(3))
    action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, **_: Any) -> Any:
        return {"near": np.full(1, 0.5, np.float32), "where": 2}, {"action_mask": [1, 0, 1, 1]}


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"prob": 1.0}, r"has no 'action_mask' after reset \(it has prob"),
        ({}, r"has no 'action_mask' after reset \(it has nothing\)"),
        ({"action_mask": [1, 1]}, r"has shape \(2,\), expected \(4,\)"),
    ],
)
def test_a_mask_that_is_not_there_is_an_error(info: dict[str, Any], message: str) -> None:
    class Without(Nested):
        def reset(self, **_: Any) -> Any:
            return super().reset()[0], info

    with pytest.raises(SchemaError, match=message):
        ActionMask(Without()).reset()
    with pytest.raises(SchemaError, match=message):
        VectorActionMask(SyncVectorEnv([Without])).reset()


def test_what_cannot_have_a_mask_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Box.* can have none"):
        make_env("Pendulum-v1", wrappers=["ActionMask"])
    with pytest.raises(ConfigError, match="have an action_mask already"):
        make_env(Doors, wrappers=["ActionMask"])
    with pytest.raises(ConfigError, match=r"no wrapper 'ActionMsk'.*did you mean 'ActionMask'"):
        make_env(Doors, wrappers=["ActionMsk"])


class Wrong(Doors):
    """A mask of another length than there are actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(7)


def test_a_mask_of_another_length_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"action_mask'\] is Box.*\(5,\).*Discrete\(7\) has 7 actions"):
        Environments(Wrong).spaces(2)


@pytest.mark.parametrize("kind", ["local", "async", "NEXT_STEP"])
def test_an_environment_without_a_valid_action_is_named(kind: str) -> None:
    """With episode and step; not where it is at an end and would only be reset (T1)."""
    manager = make_manager(Doors, 2, {"stuck": 2, "length": 4}, **KINDS[kind])
    with manager, pytest.raises(SchemaError, match=r"environment [01] has no valid action in episode 0, step 2"):
        RolloutWorker(manager, RandomPolicy(manager.observation_space, manager.action_space), seed=0).sample(9)


def test_evaluating_goes_by_the_mask() -> None:
    first = ScriptedPolicy(lambda obs: obs.action_mask.argmax(1))
    assert len(evaluate(first, Doors, episodes=6, seed=0, num_envs=2)) == 6
    with pytest.raises(SchemaError, match="environment 0 has no valid action in episode 0, step 3"):
        evaluate(first, Doors, env_args={"stuck": 3}, episodes=2, seed=0, num_envs=1)


@pytest.mark.parametrize("kind", ["local", "NEXT_STEP"])
def test_a_mask_that_nobody_reads_is_said_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """For the first worker of a run; where it is read, or where there is none, nothing is said."""
    for wrappers, index, said in ((["ActionMask"], 0, 0), ([], 1, 0), ([], 0, 1)):
        caplog.clear()
        manager = make_manager(Doors, 2, {"where": "info"}, wrappers=wrappers, **KINDS[kind])
        with manager, caplog.at_level(logging.WARNING, "flowrl"):
            RolloutWorker(manager, RandomPolicy(None, manager.action_space), seed=0, index=index)
        assert sum("the wrapper ActionMask adds it to" in text for text in caplog.messages) == said


@pytest.mark.parametrize("kind", ACTIONS)
def test_samples_are_valid_and_all_of_them_are_drawn(kind: str) -> None:
    env = Doors(kind)
    obs, _ = env.reset(seed=1)
    space = env.action_space
    space.seed(0)
    offset = 3 if kind == "shifted" else 0
    for choice, part in enumerate(np.split(obs["action_mask"], np.cumsum(env.sizes)[:-1])):
        drawn = {int(np.atleast_1d(valid_sample(space, obs))[choice]) - offset for _ in range(200)}
        assert drawn == set(np.flatnonzero(part).tolist())


def test_an_observation_in_reused_memory_is_found_beneath_the_wrapper() -> None:
    """T2: what its environment writes again was no last observation."""
    seen, mask = np.zeros(2), np.ones(3)
    assert shared_memory({"obs": seen, "action_mask": mask}, seen) == "observation['obs']"
    assert shared_memory({"x": seen, "action_mask": mask}, {"x": seen}) == "observation['x']"
    assert shared_memory({"x": seen, "action_mask": mask}, {"x": np.zeros(2)}) == ""


def test_every_choice_needs_an_action() -> None:
    mask = np.array([[1, 0, 0, 0, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], np.bool_)
    assert without_choice(mask, spaces.MultiDiscrete([2, 3])).tolist() == [1, 2]
    assert without_choice(mask, spaces.Discrete(5)).tolist() == []


def test_the_doctor_takes_valid_actions_and_offers_the_wrapper() -> None:
    options: dict[str, Any] = {"num_envs": 2, "steps": 60, "seconds": 1.0, "timeout": 20.0}
    assert (healthy := diagnose(Doors, **options)).problems == 0, healthy.lines()
    asked = diagnose(Doors, {"where": "info"}, wrappers=["ActionMask"], **options)
    assert asked.problems == 0, asked.lines()
    unasked = diagnose(Doors, {"where": "info"}, **options)
    assert [finding.text for finding in unasked.findings if finding.about == "mask"] == [
        "info has an action_mask, which policies do not read: the wrapper ActionMask adds it to the observation"
    ]
