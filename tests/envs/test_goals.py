"""Environments of goals: what they say of goals is what they do, and hindsight finds out who says it."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import NormalizeReward, TransformObservation, TransformReward

from flowrl.envs import Environments
from flowrl.envs.goals import BitFlipping, PointReach, bit_flipping, goal_functions, point_reach
from flowrl.rollout import evaluate, scores
from flowrl.runs.config import build_config
from flowrl.trainer.plan_file import load_plan_file
from tests.plans.small import SMALL

MAKERS = [lambda: bit_flipping(4), lambda: point_reach(radius=0.3, max_steps=12)]


@pytest.mark.parametrize("make", MAKERS)
def test_a_step_is_what_its_functions_say_of_its_goals(make: Any) -> None:
    """H3, S5: row by row, for all steps at once; a success ends the episode, time cuts it, both are told apart."""
    env = make()
    env.action_space.seed(0)
    reached, desired, rewards, ends, successes = [], [], [], [], []
    for seed in range(60):
        env.reset(seed=seed)
        for t in range(env.max_steps):
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            reached.append(obs["achieved_goal"])
            desired.append(obs["desired_goal"])
            rewards.append(reward)
            ends.append(terminated)
            successes.append(info["is_success"])
            assert truncated == (t == env.max_steps - 1)
            if terminated:
                break
    assert 0 < sum(successes) < len(successes)
    goals = np.array(reached), np.array(desired)
    assert env.compute_reward(*goals, {}).tolist() == rewards
    assert env.compute_terminated(*goals, {}).tolist() == ends == successes


@pytest.mark.parametrize("make", MAKERS)
def test_gymnasium_finds_nothing_to_say(make: Any) -> None:
    check_env(make(), skip_render_check=True)


def test_bits_can_always_be_made_the_desired_ones() -> None:
    """By flipping each wrong one once; observations given before stay as they were."""
    env = BitFlipping(6)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        before = {name: part.copy() for name, part in obs.items()}
        wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
        ends = [env.step(int(bit))[2] for bit in wrong]
        assert ends == [False] * (len(wrong) - 1) + [True] * (len(wrong) > 0)
        assert all((obs[name] == before[name]).all() for name in obs)


def test_a_point_comes_to_its_goal_and_stays_in_the_square() -> None:
    env = PointReach()
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        for _ in range(env.max_steps):
            way = (obs["desired_goal"] - obs["achieved_goal"]) / env.speed
            obs, reward, terminated, _, _ = env.step(np.clip(way, -1, 1))
            if terminated:
                break
        assert (reward, terminated) == (1, True)
    for _ in range(30):
        obs, *_ = env.step(np.full(2, 9.0))
    assert (obs["achieved_goal"] == 1).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PointReach(radius=0), "radius is 0, expected more than 0"),
        (lambda: PointReach(speed=-1), "speed is -1"),
        (lambda: PointReach(max_steps=0), "max_steps is 0, expected at least 1"),
    ],
)
def test_what_makes_no_environment_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_mean_return_is_the_share_of_successes() -> None:
    """S5: so that a bound on the return is one on successes."""
    config = build_config(load_plan_file("her_dqn").Config, SMALL["her_dqn"])
    environments = Environments("flowrl.envs.goals:bit_flipping", {"bits": 3})
    policy = load_plan_file("her_dqn").trainer.policy(config, *environments.spaces(1))
    found = scores(evaluate(policy, environments, episodes=40, seed=0))
    assert found.return_mean == found.win_rate
    assert 0 < found.return_mean < 1


class InTens(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays ten times as much, and says so."""

    def step(self, action: Any) -> Any:
        obs, reward, *ends, info = self.env.step(action)
        return obs, 10 * float(reward), *ends, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 10 * self.env.unwrapped.compute_reward(achieved_goal, desired_goal, info)  # type: ignore[attr-defined]


def test_the_outermost_layer_is_asked() -> None:
    """H3: through wrappers."""
    env = gymnasium.wrappers.TimeLimit(InTens(TransformReward(bit_flipping(3), lambda reward: -float(reward))), 5)
    found = goal_functions(env)
    assert not isinstance(found, str)
    zeros = np.zeros((2, 3))
    assert found.compute_reward(zeros, zeros, {}).tolist() == [10, 10]
    assert found.compute_terminated(zeros, zeros, {}).tolist() == [True, True]


def in_other_units(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """All positions are ten times as large."""
    parts = {name: Box(-10, 10, (2,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}
    return TransformObservation(env, lambda obs: {name: 10 * part for name, part in obs.items()}, Dict(parts))


class WithoutRewards(BitFlipping):
    compute_reward = property()


class WithoutEnds(BitFlipping):
    compute_terminated = property()


def test_without_a_method_for_it_no_goal_ends_an_episode() -> None:
    """H3: as in panda-gym; the end of the step itself holds."""
    found = goal_functions(WithoutEnds(3))
    assert not isinstance(found, str)
    assert found.compute_terminated(np.zeros((2, 3)), np.zeros((2, 3)), {}).tolist() == [False, False]


@pytest.mark.parametrize(
    ("env", "lacks"),
    [
        (lambda: gymnasium.make("CartPole-v1"), "no 'achieved_goal' in its .* no method compute_reward"),
        (lambda: gymnasium.wrappers.FlattenObservation(bit_flipping()), "has no 'achieved_goal' in its observations"),
        (lambda: TransformReward(bit_flipping(), lambda r: 2 * float(r)), "has a TransformReward around it, which"),
        (lambda: NormalizeReward(bit_flipping()), "has a NormalizeReward around it, which changes rewards"),
        (WithoutRewards, "^has no method compute_reward$"),
        (lambda: in_other_units(point_reach()), "^has a wrapper around it that changes goals, and has no compute_rew"),
    ],
)
def test_what_is_lacking_is_named(env: Any, lacks: str) -> None:
    """H3: relabelled steps are paid as real ones are, or nobody learns of them."""
    found = goal_functions(env())
    assert isinstance(found, str)
    assert re.search(lacks, found), found
