"""A rollout worker over every manager collects the same stream."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from flowrl.data import Batch
from flowrl.rollout import RolloutWorker
from flowrl.testing import same
from tests.clock_envs import TABLE, DictClockEnv, EchoEnv, assert_one_tick
from tests.managers import Make, every_manager, every_one_of_flowrl, local
from tests.scripted import ScriptedPolicy


def by_observation(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
    return (obs[:, 2] * 7 + obs[:, 0] * 131).astype(np.int64) % 1000


def by_noise(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
    return (noise[:, 0] * 500).astype(np.int64) + (noise[:, 1] * 500).astype(np.int64)


POLICIES: dict[str, Any] = {"fixed": (by_observation, 0), "noise": (by_noise, 2)}


def worker_over(make: Make, policy: str = "noise", **kwargs: Any) -> RolloutWorker:
    action, draws = POLICIES[policy]
    acting: Any = ScriptedPolicy(action, draws=draws, with_value=True)
    return RolloutWorker(make(TABLE, **kwargs), acting, seed=3)


@pytest.mark.parametrize("policy", POLICIES)
@every_manager
def test_the_stream_is_the_same(make: Make, policy: str) -> None:
    """T3, T7, D1, D2: fragment by fragment, bit for bit, whoever resets and whoever answers first."""
    worker, reference = worker_over(make, policy, kind=EchoEnv), worker_over(local, policy, kind=EchoEnv)
    try:
        for steps in (5, 1, 70, 9):  # beyond one block of noise
            assert worker.sample(steps) == reference.sample(steps)
    finally:
        worker.close()


@every_one_of_flowrl
def test_the_stream_is_the_same_where_resets_are_by_chance(make: Make) -> None:
    """T3: each episode begins with a seed of its own."""
    worker, reference = worker_over(make, noisy=True), worker_over(local, noisy=True)
    try:
        for steps in (3, 20):
            assert worker.sample(steps) == reference.sample(steps)
    finally:
        worker.close()


@every_manager
def test_every_row_is_a_transition_and_every_step_is_counted(make: Make) -> None:
    """T1, T2, T6, T11: next == obs + 1 and the echo of the action on every row; env_steps are the steps of episodes."""
    worker = worker_over(make, kind=EchoEnv)
    try:
        for batch in (worker.sample(7), worker.sample(4), worker.sample(rows=20)):
            np.testing.assert_array_equal(batch.next_obs[..., 2], batch.obs[..., 2] + 1)
            np.testing.assert_array_equal(batch.next_obs[..., 1], batch.action)
            np.testing.assert_array_equal(batch.next_obs[..., 0], batch.env_id)
            np.testing.assert_array_equal(batch.next_value, batch.next_obs[..., 2])
        steps = sum(episode.length for episode in worker.episodes())
        assert worker.env_steps == steps + worker.manager.t.sum()
    finally:
        worker.close()


@every_manager
def test_whole_episodes_are_the_same(make: Make) -> None:
    """S2, T3: a fixed share of each environment, in the same order, whoever is quick."""
    worker, reference = worker_over(make, "fixed"), worker_over(local, "fixed")
    try:
        batch, expected = worker.sample(episodes=7), reference.sample(episodes=7)
        assert batch.env_id[0].tolist() == [0, 0, 0, 1, 1, 2, 2]
        assert batch == expected
        assert not worker.sample(1).t.any()
    finally:
        worker.close()


@every_manager
def test_resumes_mid_fragment(make: Make) -> None:
    """D3, D5: with rows that wait, noise that is drawn ahead, and answers outstanding."""
    worker, other = worker_over(make, noisy=True), worker_over(make, noisy=True)
    try:
        for steps in (2, 3, 1):
            worker.sample(rows=steps)
            state = copy.deepcopy(worker.state_dict())
            assert same(worker.state_dict(), state)
            other.load_state_dict(state)
            assert same(other.state_dict(), state)
            assert other.sample(4) == worker.sample(4)
    finally:
        worker.close()
        other.close()


@every_manager
def test_observations_in_dictionaries(make: Make) -> None:
    """T2, T11: every leaf is one tick further in next_obs."""
    worker = RolloutWorker(make(TABLE, kind=DictClockEnv), ScriptedPolicy(), seed=3)  # type: ignore[arg-type]
    try:
        batch = worker.sample(9)
        assert isinstance(batch.obs, Batch)
        assert_one_tick(batch.obs, batch.next_obs)
    finally:
        worker.close()
