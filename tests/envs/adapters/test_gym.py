"""Classic gym environments, of gym 0.26 and of the older interface, in gymnasium's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gym
import gymnasium
import numpy as np
import pytest

from flowrl.envs import Manager, make_env, make_manager
from flowrl.envs.adapters.gym import ClassicEnv
from flowrl.envs.games.seats import Of
from flowrl.errors import ConfigError, SchemaError
from flowrl.testing import same


class OldClock:
    """The four-tuple interface: counts its steps, with a mark that the seed gives; `ends` are lengths and infos."""

    def __init__(self, ends: Any = ((3, {}), (3, {"TimeLimit.truncated": True}), (2, {"TimeLimit.truncated": False}))):
        self.observation_space = gym.spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.ends, self.episode, self.clock, self.start = ends, -1, 0, 0
        self.seeds: list[int] = []
        self.closed = False

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)
        self.start = seed % 1000

    def reset(self) -> Any:
        self.episode += 1
        self.clock = 0
        return np.array([self.start, 0], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        self.clock += 1
        length, info = self.ends[self.episode % len(self.ends)]
        done = self.clock == length
        return np.array([self.start, self.clock], np.float32), 1.0, done, info if done else {}

    def close(self) -> None:
        self.closed = True


def rows(manager: Manager, steps: int) -> Any:
    with manager:
        manager.launch(7)
        found = []
        for step in range(steps):
            before = np.copy(manager.obs)
            result = manager.step([step // 3 % 2] * manager.num_envs)
            found.append([before, *(np.copy(part) for part in result[:4])])
        return [np.stack(column) for column in zip(*found)]


def test_a_classic_environment_gives_what_gymnasiums_own_does() -> None:
    """T3: the two libraries have the same CartPole, so the transitions are the same."""
    assert same(rows(make_manager("gym:CartPole-v1", 3), 60), rows(make_manager("CartPole-v1", 3), 60))


@pytest.mark.parametrize("kind", ["local", "subprocess"])
def test_the_older_interface_says_how_an_episode_ended(kind: str) -> None:
    """T4: done is truncated where TimeLimit.truncated says so, and terminated else."""
    _, next_obs, reward, terminated, truncated = rows(make_manager(OldClock, 1, kind=kind), 8)
    assert next_obs[:, 0, 1].tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert np.flatnonzero(terminated).tolist() == [2, 7]
    assert np.flatnonzero(truncated).tolist() == [5]
    assert reward.sum() == 8


def test_the_older_interface_is_seeded_before_every_episode() -> None:
    """D6: by `seed`, with a fresh number each time."""
    env = OldClock()
    with make_manager(env, 1) as manager:
        manager.launch(0)
        for _ in range(6):
            manager.step([0])
    assert len(set(env.seeds)) == len(env.seeds) == 3
    with make_manager(OldClock, 1, episode_seeds=[5, 6]) as manager:
        manager.launch(0)
        starts = [manager.obs[0, 0]]
        for _ in range(6):
            manager.step([0])
            starts.append(manager.obs[0, 0])
    assert starts == [5, 5, 5, 6, 6, 6, 5]


def test_an_object_is_converted_and_closed_by_its_wrapper() -> None:
    env = OldClock()
    made = make_env(env)
    assert isinstance(made, ClassicEnv)
    made.close()
    assert env.closed


def test_objects_and_factories_lose_the_checker_that_fails_under_numpy_2() -> None:
    for spec in (gym.make("CartPole-v1"), lambda: gym.wrappers.OrderEnforcing(gym.make("CartPole-v1"))):
        env = make_env(spec)
        env.reset(seed=0)
        assert len(env.step(0)) == 5


def test_a_seed_that_only_some_layers_take_goes_the_old_way() -> None:
    class Outer(gym.Wrapper):  # type: ignore[misc]
        def reset(self) -> Any:
            return self.env.reset(seed=self.given)

        def seed(self, seed: int) -> None:
            self.given = seed

    env = make_env(lambda: Outer(gym.make("CartPole-v1", disable_env_checker=True)))
    np.testing.assert_array_equal(env.reset(seed=3)[0], make_env("CartPole-v1").reset(seed=3)[0])


def test_spaces_are_gymnasiums() -> None:
    spaces = gym.spaces
    one = spaces.Dict(
        box=spaces.Box(np.array([0.0, -1.0]), np.array([1.0, 5.0]), dtype=np.float64),
        image=spaces.Box(0, 255, (2, 2), np.uint8),
        some=spaces.Dict(one=spaces.Discrete(3, start=2), many=spaces.MultiDiscrete([2, 3])),
        bits=spaces.MultiBinary(4),
        pair=spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary([2, 2])]),
    )
    env = OldClock()
    env.observation_space = one
    found, theirs = make_env(env).observation_space, gymnasium.spaces
    assert found == theirs.Dict(
        box=theirs.Box(np.array([0.0, -1.0]), np.array([1.0, 5.0]), dtype=np.float64),
        image=theirs.Box(0, 255, (2, 2), np.uint8),
        some=theirs.Dict(one=theirs.Discrete(3, start=2), many=theirs.MultiDiscrete([2, 3])),
        bits=theirs.MultiBinary(4),
        pair=theirs.Tuple([theirs.Discrete(2), theirs.MultiBinary([2, 2])]),
    )


def test_a_space_without_counterpart_is_refused() -> None:
    env = OldClock()
    env.observation_space = gym.spaces.Text(5)
    with pytest.raises(ConfigError, match=r"the observation space of .* is Text.*: expected a Box, Discrete"):
        make_env(env)


def test_wrappers_of_gym_may_change_rewards() -> None:
    """S1: then flowrl does not know the raw returns, and says so."""

    class Doubled(gym.RewardWrapper):  # type: ignore[misc]
        def reward(self, reward: float) -> float:
            return 2 * reward

    def make(*wrappers: Any) -> Any:
        env = gym.make("CartPole-v1", disable_env_checker=True)
        for each in wrappers:
            env = each(env)
        return env

    assert make_manager(make, 1).raw_returns
    assert make_manager(lambda: make(gym.wrappers.FlattenObservation), 1).raw_returns
    assert not make_manager(lambda: make(Doubled), 1).raw_returns


def test_an_interface_of_neither_kind_is_refused() -> None:
    class Three(OldClock):
        def step(self, action: int) -> Any:
            return super().step(action)[:3]

    manager = make_manager(Three, 1)
    manager.launch(0)
    with pytest.raises(SchemaError, match="step gave 3 values, expected 5, or the 4 of the older interface"):
        manager.step([0])


def test_what_has_no_seed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Unseeded(OldClock):
        seed = property()  # type: ignore[assignment]

    make_env(Unseeded)
    assert "has no seed: what happens in it cannot be repeated" in caplog.text


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        ("gym:CartPool-v1", {}, "no environment 'CartPool-v1' in gym: did you mean 'CartPole-v1'"),
        ("gym:No such", {}, "gym cannot make 'No such': Malformed"),
        ("gym:Taxi-v3", {"wind": 3}, r"'gym:Taxi-v3' refuses env_args {'wind': 3}: .*unexpected keyword argument"),
    ],
)
def test_what_gym_does_not_make(spec: str, args: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(spec, args)


def test_gym_is_imported_only_when_asked_for_and_without_its_notice() -> None:
    code = "import sys, flowrl.envs as e; assert 'gym' not in sys.modules; e.make_env('gym:CartPole-v1'); import gym"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert "unmaintained" not in done.stdout + done.stderr


def test_without_gym_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym", None)
    with pytest.raises(ConfigError, match=r"'gym:CartPole-v1' needs gym: pip install 'flowrl-engine\[gym\]'"):
        make_env("gym:CartPole-v1")


class OldTeam(OldClock):
    """Two agents, which have each a reward and an end of their own: the first ends a step before the second."""

    def __init__(self) -> None:
        super().__init__(((3, {}),))
        self.observation_space = gym.spaces.Tuple([gym.spaces.Box(0, 9, (1,), np.float32)] * 2)
        self.action_space = gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)

    def reset(self) -> Any:
        self.clock = 0
        return [np.zeros(1, np.float32)] * 2

    def step(self, action: Any) -> Any:
        self.clock += 1
        return [np.float32([self.clock])] * 2, [float(self.clock < 3), 2.0], [self.clock >= 2, self.clock >= 3], {}


def test_a_classic_environment_may_have_agents() -> None:
    """R2, M1: those that have a reward for each; their ends are their own."""
    env: Any = make_env(OldTeam)
    env.reset(seed=0)
    ends = []
    for _ in range(3):
        obs, _, over, _, _ = env.step(np.zeros(2))
        ends.append(over)
    assert ends == [False, False, True]
    assert obs["seats"][:, Of.RETURN].tolist() == [2, 6]
