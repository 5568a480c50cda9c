"""SubprocessEnvManager: its transitions are those of EnvManager, and so are its states."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics

from flowrl.envs import EnvManager, Episode, SubprocessEnvManager
from flowrl.errors import CheckpointError, ConfigError, EnvFault, FlowError, SchemaError
from tests.clock_envs import SHORT_TABLE as TABLE
from tests.clock_envs import TERMINATED, ClockEnv, DictClockEnv, ReusedDictClockEnv, Table, clock_envs, collect
from tests.faulty_envs import footprint
from tests.managers import in_processes


def here(table: Table = TABLE, *, kind: Any = ClockEnv, **options: Any) -> EnvManager:
    make = clock_envs(table, noisy=True, kind=kind)
    return EnvManager([make() for _ in table], **options)


# -- transitions


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ClockEnv, {"envs_per_process": 1}),
        (ReusedDictClockEnv, {"envs_per_process": 2}),
        (ReusedDictClockEnv, {"start_method": "spawn"}),
    ],
)
def test_rows_are_those_of_the_manager_in_this_process(kind: Any, options: Any) -> None:
    """T3: whatever is seeded at random; the seeds of all episodes are drawn in the parent."""
    with in_processes(kind=kind, **options) as manager, here(kind=kind) as reference:
        for each in (manager, reference):
            each.launch(7)
        assert collect(manager, 9) == collect(reference, 9)
        for each in (manager, reference):
            each.seed(8)
        assert collect(manager, 9, 9) == collect(reference, 9, 9)
        for each in (manager, reference):
            each.reset()
        assert collect(manager, 3, 18) == collect(reference, 3, 18)
        assert manager.finished == reference.finished
        assert manager.cut_episodes == reference.cut_episodes == 3
        np.testing.assert_equal(manager.state_dict()["streams"], reference.state_dict()["streams"])


def test_an_action_may_be_kept_by_its_environment() -> None:
    """T11: the shared row of actions is written again; and an action has the space's own dtype."""
    box = spaces.Box(-1, 1, (2,), np.float32)

    class Keeper(ClockEnv):
        def __init__(self) -> None:
            super().__init__(0, [(99, TERMINATED)])
            self.observation_space, self.action_space, self.kept = box, box, [np.zeros(2, np.float32)]

        def _obs(self) -> Any:
            return self.kept[-1]

        def step(self, action: Any) -> Any:
            self.kept.append(action)
            return self.kept[-2], 0.0, False, False, {}

    with SubprocessEnvManager([Keeper]) as manager:
        manager.launch(0)
        manager.step([[0.5, 0.25]])
        assert manager.step([[1, -1]]).next_obs.tolist() == [[0.5, 0.25]]


def test_what_is_handed_out_lasts_over_the_next_step() -> None:
    """The observations are shared memory itself, and yet those acted from survive, at episode ends too."""
    with in_processes(kind=DictClockEnv) as manager:
        manager.launch(0)
        for _ in range(8):
            before, copy = manager.obs, manager.obs.map(np.copy)
            result = manager.step([0, 0, 0])
            assert before == copy
            if not manager.done.any():
                assert result.next_obs is manager.obs


def test_recorders_and_lives_are_read_in_the_process() -> None:
    """T9, S1: raw returns from the recorder; whether they are raw is known here."""

    def recorded(index: int) -> Any:
        return ClipReward(RecordEpisodeStatistics(ClockEnv(index, [(2, TERMINATED)])), 0, 1)

    def clipped(index: int) -> Any:
        return ClipReward(ClockEnv(index, [(2, TERMINATED)]), 0, 1)

    with SubprocessEnvManager([functools.partial(recorded, i) for i in range(2)]) as manager:
        manager.launch(0)
        manager.step([0, 0])
        assert manager.step([0, 0]).reward.tolist() == [1, 1]
        assert manager.raw_returns
        assert manager.drain() == [Episode(i, 0, 1001 + 1002, 2, success=True) for i in range(2)]
    with SubprocessEnvManager([functools.partial(recorded, 0), functools.partial(clipped, 1)]) as manager:
        assert not manager.raw_returns


# -- saving


@pytest.mark.parametrize(
    ("source", "target"), [(in_processes, in_processes), (here, in_processes), (in_processes, here)]
)
@pytest.mark.parametrize("saved_at", [0, 3, 5])
def test_a_state_goes_on_in_either_manager(source: Any, target: Any, saved_at: int) -> None:
    """D3, D5: mid-episode, into a manager that was never launched, in this process or in others."""
    with source() as manager, target() as resumed, here() as reference:
        manager.launch(3)
        reference.launch(3)
        collect(manager, saved_at)
        collect(reference, saved_at)
        state = manager.state_dict()
        np.testing.assert_equal(state, manager.state_dict())
        resumed.load_state_dict(state)
        expected = collect(reference, 10, saved_at)
        assert collect(resumed, 10, saved_at) == expected
        assert collect(manager, 10, saved_at) == expected
        assert resumed.finished == reference.finished
        manager.load_state_dict(state)
        assert collect(manager, 10, saved_at) == expected


class Locked(ClockEnv):
    """Cannot be pickled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


def test_what_cannot_be_saved_is_cut_on_load() -> None:
    def make() -> SubprocessEnvManager:
        kinds = [Locked, ClockEnv]
        return SubprocessEnvManager([functools.partial(kind, i, [(9, TERMINATED)]) for i, kind in enumerate(kinds)])

    with make() as manager, make() as resumed:
        manager.launch(0)
        for _ in range(4):
            manager.step([0, 0])
        resumed.load_state_dict(manager.state_dict())
        assert resumed.cut_episodes == 1
        assert (resumed.episode_id.tolist(), resumed.t.tolist()) == ([1, 0], [0, 4])
        for _ in range(9):
            resumed.step([0, 0])
        assert [(episode.env_id, episode.length) for episode in resumed.drain()] == [(1, 9), (0, 9)]


class HangsWhenSaved(ClockEnv):
    def __getstate__(self) -> Any:
        time.sleep(3600)


def test_an_environment_that_hangs_as_it_is_saved_is_renewed(tmp_path: Path) -> None:
    """No wait without a deadline; past max_retry it is an error, and reset() begins anew."""
    factory = functools.partial(HangsWhenSaved, 0, [(9, TERMINATED)])
    with SubprocessEnvManager([factory], reset_timeout=0.3, max_retry=1) as manager:
        manager.launch(0)
        manager.step([0])
        with pytest.raises(EnvFault, match=r"timeout during step: no answer to 'save' in 0\.3 s"):
            manager.state_dict()
        with pytest.raises(FlowError, match="call reset"):
            manager.step([0])
        manager.reset()
        assert manager.step([0]).acted is None


def make_counted(folder: Path, failures: int) -> Any:
    """The first is made, and so are those after so many failures."""
    made = len(list(folder.iterdir()))
    (folder / str(made)).touch()
    if 0 < made <= failures:
        raise OSError("no licence")
    return ClockEnv(0, TABLE[0], noisy=True)


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize("failures", [0, 2])
def test_what_fails_while_a_state_is_loaded_is_no_part_of_it(failures: int, launched: bool, tmp_path: Path) -> None:
    """D3: a process that is gone is renewed, in several attempts, and the episode of the state goes on in it."""
    with (
        EnvManager([ClockEnv(0, TABLE[0], noisy=True)]) as reference,
        SubprocessEnvManager([functools.partial(make_counted, tmp_path, failures)]) as manager,
    ):
        reference.launch(3)
        collect(reference, 2)
        if launched:
            manager.launch(7)
            collect(manager, 1)
        pid = manager._crew.processes[0].pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        manager.load_state_dict(reference.state_dict())
        assert collect(manager, 30, 2) == collect(reference, 30, 2)
        np.testing.assert_equal(manager.state_dict(), reference.state_dict())


def test_a_state_that_cannot_be_rebuilt_is_an_error() -> None:
    with in_processes() as manager, here() as reference:
        reference.launch(0)
        state = reference.state_dict()
        with pytest.raises(CheckpointError, match="environment 0 in the state is a "):
            manager.load_state_dict({**state, "envs": [b"cos\nsystem\n"] * 3})


# -- bad input


def test_factories_that_cannot_travel_are_refused() -> None:
    lock = threading.Lock()
    before = footprint()
    with pytest.raises(ConfigError, match=r"factories of environments \[0\] cannot be pickled: .*lock"):
        SubprocessEnvManager([lambda: ClockEnv(0, [(1, TERMINATED)], bool(lock))], start_method="spawn")
    assert footprint() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"envs_per_process": 0}, "envs_per_process=0: expected at least 1"),
        ({"start_method": "frok"}, "start_method='frok': did you mean 'fork'"),
        ({"step_timeout": 0}, "step_timeout=0: expected seconds, more than 0"),
        ({"launch_timeout": float("inf")}, "launch_timeout=inf: expected seconds, .* at most a day"),
        ({"step_timeout": "5"}, "step_timeout='5': expected seconds"),
        ({"reset_timeout": float("nan")}, "reset_timeout=nan"),
        ({"max_retry": -1}, "max_retry=-1"),
        ({"episode_seeds": []}, r"episode_seeds=\[\]: expected a list of at least one whole number"),
        ({"episode_seeds": [1, -2]}, "none below 0"),
    ],
)
def test_bad_settings_are_refused(options: Any, message: str) -> None:
    before = footprint()
    with pytest.raises(ConfigError, match=message):
        in_processes(**options)
    assert footprint() == before


def test_environments_must_be_several_and_alike() -> None:
    with pytest.raises(ConfigError, match="0 environments"):
        SubprocessEnvManager([])
    kinds: list[Callable[..., Any]] = [ClockEnv, DictClockEnv]
    with pytest.raises(ConfigError, match=r"environment 1 has the observation space Dict.*0 has Box"):
        SubprocessEnvManager([functools.partial(kind, 0, [(1, TERMINATED)]) for kind in kinds])


def test_wrong_actions_are_refused_before_anybody_steps() -> None:
    with in_processes(noisy=False) as manager:
        manager.launch(0)
        with pytest.raises(SchemaError, match=r"expected int64\[3\]"):
            manager.step([0, 0])
        assert manager.step([0, 0, 0]).next_obs[:, 2].tolist() == [1001, 1001, 1001]
