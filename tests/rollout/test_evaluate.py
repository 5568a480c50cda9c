"""Evaluation: quotas, own seeds, and no trace left in training."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from flowrl.errors import ConfigError
from flowrl.rollout import WorkerSet, evaluate, scores
from tests.clock_envs import TERMINATED, TRUNCATED, Table, clock_envs
from tests.scripted import ScriptedPolicy

# Environment 0 plays short episodes, environment 1 long ones.
TABLE: Table = [[(1, TERMINATED)], [(10, TERMINATED)]]


def test_every_environment_plays_its_share() -> None:
    """S2: never the first n to finish; short episodes would be over-represented."""
    played = evaluate(ScriptedPolicy(), clock_envs(TABLE), episodes=5, seed=0, num_envs=2)
    assert sorted(episode.length for episode in played) == [1, 1, 1, 10, 10]


def test_the_same_seed_meets_the_same_starts() -> None:
    """S6: fixed evaluation seeds; S1: returns are raw sums of rewards."""
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


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"env": "CartPol-v1"}, "CartPole-v1"),
        ({"envs_per_worker": 0}, "at least one environment"),
        ({"num_workers": 3}, "num_workers=3"),
    ],
)
def test_bad_worker_sets_are_refused_before_any_work(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerSet(**{"env": "CartPole-v1", "policy": lambda *spaces: ScriptedPolicy(), **kwargs})


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
