from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics, TransformObservation

from flowrl.envs import EnvManager, Episode, VectorEnvManager
from flowrl.errors import ConfigError, SchemaError
from tests.clock_envs import TERMINATED, ClockEnv, Lives, ReusedClockEnv, clock_envs


def clocks(*lengths: int, noisy: bool = False) -> EnvManager:
    make = clock_envs([[(length, TERMINATED)] for length in lengths], noisy=noisy)
    return EnvManager([make() for _ in lengths])


def vector_of(envs: list[ClockEnv]) -> VectorEnvManager:
    made = iter(envs)
    return VectorEnvManager(SyncVectorEnv([lambda: next(made)] * len(envs)))


def marks(manager: EnvManager, steps: int) -> list[list[float]]:
    """The random mark of each environment's episodes, in the order of the episodes."""
    seen: list[list[float]] = [[] for _ in range(manager.num_envs)]
    for _ in range(steps):
        for env_id in np.flatnonzero(manager.t == 0):
            seen[env_id].append(float(manager.obs[env_id, 1]))
        manager.step(np.zeros(manager.num_envs, int))
    return seen


def test_every_episode_has_a_fresh_seed_of_its_environments_stream() -> None:
    """D6: other environments beside it change nothing for an environment; no two episodes are alike."""
    alone, together, other = clocks(2, noisy=True), clocks(2, 3, noisy=True), clocks(2, noisy=True)
    alone.launch(1)
    together.launch(1)
    other.launch(2)
    mine, pair, theirs = marks(alone, 10), marks(together, 10), marks(other, 10)
    assert mine[0] == pair[0]
    assert len({*mine[0], *pair[1], *theirs[0]}) == 5 + 4 + 5


def test_seed_reaches_the_coming_episodes_and_not_the_running_one() -> None:
    first, second = clocks(3, noisy=True), clocks(3, noisy=True)
    first.launch(1)
    second.launch(2)
    running = first.obs.copy()
    first.seed(9)
    second.seed(9)
    np.testing.assert_array_equal(first.obs, running)
    ours, theirs = marks(first, 9)[0], marks(second, 9)[0]
    assert ours[0] != theirs[0]
    assert ours[1:] == theirs[1:]


def test_the_last_observation_survives_an_environment_that_reuses_its_array() -> None:
    """T2: the reset writes over the array that the step returned."""
    with EnvManager([ReusedClockEnv(0, [(2, TERMINATED)])]) as manager:
        manager.launch(0)
        manager.step([0])
        result = manager.step([0])
        assert result.next_obs[0].tolist() == [0, 0, 1002]
        assert manager.obs[0].tolist() == [0, 1, 2002]


def test_a_lost_life_is_no_episode_end_for_the_statistics() -> None:
    """T9, S1: the recorder inside decides what an episode is, and counts rewards before they are clipped."""
    env = Lives(ClipReward(RecordEpisodeStatistics(ClockEnv(0, [(5, TERMINATED)])), 0, 1))
    with EnvManager([env]) as manager:
        assert manager.raw_returns
        manager.launch(0)
        ends = 0
        for _ in range(5):
            result = manager.step([0])
            ends += int(manager.done.sum())
            assert result.reward[0] == 1
        assert ends == 3
        assert manager.drain() == [Episode(0, 2, sum(range(1001, 1006)), 5, success=True)]


def test_a_time_limit_around_the_recorder_still_ends_episodes() -> None:
    """T9: the recorder says nothing of an end that it did not see, but it was reset: the episode is over."""
    env = gymnasium.wrappers.TimeLimit(RecordEpisodeStatistics(ClockEnv(0, [(9, TERMINATED)])), 2)
    with EnvManager([env]) as manager:
        manager.launch(0)
        for _ in range(4):
            manager.step([0])
        assert [episode.length for episode in manager.drain()] == [2, 2]


def test_returns_add_up_in_float64() -> None:
    """S1: in float32 the one would be lost."""

    class Rich(ClockEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, np.float32(2**24 if self.step_in_episode == 1 else 1), *rest

    with EnvManager([Rich(0, [(2, TERMINATED)])]) as manager:
        manager.launch(0)
        manager.step([0])
        manager.step([0])
        assert manager.drain()[0].return_ == 2**24 + 1


@pytest.mark.parametrize(
    ("wrap", "raw"),
    [
        (lambda env: env, True),
        (lambda env: gymnasium.wrappers.TimeLimit(env, 5), True),
        (lambda env: TransformObservation(env, lambda obs: obs, None), True),
        (lambda env: ClipReward(env, 0, 1), False),
        (lambda env: ClipReward(RecordEpisodeStatistics(env), 0, 1), True),
        (lambda env: RecordEpisodeStatistics(ClipReward(env, 0, 1)), False),
    ],
)
def test_raw_returns_says_whether_rewards_may_have_been_changed(wrap: Any, raw: bool) -> None:
    """S1."""
    assert EnvManager([wrap(ClockEnv(0, [(2, TERMINATED)]))]).raw_returns is raw


class Unpicklable(ClockEnv):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


class Rebuilt(ClockEnv, EzPickle):
    """EzPickle keeps the constructor's arguments only: the running episode would be lost without a word."""

    def __init__(self, *args: Any) -> None:
        EzPickle.__init__(self, *args)
        super().__init__(*args)


class Holder(ClockEnv):
    """No wrapper, but what it holds is rebuilt in the same way."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.simulators = [{"inner": Rebuilt(*args)}]


class OwnState(Rebuilt):
    """An EzPickle that saves its state itself: nothing is lost."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def test_an_environment_that_saves_its_own_state_goes_on() -> None:
    """D3."""
    with EnvManager([OwnState(0, [(9, TERMINATED)])]) as manager, EnvManager([OwnState(0, [(9, TERMINATED)])]) as other:
        manager.launch(0)
        manager.step([0])
        other.load_state_dict(manager.state_dict())
        assert other.cut_episodes == 0
        assert other.step([0]).next_obs.tolist() == manager.step([0]).next_obs.tolist()


@pytest.mark.parametrize("kind", [Unpicklable, Rebuilt, Holder])
def test_an_environment_that_cannot_be_saved_is_cut_on_load(kind: type[ClockEnv]) -> None:
    def make() -> EnvManager:
        wrapped = gymnasium.wrappers.TimeLimit(kind(0, [(9, TERMINATED)], True), 20)
        return EnvManager([wrapped, ClockEnv(1, [(9, TERMINATED)], True)])

    with make() as manager, make() as resumed:
        manager.launch(0)
        for _ in range(4):
            manager.step([0, 0])
        state = manager.state_dict()
        assert [packed is None for packed in state["envs"]] == [True, False]
        resumed.load_state_dict(state)
        assert resumed.cut_episodes == 1
        assert resumed.episode_id.tolist() == [1, 0]
        assert resumed.t.tolist() == [0, 4]
        np.testing.assert_array_equal(resumed.obs[1], manager.obs[1])
        for _ in range(9):
            resumed.step([0, 0])
        assert [(episode.env_id, episode.length) for episode in resumed.drain()] == [(1, 9), (0, 9)]


def test_lambdas_in_wrappers_can_be_saved() -> None:
    """D3: what pickle alone refuses."""

    def make() -> EnvManager:
        inner = ClockEnv(0, [(9, TERMINATED)])
        return EnvManager([TransformObservation(inner, lambda obs: obs * 2, inner.observation_space)])

    with make() as manager, make() as resumed:
        manager.launch(0)
        manager.step([0])
        resumed.load_state_dict(manager.state_dict())
        assert resumed.step([0]).next_obs.tolist() == manager.step([0]).next_obs.tolist() == [[0, 0, 2004]]


class Scripted(gymnasium.Env[Any, Any]):
    """Observes what it is told to, and keeps the actions."""

    def __init__(self, observation_space: Any, action_space: Any, observations: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.observations, self.actions = iter(observations), []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return next(self.observations), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return next(self.observations), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "observations", "dtype"),
    [
        (spaces.Discrete(5), [1, np.int64(4)], np.int64),
        (spaces.MultiBinary(2), [np.array([0, 1], np.int8), [1, 1]], np.int8),
        (spaces.MultiDiscrete([3, 4]), [np.array([2, 3]), np.array([0, 1])], np.int64),
        (spaces.Box(0, 255, (2, 2), np.uint8), [np.full((2, 2), 7, np.uint8)] * 2, np.uint8),
        (spaces.Box(-1, 1, (2,), np.float32), [np.array([0.5, 0.25]), np.array([1, 0])], np.float32),
    ],
)
def test_observation_spaces_that_are_arrays(space: Any, observations: Any, dtype: Any) -> None:
    """B6: uint8 stays uint8."""
    with EnvManager([Scripted(space, spaces.Discrete(2), observations)]) as manager:
        manager.launch(0)
        assert manager.obs.dtype == dtype
        np.testing.assert_array_equal(manager.obs[0], observations[0])
        np.testing.assert_array_equal(manager.step([0]).next_obs[0], observations[1])


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([[0.5, 0.25]])),
        (spaces.MultiDiscrete([3, 4]), np.array([[2, 3]])),
        (spaces.Discrete(3, start=-1), np.array([-1], np.int32)),
    ],
)
def test_actions_arrive_in_the_spaces_own_dtype_as_copies(space: Any, given: Any) -> None:
    """An environment that keeps its action is not changed by a caller who reuses the array."""
    env = Scripted(spaces.Discrete(2), space, [0, 0])
    with EnvManager([env]) as manager:
        manager.launch(0)
        expected = given.copy()
        manager.step(given)
        given[:] = 0
        np.testing.assert_array_equal(env.actions[0], expected[0])
        assert env.actions[0] in space


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        ([np.zeros(3, np.float32)] * 2 + [np.zeros(2, np.float32)], r"shape \(2,\), but its space says \(3,\)"),
        ([np.zeros(3, np.float32)] * 2 + [np.float32(0)], r"shape \(\), but its space says \(3,\)"),
        ([np.zeros(3, complex)], "complex128, but its space says float32"),
        ([np.zeros(3, np.float32)] * 2 + [np.zeros(3, complex)], "complex128, but its space says float32"),
    ],
)
def test_a_wrong_observation_names_environment_and_step(observations: Any, message: str) -> None:
    box = spaces.Box(-1, 1, (3,), np.float32)
    fine = Scripted(box, spaces.Discrete(2), [np.zeros(3, np.float32)] * 9)
    manager = EnvManager([fine, Scripted(box, spaces.Discrete(2), observations)])

    def run() -> None:
        manager.launch(0)
        for _ in range(3):
            manager.step([0, 0])

    with pytest.raises(SchemaError, match=message) as caught:
        run()
    assert caught.value.__notes__ == [f"in environment 1, episode 0, step {max(0, len(observations) - 2)}"]


def test_fixed_seeds_begin_episodes_in_their_turn() -> None:
    """Environment i begins its k-th episode with seeds[(k N + i) % len], after a resume and a cut too."""

    def make() -> EnvManager:
        lengths = [[(2, TERMINATED)], [(3, TERMINATED)]]
        return EnvManager([ClockEnv(i, ends, True) for i, ends in enumerate(lengths)], episode_seeds=[4, 7, 9])

    def mark(episode_id: int, env_id: int) -> float:
        seed = [4, 7, 9][(episode_id * 2 + env_id) % 3]
        return float(gymnasium.utils.seeding.np_random(seed)[0].integers(2**20))

    with make() as manager, make() as resumed:
        manager.launch(0)
        for step in range(12):
            if step == 5:
                resumed.load_state_dict(manager.state_dict())
                manager = resumed
            if step == 8:
                manager.reset(99)
            expected = [mark(int(manager.episode_id[i]), i) for i in range(2)]
            assert manager.obs[:, 1].tolist() == expected
            manager.step([0, 0])


def test_environments_of_the_old_api_are_told_the_present_one() -> None:
    class OldReset(ClockEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0]

    class OldStep(ClockEnv):
        def step(self, action: Any) -> Any:
            return super().step(action)[:4]

    with (
        EnvManager([OldReset(0, [(3, TERMINATED)])]) as manager,
        pytest.raises(SchemaError, match=r"expected \(observation, info\).*; classic gym, before 0.26"),
    ):
        manager.launch(0)
    with EnvManager([OldStep(0, [(3, TERMINATED)])]) as manager:
        manager.launch(0)
        with pytest.raises(ValueError, match="values to unpack") as at_step:
            manager.step([0])
    assert "classic gym, before 0.26: gymnasium's reset gives (obs, info)" in at_step.value.__notes__[0]


def test_dictionary_actions_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"action space Dict.*TransformAction"):
        EnvManager([Scripted(spaces.Discrete(2), spaces.Dict(a=spaces.Discrete(2)), [])])


def test_environments_must_be_several_and_alike() -> None:
    one, other = (Scripted(spaces.Discrete(n), spaces.Discrete(2), []) for n in (2, 2))
    box = Scripted(spaces.Box(0, 1, (2,)), spaces.Discrete(2), [])
    EnvManager([one, other])
    with pytest.raises(ConfigError, match="0 environments"):
        EnvManager([])
    with pytest.raises(ConfigError, match="passed twice"):
        EnvManager([one, one])
    with pytest.raises(ConfigError, match=r"environment 1 has the observation space Box.*0 has Discrete"):
        EnvManager([one, box])


@pytest.mark.parametrize("error", [OSError("stuck"), SystemExit("stuck")])
@pytest.mark.parametrize("make", [EnvManager, vector_of])
def test_close_reaches_every_environment(make: Any, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """F15: the first one's failure does not keep the second one open, and is told."""

    class Stuck(ClockEnv):
        def close(self) -> None:
            raise error

    second = ClockEnv(1, [(1, TERMINATED)])
    manager = make([Stuck(0, [(1, TERMINATED)]), second])
    manager.close()
    manager.close()
    assert f"it could not be closed, which is ignored: {type(error).__name__}: stuck" in caplog.text
    assert second.closed == 1
