"""What is the recurrent plans' own: what they refuse, what they count, and acting with what was learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.data import ReplayBuffer
from flowrl.envs import make_env
from flowrl.envs.games.tic_tac_toe import TicTacToe
from flowrl.errors import ConfigError, PlanError, SchemaError
from flowrl.operators import ParallelRollouts, Replay, StoreToReplay, TrainOneStep, TrainWorldModel, Unroll
from flowrl.operators.concurrency import Concurrently
from flowrl.plans import PPO, R2D2
from flowrl.rollout import evaluate
from flowrl.runs.config import build_config
from flowrl.testing import check_plan
from flowrl.trainer.plan_file import load_plan_file
from tests.demonstrations import cartpole_episodes, recorded
from tests.plans.small import SMALL, final, make

POSITIONS = "flowrl.envs.cartpole:without_velocities"


def test_the_environment_shows_positions_alone() -> None:
    """And is CartPole-v1 in all else."""
    blind, seeing = make_env(POSITIONS), make_env("CartPole-v1")
    np.testing.assert_array_equal(blind.reset(seed=3)[0], seeing.reset(seed=3)[0][[0, 2]])
    np.testing.assert_array_equal(blind.step(1)[0], seeing.step(1)[0][[0, 2]])
    assert blind.observation_space.contains(blind.step(0)[0])


@pytest.mark.parametrize(
    ("name", "settings"),
    [("r2d2", {"env": POSITIONS}), ("ppo recurrent", {"env": "tests.spaces_envs:Choices"}), ("r2d2", {"overlap": 0})],
)
def test_they_run_in_their_kinds_of_environments(name: str, settings: dict[str, Any]) -> None:
    results, _ = final(name, 4, **settings)
    assert np.isfinite(results[-1]["loss"])


def test_what_is_trained_on_are_the_steps_that_count() -> None:
    """N6, F12: the ratio and the counters know no padding; PPO learns from each step once an epoch."""
    _, workers_state = final("ppo recurrent", 3)
    counters = workers_state["ledger"]["counters"]
    assert counters["trained"] == 2 * counters["env_steps"]
    workers, plan = make("r2d2")
    with workers, plan.run(seed=0) as run:
        for _ in range(10):
            next(run)
        assert run.counters["trained"] == run.counters["sampled"] > 0


@pytest.mark.parametrize("name", ["r2d2", pytest.param("ppo recurrent", marks=pytest.mark.slow)])
def test_in_a_game_they_remember_each_seat(name: str) -> None:
    """D1, D3, M5: sequences of 6 steps go on over fragments in which a seat has 2 turns."""
    check_plan(lambda: make(name, env="flowrl:tic_tac_toe")[1], items=2, steps=2)


@pytest.mark.parametrize("name", ["r2d2", "dqn", "dqfd", "sqil", "apex_dqn"])
def test_replay_has_room_for_every_seat_of_a_game(name: str) -> None:
    """B8: the rate limiter expects a row of each agent in each step."""
    shared = {"env": "flowrl:two_cartpoles", **({} if name in ("r2d2", "sqil") else {"n_step": 1})}
    workers, plan = make(name, **shared)
    with workers, plan.run(seed=0) as run:
        next(run)
        assert run.counters["inserted"] > run.counters["env_steps"]


def not_in_sequences(name: str) -> Any:
    """A plan of the workers' policy with a buffer of single rows."""
    plan_file = load_plan_file(name)
    settings = {**SMALL[{"ppo": "ppo recurrent"}.get(name, name)], "normalize_obs": False}
    workers, _ = plan_file.build(build_config(plan_file.Config, settings))
    rollouts, buffer = ParallelRollouts(workers, steps=4), ReplayBuffer(100)
    replay = Replay(buffer, 4).for_each(TrainOneStep(workers))
    return workers, rollouts, Concurrently([rollouts.for_each(StoreToReplay(buffer)), replay])


def test_unsequenced_data_is_refused_before_the_run() -> None:
    """Rows for all; for all but PPO also fragments in which episodes follow one another."""
    for name in ("ppo", "r2d2"):
        workers, _, plan = not_in_sequences(name)
        with workers, pytest.raises(PlanError, match="SequenceReplayBuffer"):
            plan.check()
    for name, train in (("r2d2", TrainOneStep), ("muzero", TrainOneStep), ("dreamer", TrainWorldModel)):
        workers, rollouts, _ = not_in_sequences(name)
        with workers:
            with pytest.raises(PlanError, match="each of one episode"):
                rollouts.for_each(train(workers)).check()
            rollouts.for_each(Unroll(4)).for_each(train(workers)).check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 12}, "buffer_size=12 leaves 6 steps for each of 2 environments: expected more than the 6"),
        ({"overlap": 4}, "overlap=4: sequences of 4 steps overlap by 0 .. 3"),
        ({"burn_in": -1}, "burn_in=-1"),
        ({"act_backend": "numpy"}, "no numpy form"),
        ({"env": "Pendulum-v1"}, "chooses among discrete actions"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make("r2d2", **settings)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["unroll_steps", "n_step"])
def test_a_horizon_beyond_the_stored_sequences_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=4 reaches beyond the 4 steps of a sequence: expected at most 3"):
        make("muzero", **{name: 4})


class SecondBegins(TicTacToe):
    possible_agents = ("o", "x")


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("flowrl:matching_pennies", "the agents even, odd, of which even, odd act first"),
        ("tests.games:RandomGame", "the agents ann, bob, cid: self-play and leagues take games of two agents"),
        ("tests.plans.test_recurrent_plans:SecondBegins", "the agents o, x, of which x act first"),
    ],
)
def test_games_that_are_not_of_two_in_turn_are_refused(game: str, words: str) -> None:
    """Before anything is played: their moves make no sequence in turn."""
    with pytest.raises(ConfigError, match=words):
        make("muzero turns", env=game)


def test_demonstrations_of_several_environments_may_be_short() -> None:
    """B3: each of them has room for a sequence."""
    shown = cartpole_episodes(8, 6)
    shown.truncated[-1] = True
    results, _ = final("r2d3", 8, demonstrations=recorded(shown))
    assert np.isfinite(results[-1]["loss"])


class Looped:
    """The eval mode of a policy, through `act`."""

    draws, version = 0, 0

    def __init__(self, trained: Any) -> None:
        self.trained, self.state, self.begins = trained, None, True
        self.eval_mode = self

    def act(self, obs: Any, noise: Any, env_steps: int) -> dict[str, Any]:
        action, self.state = self.trained.act(obs, state=self.state, episode_start=[self.begins])
        self.begins = False
        return {"action": action}


@pytest.mark.parametrize("trainer", [PPO, R2D2])
def test_acting_with_the_state_that_it_gives_back(trainer: Any) -> None:
    """T8: a loop with act(obs, state=...) plays the episodes that evaluation plays; episode_start forgets."""
    small = SMALL["r2d2" if trainer is R2D2 else "ppo recurrent"]
    with trainer(**{**small, "env": POSITIONS}) as trained:
        trained.train()
        (expected,) = evaluate(trained.workers.policy, POSITIONS, episodes=1, seed=5, num_envs=1)
        looped = Looped(trained)
        for _ in range(2):
            looped.begins = True
            (episode,) = evaluate(looped, POSITIONS, episodes=1, seed=5, num_envs=1)  # type: ignore[arg-type]
            assert episode == expected
        state = looped.state
        one, states = trained.act(np.zeros(2, np.float32)), np.ones_like(state)
        assert one[0].shape == ()
        several = trained.act(np.zeros((2, 2), np.float32), state=np.repeat(states, 2, 0), episode_start=[True, False])
        np.testing.assert_allclose(several[1][0], one[1][0], atol=1e-6)
        assert not np.allclose(several[1][1], one[1][0])
        with pytest.raises(SchemaError, match="pass the state that act returned before"):
            trained.act(np.zeros((3, 2), np.float32), state=states)


def test_a_state_for_a_policy_without_memory_is_refused() -> None:
    with PPO(**SMALL["ppo"]) as trained, pytest.raises(SchemaError, match="PPOPolicy has no memory"):
        trained.act(np.zeros(4, np.float32), state=np.zeros((1, 8)))
