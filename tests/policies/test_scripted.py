"""Policies that do not learn: random and scripted ones, wherever a policy acts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scipy.stats import ks_2samp

from flowrl.data import Batch, Dataset, ReplayBuffer
from flowrl.envs import make_manager
from flowrl.errors import ConfigError
from flowrl.operators import ParallelRollouts, Record, StoreToReplay
from flowrl.policies import DQNPolicy, RandomPolicy, ScriptedPolicy, linear_schedule
from flowrl.rollout import RolloutWorker, WorkerSet, evaluate, scores
from flowrl.runs.config import Configuration
from flowrl.testing import same
from flowrl.trainer.trained_policy import TrainedPolicy

INF = np.inf
SPACES = {
    "discrete": spaces.Discrete(3),
    "shifted": spaces.Discrete(3, start=-5),
    "multi": spaces.MultiDiscrete([2, 4], start=[0, 7]),
    "table": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "binary": spaces.MultiBinary(3),
    "bounded": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32)),
    "unbounded": spaces.Box(-INF, INF, (2,), np.float64),
    "one bound": spaces.Box(np.array([1, -INF]), np.array([INF, -1]), dtype=np.float64),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "whole": spaces.Box(-1, 2, (2,), np.int64),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
}


def drawn(space: gymnasium.Space[Any], noise: np.ndarray) -> np.ndarray:
    policy = RandomPolicy(spaces.Discrete(2), space)
    columns = policy.act(None, noise[:, : policy.draws], 0)
    return columns.get("env_action", columns["action"])


@pytest.mark.parametrize("name", SPACES)
def test_random_actions_are_distributed_as_the_space_samples(name: str) -> None:
    """Each number by the Kolmogorov-Smirnov distance, and the type."""
    space, rows = SPACES[name], 4000
    space.seed(1)
    theirs = np.stack([space.sample() for _ in range(rows)])
    ours = drawn(space, np.random.default_rng(2).random((rows, 16)))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    for mine, wanted in zip(ours.reshape(rows, -1).T, theirs.reshape(rows, -1).T):
        assert ks_2samp(mine, wanted).statistic < 0.05


@pytest.mark.parametrize("name", SPACES)
def test_random_actions_are_in_the_space_at_the_ends_of_the_noise(name: str) -> None:
    for uniform in (0.0, np.nextafter(1, 0)):
        (action,) = drawn(SPACES[name], np.full((1, 16), uniform))
        assert action in SPACES[name]


def test_unknown_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot draw actions of Text"):
        RandomPolicy(spaces.Discrete(2), spaces.Text(3))


def collected(num_envs: int, steps: int = 70) -> Batch:
    with make_manager("Pendulum-v1", num_envs) as manager:
        worker = RolloutWorker(manager, RandomPolicy(manager.observation_space, manager.action_space), seed=3)
        return worker.sample(steps)


def test_random_actions_come_from_each_environments_own_stream() -> None:
    """D2: how many other environments there are changes nothing."""
    few, many = collected(2), collected(5)
    np.testing.assert_array_equal(many.action[:, :2], few.action)
    np.testing.assert_array_equal(many.obs[:, :2], few.obs)
    assert len(np.unique(many.action)) == many.action.size


def upright(obs: Any) -> Any:
    """Pushes the cart under the pole; solves CartPole."""
    return (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 1] > 0).astype(int)


def test_they_are_evaluated_as_others_are() -> None:
    """A baseline, and a demonstrator that is better than it."""
    with WorkerSet("CartPole-v1", RandomPolicy) as workers:
        random = scores(evaluate(workers.policy, "CartPole-v1", episodes=40, seed=0))
    scripted = scores(evaluate(ScriptedPolicy(upright), "CartPole-v1", episodes=8, seed=0))
    assert 15 < random.return_mean < 35
    assert scripted.return_mean > 400


def test_they_record_demonstrations_in_a_plan(tmp_path: Path) -> None:
    """D3: a resumed run goes on with the same actions."""
    for make in (RandomPolicy, lambda *spaces: ScriptedPolicy(upright)):
        name = getattr(make, "__name__", "")
        with WorkerSet("CartPole-v1", make, envs_per_worker=3) as workers:
            plan = ParallelRollouts(workers, steps=5).for_each(Record(tmp_path / name))
            plan.check()
            with plan.run(seed=1) as run:
                list(islice(run, 2))
                state = run.state_dict()
                rest = list(islice(run, 2))
        assert sum(len(batch) for batch in Dataset(tmp_path / name)) == 20
        with WorkerSet("CartPole-v1", make, envs_per_worker=3) as workers:
            plan = ParallelRollouts(workers, steps=5).for_each(Record(tmp_path / name))
            with plan.run(seed=2) as resumed:
                resumed.load_state_dict(state)
                assert same(list(islice(resumed, 2)), rest)


def test_they_fill_a_buffer_before_a_policy_learns_from_it() -> None:
    """Warm-up: the same workers act at random first, then with the policy, without a break."""
    buffer = ReplayBuffer(1000)
    with WorkerSet("CartPole-v1", DQNPolicy, envs_per_worker=2) as workers:
        greedy = DQNPolicy(*spaces_of("CartPole-v1"), epsilon=linear_schedule(0.0, 0.0, 1))
        with ParallelRollouts(workers, steps=10).for_each(StoreToReplay(buffer)).run() as run:
            workers.local.reset_policy(RandomPolicy(*spaces_of("CartPole-v1")))
            random = next(run)
            workers.local.reset_policy(greedy)
            learned = next(run)
    assert 0.2 < random.action.mean() < 0.8
    np.testing.assert_array_equal(
        greedy.eval_mode.act(learned.obs.reshape(20, 4), np.empty((20, 0)), 0)["action"], learned.action.ravel()
    )
    np.testing.assert_array_equal(
        random.next_obs[-1][~(random.terminated[-1])], learned.obs[0][~(random.terminated[-1])]
    )
    assert len(buffer) == 40


def test_a_trained_policy_may_be_scripted() -> None:
    with WorkerSet("CartPole-v1", lambda *spaces: ScriptedPolicy(upright, *spaces)) as workers:
        trained = TrainedPolicy(workers, Configuration())
        assert trained.act(np.array([0, 0, 0.1, 0.1], np.float32)) == 1
        assert trained.evaluate(episodes=2)["return_mean"] > 400


def spaces_of(env: str) -> tuple[Any, Any]:
    with make_manager(env, 1) as manager:
        return manager.observation_space, manager.action_space
