"""Evaluation: quotas, own seeds, and no trace left in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import gymnasium
import numpy as np
import pytest

from flowrl.envs import Environments, Episode
from flowrl.errors import ConfigError, NotFinite
from flowrl.operators import Evaluate
from flowrl.rollout import WorkerSet, evaluate, scores
from flowrl.rollout.evaluation import implausible
from tests.broken_envs import Stumbles
from tests.brought_envs import EachLife, Halved, Points
from tests.clock_envs import TERMINATED, TRUNCATED, ClockEnv, Table, clock_envs
from tests.scripted import ScriptedPolicy

# Environment 0 plays short episodes, environment 1 long ones.
TABLE: Table = [[(1, TERMINATED)], [(10, TERMINATED)]]


def test_every_environment_plays_its_share() -> None:
    """S2: never the first n to finish; short episodes would be over-represented."""
    played = evaluate(ScriptedPolicy(), clock_envs(TABLE), episodes=5, seed=0, num_envs=2)
    assert sorted(episode.length for episode in played) == [1, 1, 1, 10, 10]


def test_the_same_seed_meets_the_same_starts() -> None:
    """S6: starts follow from the seed alone; S1: returns are raw sums of rewards."""
    policy = ScriptedPolicy(lambda obs, noise, env_steps: (obs[:, 2] > 0).astype(np.int64))
    first, again, other = (evaluate(policy, "CartPole-v1", episodes=6, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert scores(first).return_mean == np.mean([episode.length for episode in first])


def test_an_episode_that_never_ends_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """No hangs: it counts as it is, once for its environment, and the others play all of their share."""
    table: Table = [[(10**6, TERMINATED)], [(10, TERMINATED)], [(50, TERMINATED)]]
    played = evaluate(ScriptedPolicy(), clock_envs(table), episodes=6, seed=0, num_envs=3, max_steps=50)
    assert sorted((e.env_id, e.length, e.cut) for e in played) == [
        (0, 50, True), (1, 10, False), (1, 10, False), (2, 50, False), (2, 50, False)
    ]  # fmt: skip
    assert (scores(played).episodes, scores(played).cut) == (5, 1)
    cut, whole = (next(e for e in played if e.env_id == i) for i in (0, 2))
    assert cut.return_ == whole.return_, "the raw rewards so far (S1)"
    assert "1 of 5 episodes had not ended after 50 steps and were cut; give it a time limit" in caplog.text


def test_a_cut_episode_has_its_own_return_alone() -> None:
    """S1: not what earlier episodes of the environment had."""
    table: Table = [[(5, TERMINATED), (10**6, TERMINATED)]]
    whole, cut = evaluate(ScriptedPolicy(), clock_envs(table), episodes=2, seed=0, num_envs=1, max_steps=7)
    start = 2 * 1000 + 5  # of the second episode's clock, which counts steps and 1000 for each reset
    assert (whole.length, cut.length, cut.cut) == (5, 7, True)
    assert cut.return_ == sum(range(start + 1, start + 8))


class Forever(Points):
    """A game without end, of lives of three steps; its k-th step is worth k."""

    games = 10**6

    def lives(self) -> int:
        return self.games - self.t // 3


@pytest.mark.parametrize("kind", ["local", "vector", "subprocess", "async", "thread"])
@pytest.mark.parametrize("wrappers", [[Halved], [Halved, EachLife], [Halved, EachLife, "TimeLimit(1)"]])
def test_a_cut_episode_is_that_of_the_environment_alone(kind: str, wrappers: list[Any]) -> None:
    """S1, R3, T9: it has the raw rewards, and lives that a wrapper ends apart are no way to go on for ever."""
    endless = Environments(Forever, kind=kind, wrappers=wrappers)
    played = evaluate(ScriptedPolicy(), endless, episodes=4, seed=0, num_envs=2, max_steps=7)
    assert [each.env_id for each in played if each.cut and each.length >= 7] == [0, 1]
    assert all(each.return_ == sum(range(1, each.length + 1)) for each in played)


def test_a_policy_acts_in_its_eval_mode() -> None:
    policy = ScriptedPolicy()
    policy.collect_mode = None
    assert len(evaluate(policy, "CartPole-v1", episodes=1, seed=0)) == 1


def test_environments_get_the_env_action() -> None:
    """G6: CartPole takes the one and would refuse the other."""

    def act(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> dict[str, np.ndarray]:
        return {"action": np.tanh(obs[:, 2]), "env_action": (obs[:, 2] > 0).astype(np.int64)}

    plain = ScriptedPolicy(lambda *args: act(*args)["env_action"])
    played, expected = (evaluate(policy, "CartPole-v1", episodes=3, seed=0) for policy in (ScriptedPolicy(act), plain))
    assert played == expected


@pytest.mark.parametrize("kind", ["subprocess", "async", "thread"])
def test_every_manager_plays_the_same_episodes(kind: str) -> None:
    """S2, S6, T3: the same starts and the same noise for the k-th episode of each environment, in whatever order."""

    def left(obs: np.ndarray, noise: np.ndarray, env_steps: int) -> np.ndarray:
        return (noise[:, 0] < 0.6).astype(np.int64)

    expected = evaluate(ScriptedPolicy(left, draws=1), "CartPole-v1", episodes=13, seed=3, num_envs=5)
    played = evaluate(
        ScriptedPolicy(left, draws=1), Environments("CartPole-v1", kind=kind), episodes=13, seed=3, num_envs=5
    )
    assert played == expected, "in the same order too: a mean has the same bits then"
    assert [sum(episode.env_id == i for episode in played) for i in range(5)] == [3, 3, 3, 2, 2]


def test_an_implementation_that_is_vectorised_plays_its_shares() -> None:
    """S2, T1: rows that only reset are no steps of an episode."""
    played = evaluate(ScriptedPolicy(), Environments("CartPole-v1", kind="vector"), episodes=7, seed=0, num_envs=3)
    assert [sum(episode.env_id == i for episode in played) for i in range(3)] == [3, 2, 2]
    assert all(episode.return_ == episode.length for episode in played)


@pytest.mark.parametrize("kind", ["subprocess", "async", "thread"])
def test_an_episode_that_a_fault_cut_is_played_again(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """S2, F10: the others are as they would be without it; it is said once, with the environment's error."""
    played = evaluate(ScriptedPolicy(), Environments(Stumbles, kind=kind), episodes=10, seed=0, num_envs=2)
    assert [sum(episode.env_id == i for episode in played) for i in range(2)] == [5, 5]
    faults = [record.message for record in caplog.records if "it stumbled" in record.message]
    assert len(faults) == len(set(faults)) > 0
    assert all(episode.return_ == episode.length for episode in played), "nothing of what was cut is counted"
    assert max(episode.episode_id for episode in played) >= 5


class Counting:
    """A recurrent mode: pushes right from the third step of an episode on."""

    draws = 0

    def initial_state(self) -> np.ndarray:
        return np.zeros((1, 1), np.int64)

    def act(self, obs: np.ndarray, noise: np.ndarray, env_steps: int, state: np.ndarray) -> dict[str, np.ndarray]:
        return {"action": (state[:, 0] >= 3).astype(np.int64), "next_state": state + 1}


def test_few_episodes_are_the_first_of_many() -> None:
    """S6: of the same environments, whatever the number of all; and none is played for nothing."""
    few, many = (
        evaluate(ScriptedPolicy(), "CartPole-v1", episodes=n, seed=1, num_envs=envs) for n, envs in ((10, 8), (24, 8))
    )
    assert [sum(episode.env_id == i for episode in few) for i in range(5)] == [2] * 5
    assert len({episode.return_ for episode in many}) > 1
    assert set(few) <= set(many)


def far_below(returns: list[float], goal: float) -> bool:
    return sum(goal - x for x in returns) >= 4.2 * sum((goal - x) ** 2 for x in returns) ** 0.5


@pytest.mark.parametrize("kind", ["local", "async"])
def test_a_goal_that_is_missed_ends_the_episodes_early(kind: str) -> None:
    """S6: tested after 20 and 40 episodes, in whole rounds; the episodes until then stay the same."""
    policy = ScriptedPolicy(lambda obs, noise, env_steps: (obs[:, 2] > 0).astype(np.int64))
    envs = Environments("CartPole-v1", kind=kind)
    whole = evaluate(policy, envs, episodes=60, seed=2, num_envs=4)
    first = {rounds: [e for e in whole if e.episode_id < rounds] for rounds in (5, 10, 15)}
    ended = set()
    for goal in (0.0, scores(whole).return_mean + 1, 55.0, 1e3, math.nan):
        rounds = next((n for n in (5, 10) if far_below([e.return_ for e in first[n]], goal)), 15)
        assert evaluate(policy, envs, episodes=60, seed=2, num_envs=4, goal=goal) == first[rounds], (goal, rounds)
        ended.add(rounds)
    assert ended == {5, 10, 15}


def missed_early(returns: np.ndarray, goal: float) -> bool:
    return any(implausible(returns[:n].tolist(), goal) for n in (20, 40))


#: Returns of a policy, as many as one wants: nearly solved, of four clusters, of wins, games and floors.
RETURNS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "CartPole, nearly solved": lambda rng, n: np.where(rng.random(n) < 0.8, 500, rng.integers(150, 500, n)),
    "CartPole, hardly begun": lambda rng, n: 9 + rng.geometric(1 / 13, n),
    "Pendulum": lambda rng, n: rng.choice([-1.0, -124, -240, -350], n, p=[0.1, 0.55, 0.3, 0.05]) + rng.normal(0, 5, n),
    **{f"wins, {share}": lambda rng, n, share=share: 1.0 * (rng.random(n) < share) for share in (0.1, 0.3, 0.5, 0.9)},
    "games, mostly lost": lambda rng, n: np.where(rng.random(n) < 0.2, 1.0, -1.0),
    "MountainCar, a floor": lambda rng, n: np.where(rng.random(n) < 0.3, rng.integers(-150, -85, n), -200),
}


@pytest.mark.parametrize("evaluations", [500, pytest.param(10_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("case", RETURNS)
def test_few_evaluations_of_a_policy_at_the_goal_end_early(case: str, evaluations: int) -> None:
    """S6: at most 1 in 1,000 of a mean R; 99 % at R + 3s/10 reach it; at R - 3s/10 hardly any does so twice."""
    rng = np.random.default_rng(8)
    many = RETURNS[case](rng, 1_000_000)
    mean, s = many.mean(), many.std()
    played = rng.choice(many, (evaluations, 200))
    assert sum(missed_early(returns, mean) for returns in played) <= evaluations / 1_000

    def reached(returns: np.ndarray, goal: float) -> bool:
        return returns.mean() >= goal and not missed_early(returns, goal)

    assert sum(reached(each[:100], mean - 0.3 * s) for each in played) >= 0.99 * evaluations
    low = mean + 0.3 * s
    assert sum(reached(each[:100], low) and each[100:].mean() >= low for each in played) <= evaluations / 1_000


def test_what_is_out_of_reach_ends_early() -> None:
    """S6: a clear miss takes 20 episodes, with a floor as long as that tells."""
    assert implausible([-1_300.0, -1_100.0, -1_500.0, -1_250.0] * 5, -200)
    assert implausible([-500.0] * 20, -100), "half of the returns above would be 500 or more"
    assert not implausible([-200.0] * 20, -110)
    assert implausible([-200.0] * 40, -110)
    assert not implausible([0.0] * 40, 0.1)
    assert not implausible([], 1.0)
    assert not implausible([math.nan] * 20, 1.0)


@pytest.mark.parametrize("kind", ["local", "async"])
def test_recurrent_state_begins_with_each_episode(kind: str) -> None:
    """T8: a policy that counts its steps plays as one that is told the time."""
    policy = ScriptedPolicy()
    policy.eval_mode = Counting()
    played = evaluate(policy, Environments(Told, kind=kind), episodes=6, seed=0, num_envs=2)
    assert [episode.return_ for episode in played] == [7.0] * 6


class Told(gymnasium.Env[Any, Any]):
    """Ten steps long; going right is rewarded from the fourth one on, going left before that costs nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = float(action == 1 and self.t >= 3)
        self.t += 1
        return np.zeros(1, np.float32), reward, self.t == 10, False, {}


def test_evaluation_has_settings_of_its_own() -> None:
    """S3: another environment, other arguments and wrappers than those that collect."""
    workers = WorkerSet(
        "CartPole-v1",
        lambda *spaces: ScriptedPolicy(),
        env_args={"max_episode_steps": 400},
        eval_env_args={"max_episode_steps": 6},
        eval_wrappers=["TimeLimit(5)"],
    )
    with workers:
        assert Evaluate(workers, every=1, episodes=4)({"env_steps": 1})["eval_return"] == 5
        assert workers.env_args == {"max_episode_steps": 400}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"env": "CartPol-v1"}, "CartPole-v1"),
        ({"envs_per_worker": 0}, "at least one environment"),
        ({"num_workers": -3}, "num_workers=-3"),
    ],
)
def test_bad_worker_sets_are_refused_before_any_work(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerSet(**{"env": "CartPole-v1", "policy": lambda *spaces: ScriptedPolicy(), **kwargs})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_there_is_no_score_of_a_return_that_is_not_finite(number: float) -> None:
    """X1, S1: rewards beneath a wrapper may be so, as a recorder says that an environment has."""
    with pytest.raises(NotFinite, match=rf"is {number} \(environment 1, episode 4, 7 steps\): the rewards below"):
        scores([Episode(0, 0, 1.0, 5), Episode(1, 4, number, 7)])


def test_that_only_wins_are_told_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """S9: episodes that say nothing are not judged, so of four of which one was won the win rate is 1."""

    class SaysWins(ClockEnv):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, info if info.get("is_success") else {}

    ends = [(1, TERMINATED), (1, TRUNCATED), (1, TRUNCATED), (1, TRUNCATED)]
    played = evaluate(ScriptedPolicy(), lambda: SaysWins(0, ends), episodes=4, seed=0, num_envs=1)
    assert (scores(played).win_rate, scores(played).judged) == (1.0, 1)
    assert "1 of 4 episodes say that they were won, and the others say nothing" in caplog.text


def test_the_three_kinds_of_score() -> None:
    """S5, S1: total return, mean reward of a step, and the share of wins among the episodes that know."""
    played = evaluate(
        ScriptedPolicy(), clock_envs([[(1, TERMINATED)], [(10, TRUNCATED)]]), episodes=6, seed=0, num_envs=2
    )
    returns = [episode.return_ for episode in played]
    found = scores(played)
    assert (found.episodes, found.return_mean) == (6, np.mean(returns))
    assert (found.return_std, found.return_min, found.return_max) == (np.std(returns), min(returns), max(returns))
    assert (found.length_mean, found.length_std) == (5.5, 4.5)
    assert found.reward_per_step == sum(returns) / 33, (
        "not the mean of the episodes' means, where short ones weigh more"
    )
    assert (found.win_rate, found.judged) == (0.5, 6)

    unknown = [attrs.evolve(episode, success=None) for episode in played[:3]]
    assert (scores(unknown).win_rate, scores(unknown).judged) == (None, 0)
    assert scores([*unknown, attrs.evolve(played[3], success=True)]).win_rate == 1.0
    with pytest.raises(ValueError, match="no episodes"):
        scores([])
