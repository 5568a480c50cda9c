"""EnvPool as a vector environment."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.envs import Environments, VectorEnvManager, make_manager
from flowrl.envs.adapters.envpool import EnvPool
from flowrl.errors import ConfigError


def rows(seed: int, steps: int, **args: Any) -> list[Any]:
    """Columns [T, N] of (acted, episode, t, obs, reward, terminated, truncated, next_obs)."""
    found = []
    with make_manager("envpool:CartPole-v1", 4, args) as manager:
        assert isinstance(manager, VectorEnvManager)
        manager.launch(seed)
        for step in range(steps):
            before = manager.episode_id.copy(), manager.t.copy(), manager.obs.copy()
            result = manager.step([(step + i) // 3 % 2 for i in range(4)])
            acted = np.ones(4, np.bool_) if result.acted is None else result.acted
            found.append([acted, *before, *(np.copy(part) for part in result[1:4]), result.next_obs.copy()])
        lengths = [episode.length for episode in manager.drain()] + manager.t.tolist()
        assert sum(lengths) == sum(row[0].sum() for row in found)
    return [np.stack(column) for column in zip(*found)]


@pytest.mark.needs("envpool")
def test_the_row_of_a_reset_is_no_transition() -> None:
    """T1: the step after an end gives a first observation, and counts nowhere; all others are a step of physics."""
    acted, episode, t, obs, reward, terminated, truncated, next_obs = rows(3, 80)
    ends = terminated | truncated
    assert ends.any()
    assert (acted[1:] == ~ends[:-1]).all()
    assert (reward[acted] == 1).all()
    assert (reward[~acted] == 0).all()
    goes_on = acted[1:] & acted[:-1]
    assert (obs[1:][goes_on] == next_obs[:-1][goes_on]).all()
    assert (t[1:][goes_on] == t[:-1][goes_on] + 1).all()
    assert (np.diff(episode, axis=0) == ends[:-1]).all()
    # CartPole moves the cart by tau = 0.02 times its velocity.
    np.testing.assert_allclose(next_obs[acted][:, 0], obs[acted][:, 0] + 0.02 * obs[acted][:, 1], atol=1e-6)


@pytest.mark.needs("envpool")
def test_a_time_limit_truncates() -> None:
    """T4."""
    acted, _, t, _, _, terminated, truncated, _ = rows(3, 12, max_episode_steps=3)
    assert (truncated == (acted & (t == 2))).all()
    assert truncated.any()
    assert not terminated.any()


@pytest.mark.needs("envpool")
def test_the_seed_of_the_run_decides() -> None:
    """D1: a pool has its seed from when it is made, so it is made when the seed is known."""
    first, again, other = rows(3, 40), rows(3, 40), rows(4, 40)
    assert all((one == two).all() for one, two in zip(first, again))
    assert (first[3][0] != other[3][0]).any()
    assert len(np.unique(first[3][0], axis=0)) == 4


@pytest.mark.needs("envpool")
def test_a_reset_begins_anew() -> None:
    with make_manager("envpool:CartPole-v1", 2) as manager:
        manager.launch(0)
        start = manager.obs.copy()
        manager.step([0, 0])
        manager.reset(0)
        assert manager.cut_episodes == 2
        assert manager.t.tolist() == [0, 0]
        np.testing.assert_array_equal(manager.obs, start)


@pytest.mark.needs("envpool")
def test_spaces_are_known_without_starting_a_pool() -> None:
    observation, action = Environments("envpool:CartPole-v1").spaces(8)
    assert (observation.shape, observation.dtype) == ((4,), np.float32)
    assert action == gymnasium.spaces.Discrete(2)


@pytest.mark.needs("envpool")
def test_dictionaries_of_observations() -> None:
    with make_manager("envpool:CheetahRun-v1", 2) as manager:
        manager.launch(0)
        step = manager.step(np.zeros((2, *manager.action_space.shape), np.float32))
        assert {name: column.shape for name, column in step.next_obs.items()} == {
            "position": (2, 8),
            "velocity": (2, 9),
        }


@pytest.mark.needs("envpool")
@pytest.mark.parametrize(
    ("spec", "args", "options", "message"),
    [
        ("envpool:CartPool-v1", {}, {}, "no environment 'CartPool-v1' in envpool: did you mean 'CartPole-v1'"),
        ("envpool:CartPole-v1", {"seed": 3}, {}, "env_args 'seed' of 'envpool:CartPole-v1': seeds follow from that of"),
        ("envpool:CartPole-v1", {"batch_size": 2}, {}, "'batch_size' of .*: all 4 environments step together"),
        ("envpool:CartPole-v1", {"stacks": 2}, {}, "'envpool:CartPole-v1' refuses env_args"),
        ("envpool:CartPole-v1", {}, {"episode_seeds": [1]}, "episode_seeds"),
        ("envpool:CartPole-v1", {}, {"kind": "vector", "autoreset_mode": "same_step"}, "NEXT_STEP: leave it out"),
    ],
)
def test_what_envpool_cannot_do(spec: str, args: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_manager(spec, 4, args, **options)


def test_without_envpool_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"needs envpool: pip install 'flowrl-engine\[envpool\]'"):
        make_manager("envpool:CartPole-v1", 2)


@pytest.mark.needs("envpool")
def test_returns_are_those_of_the_games_whatever_the_pool_makes_of_lives_and_rewards() -> None:
    """R3, T9: against the rewards and ends of the games that a pool with the same seed tells."""
    import envpool

    args = {"episodic_life": True, "reward_clip": True, "use_fire_reset": True}
    env = EnvPool("Breakout-v5", 4, **args)
    with VectorEnvManager(env) as manager:
        manager.launch(0)
        pool = envpool.make_gymnasium("Breakout-v5", num_envs=4, seed=manager.state_dict()["seeds"][0], **args)
        pool.reset()
        draws = np.random.default_rng(0).integers(0, 4, (500, 4))
        totals, lengths, resetting, games = np.zeros(4), np.zeros(4, int), np.zeros(4, bool), []
        for actions in draws:
            manager.step(actions)
            _, _, terminated, truncated, info = pool.step(actions)
            totals, lengths = totals + info["reward"] * ~resetting, lengths + ~resetting
            for i in np.flatnonzero((info["terminated"] != 0) & ~resetting).tolist():
                games.append((i, totals[i], lengths[i]))
                totals[i] = lengths[i] = 0
            resetting = terminated | truncated
        assert manager.raw_returns
        assert len(games) > 4
        assert [(each.env_id, each.return_, each.length) for each in manager.drain()] == games
