"""Wrappers by name: found, refused, and put so that returns stay raw (S1) and lost lives are no episodes (T9)."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import ClipReward, FrameStackObservation, RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecorder

from flowrl.envs import EnvFactory, make_env, make_manager
from flowrl.envs.wrappers import layers, recorder
from flowrl.envs.wrapping import wrapper_of
from flowrl.errors import ConfigError
from flowrl.testing import same
from tests.clock_envs import TERMINATED, ClockEnv, clock_vector

ENDS = [(4, TERMINATED), (6, TERMINATED)]


def clock() -> ClockEnv:
    return ClockEnv(0, ENDS)


class Noops(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins every episode with two steps of its own, as AtariPreprocessing does."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.env.reset(**kwargs)
        self.env.step(0)
        obs, _, _, _, info = self.env.step(0)
        return obs, info


def returns(manager: Any, steps: int) -> list[tuple[float, int]]:
    with manager:
        manager.launch(0)
        for _ in range(steps):
            manager.step([0] * manager.num_envs)
        return [(episode.return_, episode.length) for episode in manager.drain()]


def raw_returns(lengths: list[int]) -> list[tuple[float, int]]:
    """What clocks pay: the reward of a step is the clock that it arrives at, and a reset moves it by 1000."""
    found, at = [], 0
    for length in lengths:
        at += 1000
        found.append((float(sum(range(at + 1, at + length + 1))), length))
        at += length
    return found


def test_names_are_read_with_their_arguments() -> None:
    env = make_env("CartPole-v1", wrappers=["FrameStackObservation(3, padding_type='zero')", "TimeLimit( 7 )"])
    outer, inner, *_ = layers(env)
    assert isinstance(outer, TimeLimit)
    assert isinstance(inner, FrameStackObservation)
    assert env.observation_space.shape == (3, 4)
    assert make_env(clock, wrappers=["tests.clock_envs:Lives(steps=2)"]).each == 2  # type: ignore[attr-defined]
    assert isinstance(make_env(clock, wrappers=[lambda env: TimeLimit(env, 3)]), TimeLimit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FrameStak(4)", "no wrapper 'FrameStak' in gymnasium.wrappers: did you mean 'FrameStackObservation'"),
        ("vector", "no wrapper 'vector'"),
        ("tests.clock_envs:Live", "no wrapper 'Live' in tests.clock_envs: did you mean 'Lives'"),
        ("no_such_module:Lives", "No module named 'no_such_module'. Expected 'module:Wrapper' or the name"),
        (
            "TimeLimit(x)",
            r"'TimeLimit\(x\)' cannot be read: expected Name, or Name\(argument, key=value\) with numbers",
        ),
        ("TimeLimit(7", "cannot be read"),
        ("TimeLimit(7)(8)", "cannot be read"),
        ("TimeLimit(**{})", "cannot be read"),
    ],
)
def test_what_names_no_wrapper(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrapper_of(text)
    with pytest.raises(ConfigError, match=message):
        make_manager("CartPole-v1", 2, wrappers=[text])
    with pytest.raises(ConfigError, match=message):  # before a process is started
        make_manager("CartPole-v1", 2, wrappers=[text], kind="subprocess")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TimeLimit(limit=3)", r"'TimeLimit\(limit=3\)' cannot wrap <.*ClockEnv.*>: TypeError: .*'limit'"),
        ("TimeLimit(-1)", "cannot wrap .*ValueError: .*-1"),
        ("AtariPreprocessing", "cannot wrap"),
        ("math:sqrt", "cannot wrap .*TypeError"),
        ("builtins:str", "made a str, expected a Env"),
    ],
)
def test_a_wrapper_that_does_not_fit_closes_the_environment(text: str, message: str) -> None:
    env = clock()
    with pytest.raises(ConfigError, match=message):
        make_env(lambda: env, wrappers=[text])
    assert env.closed == 1


@pytest.mark.parametrize("kind", ["local", "subprocess"])
def test_returns_are_raw_whatever_the_wrappers_do_to_rewards(kind: str) -> None:
    """S1: the recorder is below them."""
    manager = make_manager(clock, 1, wrappers=["ClipReward(-1, 1)"], kind=kind)
    assert manager.raw_returns
    assert returns(manager, 10) == raw_returns([4, 6])


@pytest.mark.parametrize("kind", ["local", "subprocess"])
def test_returns_are_raw_where_a_wrapper_cuts_the_episode(kind: str) -> None:
    """S1: the recorder has not seen the end; what it has counted until the reset is the episode."""
    manager = make_manager(clock, 1, wrappers=["ClipReward(-1, 1)", "TimeLimit(3)"], kind=kind)
    assert returns(manager, 9) == raw_returns([3, 3, 3])


@pytest.mark.parametrize("kind", ["local", "subprocess"])
def test_steps_of_a_wrappers_own_are_counted_in_the_episode_that_it_cuts(kind: str) -> None:
    """S1, T9: that the recorder has counted after the reset does not mean that the episode goes on."""
    noops = "tests.envs.test_wrapping:Noops"
    manager = make_manager(lambda: ClockEnv(0, [(9, TERMINATED)]), 1, wrappers=[noops, "TimeLimit(3)"], kind=kind)
    assert returns(manager, 9) == raw_returns([5, 5, 5])
    cut = make_manager(lambda: ClockEnv(0, [(4, TERMINATED)]), 1, wrappers=[noops, "TimeLimit(3)"], kind=kind)
    assert returns(cut, 6) == raw_returns([4, 4, 4])


@pytest.mark.parametrize("kind", ["local", "subprocess"])
@pytest.mark.parametrize("others", [[], ["ClipReward(-1, 1)"]])
def test_lost_lives_are_no_episodes(others: list[str], kind: str) -> None:
    """T9, S1: the statistics are those of the games, and a life that is lost as the game ends is its end."""
    manager = make_manager(clock, 1, wrappers=[*others, "tests.clock_envs:Lives(steps=2)"], kind=kind)
    assert returns(manager, 10) == raw_returns([4, 6])


def test_no_recorder_is_put_where_rewards_are_kept() -> None:
    """It would cost time at every step."""
    keeping = ["FrameStackObservation(4)", "TimeLimit(7)", "FlattenObservation", "ClipAction"]
    assert recorder(make_env("Pendulum-v1", wrappers=keeping)) is None
    assert recorder(make_env("Pendulum-v1", wrappers=[*keeping, "NormalizeReward"])) is not None
    assert recorder(make_env("Pendulum-v1", wrappers=[lambda env: env])) is not None


def test_a_recorder_is_of_no_use_above_what_has_changed_rewards() -> None:
    """S1: the environment came with it; that returns are not raw is said then."""

    def clipped() -> gymnasium.Env[Any, Any]:
        return ClipReward(clock(), -1, 1)

    manager = make_manager(clipped, 1, wrappers=["ClipReward(-1, 1)"])
    assert not manager.raw_returns
    assert recorder(make_env(clipped, wrappers=["ClipReward(-1, 1)"])) is None


def test_the_recorder_that_an_environment_came_with_is_the_one() -> None:
    """S1: below a wrapper that it came with too; its own counts are the raw ones."""

    def recorded() -> gymnasium.Env[Any, Any]:
        return ClipReward(RecordEpisodeStatistics(clock()), -1, 1)

    manager = make_manager(recorded, 1, wrappers=["ClipReward(0, 1)"])
    assert manager.raw_returns
    assert returns(manager, 10) == raw_returns([4, 6])


def test_equal_states_have_equal_pickles() -> None:
    """D5: the recorder that flowrl adds has no clock."""

    def state() -> Any:
        with make_manager(clock, 1, wrappers=["ClipReward(0, 1)"]) as manager:
            manager.launch(0)
            for _ in range(6):
                manager.step([0])
            return manager.state_dict()

    assert same(state(), state())


def test_vector_environments_take_wrappers_of_such() -> None:
    """S1: and a recorder below them, where one changes rewards."""

    def make() -> Any:
        return clock_vector([ENDS, ENDS], AutoresetMode.NEXT_STEP)

    manager = make_manager(make, 2, wrappers=["ClipReward(-1, 1)"])
    assert manager.raw_returns
    assert returns(manager, 11) == [pair for pair in raw_returns([4, 6]) for _ in range(2)]
    wrapped = EnvFactory(make, {}, ["ClipReward(0, 1)"]).first_of(2)
    assert any(isinstance(layer, VectorRecorder) for layer in layers(wrapped))
    with pytest.raises(
        ConfigError, match=r"'FrameStackObservation' in gymnasium.wrappers.vector: .*env_manager='local'"
    ):
        make_manager("CartPole-v1", 2, wrappers=["FrameStackObservation(4)"], kind="vector")


def test_frames_are_stacked_from_the_first_of_an_episode() -> None:
    with make_manager(clock, 1, wrappers=["FrameStackObservation(2)"]) as manager:
        manager.launch(0)
        rows = [manager.obs[0, :, 2].tolist()]
        for _ in range(5):
            manager.step([0])
            rows.append(manager.obs[0, :, 2].tolist())
    assert rows == [[1000, 1000], [1000, 1001], [1001, 1002], [1002, 1003], [2004, 2004], [2004, 2005]]


def test_a_factory_can_be_sent_to_another_process() -> None:
    factory = EnvFactory("CartPole-v1", {"max_episode_steps": 3}, ("FrameStackObservation(4)",))
    copied = pickle.loads(pickle.dumps(factory))
    assert copied == factory
    np.testing.assert_array_equal(copied().reset(seed=3)[0], factory().reset(seed=3)[0])
