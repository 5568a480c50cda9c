from __future__ import annotations

import functools
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics as RecordOne
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics

from flowrl.envs import Episode, VectorEnvManager
from flowrl.errors import CheckpointError, ConfigError, SchemaError, notes_of
from tests.brought_envs import ImportsLate
from tests.clock_envs import BOTH, TERMINATED, TRUNCATED, ClockEnv, ReusedClockEnv, around, clock_vector, collect

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
TABLE = [[(2, TERMINATED), (3, TRUNCATED)], [(3, BOTH), (1, TERMINATED)]]
every_mode = pytest.mark.parametrize("mode", AutoresetMode)


def asynchronous(mode: AutoresetMode, **kwargs: Any) -> VectorEnvManager:
    make = functools.partial(AsyncVectorEnv, context="fork")
    return VectorEnvManager(clock_vector(TABLE, mode, noisy=True, make=make, **kwargs))


@every_mode
def test_subprocesses_give_the_sequences_of_this_process(mode: AutoresetMode) -> None:
    """T3: AsyncVectorEnv equals SyncVectorEnv, and cuts its episodes when resumed: processes cannot be saved."""
    with asynchronous(mode) as manager, VectorEnvManager(clock_vector(TABLE, mode, noisy=True)) as reference:
        manager.launch(4)
        reference.launch(4)
        assert collect(manager, 9) == collect(reference, 9)
        state = manager.state_dict()
        assert state["envs"] == [None]
        before = manager.episode_id.copy()
        manager.load_state_dict(state)
        assert manager.cut_episodes == 2
        np.testing.assert_array_equal(manager.episode_id, before + 1)
        for rows in collect(manager, 6):
            assert all(np.subtract(row[7], row[2]).tolist() == [0, 0, 1] for row in rows)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_reset_at_an_episodes_end_gives_no_row_too_many(shared_memory: bool) -> None:
    """T1: without shared memory gymnasium's AsyncVectorEnv resets a second time; that row does not count either."""
    with asynchronous(NEXT_STEP, shared_memory=shared_memory) as manager:
        manager.launch(0)
        collect(manager, 2)
        assert manager.done.tolist() == [True, False]
        manager.reset()
        for rows in collect(manager, 5):
            assert rows
            assert all(np.subtract(row[7], row[2]).tolist() == [0, 0, 1] for row in rows)


class Native(VectorEnv[Any, Any, Any]):
    """Two environments that count; both end together every second step."""

    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, mode: Any, infos: Any = None) -> None:
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.infos, self.clock = infos or {}, 0

    def _obs(self) -> Any:
        return np.full((2, 1), self.clock, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock += 1000
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.clock += 1
        over = np.full(2, self.clock % 2 == 0)
        final = self._obs()
        if over.all():
            self.reset()
        infos = {key: final if value is None else value for key, value in self.infos.items()}
        return self._obs(), np.ones(2, np.float32), over, ~over & False, infos if over.any() else {}


BOTH_ENVS = np.array([True, True])


def run_native(infos: dict[str, Any]) -> tuple[VectorEnvManager, Any]:
    manager = VectorEnvManager(Native(SAME_STEP, infos))
    manager.launch(0)
    manager.step([0, 0])
    return manager, manager.step([0, 0])


def test_native_environments_may_give_the_final_observations_as_one_array() -> None:
    """T2."""
    manager, result = run_native({"final_obs": None, "_final_obs": BOTH_ENVS})
    assert result.next_obs[:, 0].tolist() == [1002, 1002]
    assert manager.obs[:, 0].tolist() == [2002, 2002]


@pytest.mark.parametrize(
    "infos",
    [
        {},
        {"final_obs": None},
        {"final_obs": None, "_final_obs": np.array([True, False])},
        {"_final_obs": BOTH_ENVS},
    ],
)
def test_a_final_observation_without_its_mask_is_not_read(infos: Any) -> None:
    """T2, T10."""
    with pytest.raises(SchemaError, match=r"environment [01] ended an episode, but infos\['final_obs'\]"):
        run_native(infos)


def test_success_is_read_where_its_masks_allow() -> None:
    """T10: the value without a mask is a filler, the one at the top is that of the reset."""
    final = {"final_obs": None, "_final_obs": BOTH_ENVS}
    values, one = np.array([True, True]), np.array([True, False])
    cases = [
        ({"is_success": values, "_is_success": BOTH_ENVS}, [None, None]),
        ({"final_info": {"is_success": values}, "_final_info": BOTH_ENVS}, [None, None]),
        ({"final_info": {"is_success": values, "_is_success": one}, "_final_info": BOTH_ENVS}, [True, None]),
        ({"final_info": {"is_success": values, "_is_success": BOTH_ENVS}, "_final_info": one}, [True, None]),
    ]
    for infos, expected in cases:
        manager, _ = run_native({**final, **infos})
        assert [episode.success for episode in manager.drain()] == expected


class Restless(Native):
    """Ends at every step, even at the one that only resets."""

    def step(self, actions: Any) -> Any:
        self.clock += 1
        return self._obs(), np.ones(2, np.float32), BOTH_ENVS.copy(), ~BOTH_ENVS, {}


def test_a_reset_row_is_neutral_whatever_the_environment_says_in_it() -> None:
    """T1: its reward and flags count nowhere."""
    manager = VectorEnvManager(Restless(NEXT_STEP))
    manager.launch(0)
    assert manager.step([0, 0]).acted is None
    for rows in (manager.step([0, 0]), manager.step([0, 0])):
        assert rows.acted is not None
        assert not np.any([rows.acted, rows.reward, rows.terminated, manager.done])
    assert [(episode.length, episode.return_) for episode in manager.drain()] == [(1, 1.0), (1, 1.0)]


def test_the_mode_must_be_known() -> None:
    with pytest.raises(ConfigError, match=r"metadata\['autoreset_mode'\] is missing.*autoreset=.*NextStep"):
        VectorEnvManager(Native(None))
    with pytest.raises(ConfigError, match="autoreset mode 'sometimes', expected one of"):
        VectorEnvManager(Native("sometimes"))
    assert "NEXT_STEP" in VectorEnvManager(Native(None), autoreset="NextStep").autoreset


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_seed_is_refused_where_flowrl_does_not_reset(mode: AutoresetMode) -> None:
    with VectorEnvManager(clock_vector(TABLE, mode)) as manager:
        manager.launch(0)
        with pytest.raises(ConfigError, match=r"cannot reach the coming episodes.*reset\(3\) cuts"):
            manager.seed(3)


def test_seed_reaches_the_coming_episodes_under_reset_masks() -> None:
    """The seeds still to be given are part of the state."""

    def make() -> VectorEnvManager:
        return VectorEnvManager(clock_vector([[(2, TERMINATED)]], DISABLED, noisy=True))

    with make() as first, make() as second, make() as resumed:
        for manager, seed in ((first, 0), (second, 1)):
            manager.launch(seed)
            manager.seed(5)
        resumed.load_state_dict(first.state_dict())
        managers = (first, second, resumed)
        marks = [[row[2][1] for row in collect(manager, 6)[0][::2]] for manager in managers]
        assert marks[0] == marks[2]
        assert marks[0][0] != marks[1][0]
        assert marks[0][1:] == marks[1][1:]
        assert len(set(marks[0])) == 3
        streams = first.state_dict()["streams"]
        collect(first, 4)
        assert first.state_dict()["streams"] == streams  # one seed only: later resets go on from it (T3)


@every_mode
@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_recorder_gives_the_raw_returns(mode: AutoresetMode, where: str) -> None:
    """S1: returns from before the rewards were normalised; lengths are right in every mode."""
    inner = RecordOne if where == "inside" else lambda env: env
    env: Any = SyncVectorEnv(
        [functools.partial(lambda i: inner(ClockEnv(i, TABLE[i])), i) for i in (0, 1)], autoreset_mode=mode
    )
    if where == "around":
        env = RecordEpisodeStatistics(env)
    with VectorEnvManager(NormalizeReward(env)) as manager:
        manager.launch(0)
        collect(manager, 9)
        # gymnasium's recorder around the whole is wrong under reset masks: the manager says that it cannot know
        assert manager.raw_returns is (where == "inside" or mode is not DISABLED)
        episodes = sorted(manager.drain(), key=lambda episode: (episode.env_id, episode.episode_id))
        assert [episode.length for episode in episodes[:2]] == [2, 3]
        returns = [episode.return_ for episode in episodes[:2]]
        assert (returns == [1001 + 1002, 2003 + 2004 + 2005]) is manager.raw_returns


@pytest.mark.parametrize(
    ("wrap", "raw"), [(lambda env: env, True), (NormalizeReward, False), (RecordEpisodeStatistics, True)]
)
def test_raw_returns_of_vector_environments(wrap: Any, raw: bool) -> None:
    """S1: unknown where environments are out of sight."""
    assert VectorEnvManager(wrap(clock_vector(TABLE, NEXT_STEP))).raw_returns is raw
    with asynchronous(NEXT_STEP) as manager:
        assert not manager.raw_returns


def test_a_state_of_another_mode_is_refused() -> None:
    with (
        VectorEnvManager(clock_vector(TABLE, NEXT_STEP)) as one,
        VectorEnvManager(clock_vector(TABLE, SAME_STEP)) as other,
    ):
        one.launch(0)
        with pytest.raises(CheckpointError, match=r"in NextStep mode, this is .* in SameStep mode"):
            other.load_state_dict(one.state_dict())


@every_mode
def test_vector_environments_that_reuse_their_arrays(mode: AutoresetMode) -> None:
    """copy=False hands out one buffer for ever; the manager's observations stay as promised all the same."""
    with (
        VectorEnvManager(clock_vector(TABLE, mode, copy=False)) as frugal,
        VectorEnvManager(clock_vector(TABLE, mode)) as plain,
    ):
        frugal.launch(0)
        plain.launch(0)
        assert collect(frugal, 8) == collect(plain, 8)


@every_mode
@pytest.mark.parametrize("make", [SyncVectorEnv, around])
def test_a_last_observation_that_was_overwritten_is_not_passed_off_as_true(mode: AutoresetMode, make: Any) -> None:
    """T2: a SyncVectorEnv that steps itself keeps a reference to the last observation while it resets the environment.

    Its private `_env_obs` tells which; without it such an environment gives the first observation of the next episode
    for the last one of this, and nobody is told.
    """
    with VectorEnvManager(clock_vector(TABLE, mode, kind=ReusedClockEnv, make=make)) as manager:
        manager.launch(0)
        if mode is SAME_STEP and make is around:
            with pytest.raises(SchemaError, match="environment 0 reuses the memory of its observation,"):
                collect(manager, 4)
        else:
            for rows in collect(manager, 6):
                assert all(np.subtract(row[7], row[2]).tolist() == [0, 0, 1] for row in rows)


@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
def test_a_resumed_vector_environment_ends_in_the_same_bytes(vectorization: Any) -> None:
    """D5: also after steps on both sides, though unpickling has other objects shared."""

    def make() -> VectorEnvManager:
        return VectorEnvManager(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode=vectorization))

    with make() as manager, make() as resumed:
        manager.launch(0)
        manager.step([0, 1])
        resumed.load_state_dict(manager.state_dict())
        for each in (manager, resumed):
            for _ in range(15):
                each.step([0, 1])
        assert manager.state_dict()["envs"] == resumed.state_dict()["envs"] != [None]


def test_fixed_seeds_are_refused_with_the_reason() -> None:
    vector = clock_vector([[(2, TERMINATED)]], AutoresetMode.NEXT_STEP)
    with pytest.raises(ConfigError, match=r"episode_seeds cannot reach .* use another manager"):
        VectorEnvManager(vector, episode_seeds=[1])


def test_episodes_of_a_native_environment_are_those_of_a_loop() -> None:
    """T1, S1: it says nothing of them in its infos, and several end on one step."""
    env = gymnasium.make_vec("CartPole-v1", 32, "vector_entry_point", sutton_barto_reward=True)  # return is not length
    with VectorEnvManager(env) as manager:
        manager.launch(0)
        total, length, count, expected = np.zeros(32), np.zeros(32, int), np.zeros(32, int), []
        for actions in np.random.default_rng(0).integers(0, 2, (120, 32)):
            result = manager.step(actions)
            acted = np.ones(32, bool) if result.acted is None else result.acted
            for i in np.flatnonzero(acted).tolist():
                total[i], length[i] = total[i] + result.reward[i], length[i] + 1
                if result.terminated[i] or result.truncated[i]:
                    expected.append(Episode(i, int(count[i]), total[i], int(length[i])))
                    total[i], length[i], count[i] = 0, 0, count[i] + 1
            assert manager.episode_id.tolist() == count.tolist()
            assert manager.t.tolist() == length.tolist()
        assert len(expected) > 64
        assert manager.drain() == expected


def test_an_error_of_the_first_reset_says_where_it_was() -> None:
    """F9"""
    env = SyncVectorEnv([lambda: ImportsLate("reset")])
    with VectorEnvManager(env) as manager, pytest.raises(ModuleNotFoundError) as caught:
        manager.launch(0)
    (note,) = notes_of(caught.value)
    assert note == "in environment 0, episode 0, step 0"


class Sleepless(ImportsLate):
    """Its sibling never closes."""

    def close(self) -> None:
        if self.at != "step":
            threading.Event().wait()


@pytest.mark.filterwarnings("ignore:.*ERROR")  # gymnasium's log of the error
def test_processes_end_after_an_error_whatever_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: gymnasium waits for them without end."""
    monkeypatch.setattr("flowrl.envs.managers.vector.CLOSE_SECONDS", 0.1)
    env = AsyncVectorEnv([functools.partial(Sleepless, at) for at in ("step", "")], context="fork")
    with VectorEnvManager(env) as manager:
        manager.launch(0)
        with pytest.raises(ModuleNotFoundError, match=r"tests\.not_there"):
            manager.step([0, 0])
    assert not any(process.is_alive() for process in env.processes)
