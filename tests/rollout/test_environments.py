"""What a configuration says of environments reaches them: who steps them, wrappers, seeds, others for evaluating."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl import Trainer
from flowrl.envs import EnvManager, VectorEnvManager, closing, make_manager
from flowrl.errors import ConfigError
from flowrl.operators import ParallelRollouts
from flowrl.plans import A2C, DQN
from flowrl.rollout import WorkerSet, evaluate
from flowrl.testing import same
from tests.broken_envs import RaisesInClose
from tests.clock_envs import TERMINATED, ClockEnv, clock_envs
from tests.plans.small import SMALL
from tests.scripted import ScriptedPolicy

QUICK = {"dqn": SMALL["dqn"], "a2c": SMALL["a2c"]}
PLANS: dict[str, type[Trainer]] = {"dqn": DQN, "a2c": A2C}


def make(env: Any = "CartPole-v1", **kwargs: Any) -> WorkerSet:
    return WorkerSet(env, lambda *spaces: ScriptedPolicy(), envs_per_worker=2, **kwargs)  # type: ignore[arg-type]


def weights(trainer: Trainer) -> dict[str, Any]:
    return {name: value.numpy().copy() for name, value in trainer.workers.policy.model.state_dict().items()}


def trained(plan: str, **settings: Any) -> tuple[dict[str, Any], dict[str, int]]:
    with PLANS[plan]("CartPole-v1", QUICK[plan], seed=3, envs_per_worker=4, **settings) as trainer:
        trainer.train({"env_steps": 200})
        return weights(trainer), trainer.counters


@pytest.mark.parametrize("plan", PLANS)
def test_who_steps_the_environments_changes_no_bit(plan: str) -> None:
    """D2: in this process, in others and in threads the same actions meet the same environments."""
    local = trained(plan)
    two = {"env_manager_args": {"envs_per_process": 2}}
    assert same(trained(plan, env_manager="subprocess", **two), local)
    assert same(trained(plan, env_manager="thread"), local)


@pytest.mark.parametrize("kind", ["subprocess", "thread"])
def test_a_run_goes_on_exactly_in_other_processes(kind: str, tmp_path: Path) -> None:
    """D3: from the middle of episodes; F15: and nothing is left behind."""
    threads = set(threading.enumerate())
    settings = {**QUICK["dqn"], "env_manager": kind, "seed": 1}
    with DQN("CartPole-v1", settings) as whole:
        whole.train({"env_steps": 80})
        whole.save(tmp_path / "saved")
        whole.train({"env_steps": 160})
        expected = weights(whole), whole.counters
    with DQN("CartPole-v1", settings) as again:
        again.restore(tmp_path / "saved")
        again.train({"env_steps": 160})
        assert same((weights(again), again.counters), expected)
    assert multiprocessing.active_children() == []
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("kind", ["local", "subprocess", "async", "thread", "vector"])
def test_a_set_serves_one_run_after_the_other(kind: str) -> None:
    with make(env_manager=kind) as workers:
        assert workers.members == []
        for _ in range(2):
            with ParallelRollouts(workers, steps=3).run() as run:
                assert next(run).shape == (3, 2)
        assert workers.local.manager.episode_id.shape == (2,)
    assert multiprocessing.active_children() == []


def test_the_fast_path_is_an_ids_own_vectorised_implementation() -> None:
    with make(env_manager="vector") as workers, ParallelRollouts(workers, steps=20).run() as run:
        next(run)
        manager = workers.local.manager
        assert isinstance(manager, VectorEnvManager)
        assert type(manager._env.unwrapped).__name__ == "CartPoleVectorEnv"


def test_without_one_copies_step_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """T3: they give what environments in this process give."""
    with make("Acrobot-v1", env_manager="vector", env_manager_args={"autoreset_mode": "same_step"}) as workers:
        assert "it has no vectorized implementation of its own, so copies of it step" in caplog.text
        with ParallelRollouts(workers, steps=5).run(seed=2) as run:
            vectorised = next(run)
        assert "SAME_STEP" in workers.local.manager.autoreset
    with make("Acrobot-v1") as local, ParallelRollouts(local, steps=5).run(seed=2) as run:
        assert same(next(run), vectorised)


@pytest.mark.parametrize("kind", ["local", "vector"])
def test_wrappers_that_normalise_for_themselves_are_told_of(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """O1: the environments that evaluate do not share their statistics."""
    make(wrappers=["NormalizeObservation"], env_manager=kind)
    assert "NormalizeObservation keeps its statistics to itself" in caplog.text
    assert "the setting normalize_obs keeps them with the policy" in caplog.text


def test_spaces_come_from_one_environment_that_is_closed_again() -> None:
    """F1: the ones that act are made when a run starts."""
    made: list[ClockEnv] = []

    def factory() -> ClockEnv:
        made.append(ClockEnv(0, [(3, TERMINATED)]))
        return made[-1]

    with make(factory) as workers:
        assert [env.closed for env in made] == [1]
        with ParallelRollouts(workers, steps=1).run():
            assert [env.closed for env in made] == [1, 0, 0]
    assert [env.closed for env in made] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["local", "subprocess", "vector"])
def test_a_close_that_fails_costs_a_line_and_nothing_else(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """F15: neither before a run, nor in an evaluation, nor at the end; the same is said once."""
    closing._say.cache_clear()
    with make(RaisesInClose, env_manager=kind) as workers, ParallelRollouts(workers, steps=3).run() as run:
        assert next(run).shape == (3, 2)
        for _ in range(2):
            assert len(evaluate(workers.policy, RaisesInClose, episodes=1, num_envs=1, seed=0)) == 1
    failures = [line for line in caplog.messages if "could not be closed, which is ignored" in line]
    assert failures[0].startswith("RaisesInClose: it could not be closed, which is ignored: RuntimeError: there is no")
    assert "flowrl doctor tests.broken_envs:RaisesInClose" in failures[0]
    assert len(failures) == 1 + (kind == "subprocess"), failures


def test_one_environment_that_was_given_is_the_only_one() -> None:
    """It belongs to whoever made it, so it is not closed; and it may be used again."""
    env = ClockEnv(0, [(3, TERMINATED)])
    for _ in range(2):
        workers = WorkerSet(env, lambda *spaces: ScriptedPolicy(), envs_per_worker=1)  # type: ignore[arg-type]
        with workers, ParallelRollouts(workers, steps=2).run() as run:
            assert next(run).shape == (2, 1)
        assert workers.is_one_object
    assert env.closed == 0


def test_wrappers_of_a_trainer() -> None:
    settings = {**QUICK["dqn"], "wrappers": ["FrameStackObservation(2)", "FlattenObservation"]}
    with DQN("CartPole-v1", settings) as trainer:
        assert trainer.workers.policy.observation_space.shape == (8,)
        trainer.train({"env_steps": 20})
        assert trainer.workers.evaluation_env.spaces(1)[0].shape == (8,)


def test_seeds_of_episodes_from_the_configuration() -> None:
    """Each environment takes its turn in the list, over and over; evaluation has fresh ones (S3)."""
    with make(lambda: ClockEnv(0, [(2, TERMINATED)], noisy=True), episode_seeds=[5, 6, 7]) as workers:
        with ParallelRollouts(workers, steps=12).run() as run:
            marks = next(run).obs[::2, :, 1]
        assert workers.evaluation_env.episode_seeds is None
    starts = {}
    for seed in (5, 6, 7):
        env = ClockEnv(0, [(2, TERMINATED)], noisy=True)
        starts[seed] = env.reset(seed=seed)[0][1]
    turns = [[5, 6], [7, 5], [6, 7]] * 2
    np.testing.assert_array_equal(marks, [[starts[seed] for seed in row] for row in turns])


def test_environments_that_evaluate_may_be_others() -> None:
    """S3."""
    workers = make(env_args={"max_episode_steps": 5}, wrappers=["ClipReward(0, 1)"], env_manager="thread")
    usual = workers.evaluation_env
    assert (usual.spec, usual.kind, dict(usual.env_args)) == ("CartPole-v1", "thread", {"max_episode_steps": 5})
    ours = {"env_args": {"max_episode_steps": 5}, "env_manager": "thread", "env_manager_args": {"max_retry": 1}}
    others = make(**ours, eval_env=clock_like_cart_pole, eval_wrappers=[], eval_env_manager="local").evaluation_env
    assert (others.spec, others.kind, dict(others.env_args)) == (clock_like_cart_pole, "local", {})
    assert (list(others.wrappers), dict(others.options)) == ([], {})
    longer = make(**ours, eval_env_args={"max_episode_steps": 50}).evaluation_env
    assert (longer.spec, dict(longer.env_args)) == ("CartPole-v1", {"max_episode_steps": 50})
    with others.manager(3) as manager:
        assert isinstance(manager, EnvManager)
        assert manager.num_envs == 3


def clock_like_cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=9)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "manager": ({"env_manager": "subproces"}, "unknown env_manager 'subproces': did you mean 'subprocess'"),
    "its argument": (
        {"env_manager": "subprocess", "env_manager_args": {"env_per_process": 2}},
        "env_manager='subprocess' has no argument 'env_per_process': did you mean 'envs_per_process'",
    ),
    "argument of none": ({"env_manager_args": {"step_timeout": 2}}, "env_manager='local' has no argument 'step_tim"),
    "wrapper": ({"wrappers": ["FrameStack(4)"]}, "no wrapper 'FrameStack'.* did you mean 'FrameStackObservation'"),
    "wrapper of single ones": (
        {"env_manager": "vector", "wrappers": ["FrameStackObservation(4)"]},
        "'FrameStackObservation' in gymnasium.wrappers.vector: .*env_manager='local' takes those of single",
    ),
    "mode": (
        {"env_manager": "vector", "env_manager_args": {"autoreset_mode": "same-step"}},
        "unknown autoreset_mode 'same-step': did you mean 'same_step'",
    ),
    "mode that it has not": (
        {"env_manager": "vector", "env_manager_args": {"autoreset_mode": "disabled"}},
        "CartPoleVectorEnv resets itself in its own mode, NEXT_STEP",
    ),
    "object in processes": (
        {"env": gymnasium.make_vec("CartPole-v1", 2), "env_manager": "subprocess"},
        "env_manager='subprocess' makes environments of its own, but .*CartPole.* is made already",
    ),
    "vector environment in threads": (
        {"env": lambda: gymnasium.make_vec("CartPole-v1", 2), "env_manager": "thread"},
        "env_manager='thread' steps single environments, but .* gives a CartPoleVectorEnv.* env_manager='vector'",
    ),
    "seeds where it resets itself": (
        {"env_manager": "vector", "episode_seeds": [1, 2]},
        "episode_seeds cannot reach the episodes of CartPoleVectorEnv.*use another manager",
    ),
    "seeds that are none": ({"episode_seeds": [-1]}, r"episode_seeds=\[-1\]: expected"),
    "evaluation environment": ({"eval_env": "CartPol-v1"}, "no environment 'CartPol-v1'.*did you mean 'CartPole-v1'"),
    "evaluation in another world": (
        {"eval_env": "Acrobot-v1"},
        r"eval_env: the observation space of Acrobot-v1 is Box.*\(6,\).*, that of CartPole-v1 is .*cannot act in both",
    ),
    "other actions": ({"eval_env": clock_envs([[(1, TERMINATED)]])}, "observation space of .*make is Box"),
    "more actions": ({"env": "Acrobot-v1", "eval_wrappers": ["tests.rollout.test_environments:More"]}, "action space"),
    "evaluation wrapper": ({"eval_wrappers": ["TimLimit(3)"]}, "no wrapper 'TimLimit'.*did you mean 'TimeLimit'"),
}


class More(gymnasium.ActionWrapper[Any, Any, Any]):
    """Has one action more."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(4)

    def action(self, action: Any) -> Any:
        return action % 3


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    """All is refused when the set is made: before a run, and without a process."""
    settings, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_two_environments_with_other_actions_are_not_alike() -> None:
    kinds = iter([gymnasium.make("Acrobot-v1"), More(gymnasium.make("Acrobot-v1"))])
    with pytest.raises(ConfigError, match=r"environment 1 has the action space Discrete\(4\), environment 0 has"):
        make_manager(lambda: next(kinds), 2)
