"""SubprocessEnvManager: its processes, the memory that they share, and what it does when they fail."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics

from flowrl.envs import EnvManager, Episode, SubprocessEnvManager
from flowrl.errors import CheckpointError, ConfigError, EnvFault, FlowError, SchemaError
from tests.clock_envs import (
    BOTH,
    TERMINATED,
    TRUNCATED,
    ClockEnv,
    DictClockEnv,
    EchoEnv,
    ReusedDictClockEnv,
    Table,
    clock_envs,
    collect,
)
from tests.faulty_envs import RESET, Player, footprint, one_faulty

TABLE: Table = [
    [(3, TERMINATED), (1, BOTH), (2, TRUNCATED)],
    [(2, TRUNCATED), (2, TERMINATED)],
    [(1, TERMINATED), (1, TRUNCATED), (4, BOTH)],
]


def clocks(table: Table = TABLE, *, kind: Any = ClockEnv, noisy: bool = True, **options: Any) -> SubprocessEnvManager:
    return SubprocessEnvManager([functools.partial(kind, i, ends, noisy) for i, ends in enumerate(table)], **options)


def here(table: Table = TABLE, *, kind: Any = ClockEnv, **options: Any) -> EnvManager:
    make = clock_envs(table, noisy=True, kind=kind)
    return EnvManager([make() for _ in table], **options)


# -- transitions


@pytest.mark.parametrize("options", [{"envs_per_process": 1}, {"envs_per_process": 2}, {"start_method": "spawn"}])
@pytest.mark.parametrize("kind", [ClockEnv, ReusedDictClockEnv])
def test_rows_are_those_of_the_manager_in_this_process(options: Any, kind: Any) -> None:
    """T3: whatever is seeded at random; the seeds of all episodes are drawn in the parent."""
    with clocks(kind=kind, **options) as manager, here(kind=kind) as reference:
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


def test_fixed_seeds_begin_episodes_in_their_turn() -> None:
    """Environment i begins its k-th episode with seeds[(k N + i) % len]."""
    seeds = [3, 5, 8, 9, 11]
    with clocks(episode_seeds=seeds) as manager, here(episode_seeds=seeds) as reference:
        for each in (manager, reference):
            each.launch(0)
        assert collect(manager, 9) == collect(reference, 9)
        expected = seeds[(int(manager.episode_id[1]) * 3 + 1) % 5]
        assert manager.obs[1, 1] == gymnasium.utils.seeding.np_random(expected)[0].integers(2**20)


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
    with clocks(kind=DictClockEnv) as manager:
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


@pytest.mark.parametrize(("source", "target"), [(clocks, clocks), (here, clocks), (clocks, here)])
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


def test_a_state_that_cannot_be_rebuilt_is_an_error() -> None:
    with clocks() as manager, here() as reference:
        reference.launch(0)
        state = reference.state_dict()
        with pytest.raises(CheckpointError, match="environment 0 in the state is not what flowrl saves"):
            manager.load_state_dict({**state, "envs": [b"cos\nsystem\n"] * 3})


# -- faults


def test_the_time_limit_is_that_of_one_environment() -> None:
    """F10: three environments in one process that take longer together than one may."""

    class Slow(ClockEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.3)
            return super().step(action)

        def reset(self, **kwargs: Any) -> Any:
            time.sleep(0.1)
            return super().reset(**kwargs)

    limits = {"step_timeout": 0.7, "reset_timeout": 0.6}
    with clocks([[(2, TERMINATED)]] * 3, kind=Slow, noisy=False, envs_per_process=3, **limits) as manager:
        manager.launch(0)
        start = time.monotonic()
        for _ in range(2):
            assert manager.step([0, 0, 0]).acted is None
        assert time.monotonic() - start > 2 * 0.7
        assert manager.drain_faults() == []


class Unruly(EchoEnv):
    """Does what the action says."""

    def step(self, action: Any) -> Any:
        if action == 901:
            raise Unpicklable(threading.Lock())
        if action == 902:
            sys.exit("enough")
        if action == 903:
            time.sleep(3600)
        if action == 904:
            os._exit(9)
        obs, reward, *rest = super().step(action)
        if action == 905:
            obs = obs.astype(complex)
        if action == 906:
            reward = float("nan")
        if action == 907:
            obs = obs[:2]
        if action == 908:
            return obs, reward
        if action == 909:
            obs[0] = np.inf
        return obs, reward, *rest


class Unpicklable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even a message")


def unruly(num_envs: int = 4, **options: Any) -> SubprocessEnvManager:
    factories = [functools.partial(Unruly, i, [(5, TERMINATED)]) for i in range(num_envs)]
    return SubprocessEnvManager(factories, **{"step_timeout": 0.4, "envs_per_process": 2, **options})


@pytest.mark.parametrize(
    ("action", "kind", "message"),
    [
        (901, "exception", "Unpicklable: its message cannot be read"),
        (902, "exception", "SystemExit: enough"),
        (903, "timeout", "over its time limit of 0.4 s"),
        (904, "exit", "its process exited with code 9"),
        (905, "observation", "SchemaError: the observation is complex128, but its space says float32"),
        (906, "observation", "SchemaError: the reward is NaN, expected a number"),
        (907, "observation", r"SchemaError: the observation has shape (2,), but its space says (3,)"),
        (908, "exception", "ValueError: not enough values to unpack (expected 5, got 2)"),
    ],
)
def test_a_fault_says_what_happened_to_whom(action: int, kind: str, message: str) -> None:
    """F10: and whose episodes it cost beside."""
    with unruly() as manager:
        manager.launch(0)
        manager.step([0, 1, 2, 3])
        seed = manager.state_dict()["seeds"][2]
        result = manager.step([0, 1, action, 3])
        assert result.acted is not None
        [fault] = manager.drain_faults()
        assert (fault.env_id, fault.episode_id, fault.t, fault.seed) == (2, 0, 1, seed)
        assert (fault.during, fault.kind, fault.message) == ("step", kind, message)
        lost = (2, 3) if kind in ("timeout", "exit") else (2,)
        assert fault.collateral == lost[1:]
        assert np.flatnonzero(~result.acted).tolist() == list(lost)
        assert manager.cut_episodes == len(lost)
        assert manager.t.tolist() == [0 if i in lost else 2 for i in range(4)]
        assert manager.episode_id.tolist() == [int(i in lost) for i in range(4)]
        assert ("step" in fault.traceback) is (kind in ("exception", "observation"))
        Player(manager).play(12)


def test_infinite_observations_are_allowed() -> None:
    with unruly() as manager:
        manager.launch(0)
        assert manager.step([909, 0, 0, 0]).next_obs[0, 0] == np.inf
        assert manager.drain_faults() == []


def test_nan_is_named_by_its_key() -> None:
    class Blind(DictClockEnv):
        def _obs(self) -> Any:
            obs = super()._obs()
            obs["goal"]["vector"][self.clock % 2] = np.nan if self.step_in_episode == 1 else 0
            return obs

    with clocks(kind=Blind, noisy=False, max_retry=0) as manager:
        manager.launch(0)
        with pytest.raises(EnvFault, match=r"the observation\['goal'\]\['vector'\] is NaN"):
            manager.step([0, 0, 0])


def test_several_may_fail_in_one_step() -> None:
    """Each is a fault of its own; the collateral of one process is cut once more."""
    with unruly(6) as manager:
        manager.launch(0)
        result = manager.step([901, 905, 903, 0, 904, 1])
        faults = manager.drain_faults()
        assert sorted((fault.env_id, fault.kind) for fault in faults) == [
            *((0, "exception"), (1, "observation"), (2, "timeout"), (4, "exit"))
        ]
        assert not result.acted.any()
        assert manager.cut_episodes == 6
        Player(manager).play(12)


@pytest.mark.parametrize("what", ["exception", "exit"])
def test_an_environment_that_fails_again_while_it_is_renewed(what: str, tmp_path: Path) -> None:
    """A reset that fails three times, each a fault with a seed of its own."""
    with SubprocessEnvManager(one_faulty(RESET, what, tmp_path, times=3), envs_per_process=2) as manager:
        manager.launch(0)
        faults = manager.drain_faults()
        assert [fault.episode_id for fault in faults] == [0, 1, 2]
        assert len({fault.seed for fault in faults}) == 3
        Player(manager).play(12)


def test_max_retry_bounds_the_faults_of_one_episode() -> None:
    """F10: one more is an error that names all; what others finished is kept, and reset() begins anew."""
    with unruly(2, envs_per_process=1, max_retry=2) as manager:
        manager.launch(0)
        for action in (901, 902):
            manager.step([action, 0])
        for _ in range(2):
            manager.step([0, 0])
        with pytest.raises(EnvFault) as caught:
            manager.step([907, 0])
        first, *_ = str(caught.value).splitlines()
        assert first.startswith("environment 0, episode 2 (seed ")
        assert first.endswith(
            "step 2: observation during step: SchemaError: the observation has shape (2,), but its space says (3,)"
        )
        assert "3 faults since it last finished an episode, max_retry=2" in str(caught.value)
        assert "Unpicklable" in str(caught.value)  # the first traceback
        assert [(episode.env_id, episode.length) for episode in manager.finished] == [(1, 5)]
        assert len(manager.drain_faults()) == 3
        with pytest.raises(FlowError, match="call reset"):
            manager.step([0, 0])
        manager.reset()
        Player(manager).play(6)


def test_a_finished_episode_forgives() -> None:
    with unruly(1, max_retry=1) as manager:
        manager.launch(0)
        for _ in range(3):
            manager.step([901])
            Player(manager).play(5)
        assert len(manager.drain_faults()) == 3


def test_one_that_can_never_begin_is_an_error(tmp_path: Path) -> None:
    with SubprocessEnvManager(one_faulty(RESET, "exception", tmp_path, times=99), max_retry=2) as manager:
        for call in (lambda: manager.launch(0), manager.reset):
            with pytest.raises(EnvFault, match=r"environment 1, .*ArithmeticError: out of cheese"):
                call()


def test_one_that_can_never_be_made_is_an_error(tmp_path: Path) -> None:
    """F15: and it leaves nothing behind."""
    before = footprint()
    with pytest.raises(EnvFault) as caught:
        SubprocessEnvManager(one_faulty("construction", "exit", tmp_path, times=99), max_retry=1)
    assert "environment 1, episode 0, step 0: exit during construction: its process exited with code 3" in str(
        caught.value
    )
    del caught
    assert footprint() == before


def test_a_process_killed_between_two_steps_is_renewed() -> None:
    with unruly() as manager:
        manager.launch(0)
        manager.step([0, 1, 2, 3])
        os.kill(manager._crew.processes[1].pid, signal.SIGKILL)
        result = manager.step([0, 1, 2, 3])
        assert result.acted.tolist() == [True, True, False, False]
        [fault] = manager.drain_faults()
        assert (fault.kind, fault.message) == ("exit", "its process was killed by SIGKILL")
        Player(manager).play(12)


class Forking(EchoEnv):
    """Leaves a fork behind that holds all that it held, and crashes."""

    def step(self, action: Any) -> Any:
        if action == 900:
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(3)
        return super().step(action)


def test_a_crash_is_seen_at_once_though_a_fork_lives_on() -> None:
    """F10, F15: it is no timeout, and the fork ends too."""
    before = footprint()
    with SubprocessEnvManager([functools.partial(Forking, 0, [(9, TERMINATED)])]) as manager:
        manager.launch(0)
        manager.step([900])
        [fault] = manager.drain_faults()
        assert (fault.kind, fault.message) == ("exit", "its process exited with code 3")
    del manager
    assert footprint() == before


class SlowToSave(EchoEnv):
    def __getstate__(self) -> Any:
        time.sleep(0.5)
        return self.__dict__


def test_an_interrupted_save_leaves_no_answer_to_be_taken_for_another() -> None:
    """After Ctrl-C in `state_dict()` the manager steps on, or begins anew."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with SubprocessEnvManager([functools.partial(SlowToSave, i, [(3, TERMINATED)]) for i in range(2)]) as manager:
        manager.launch(0)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                manager.state_dict()
        finally:
            signal.signal(signal.SIGALRM, before)
        manager.reset()
        Player(manager).play(5)
        assert manager.drain_faults() == []


def test_faults_are_in_the_state() -> None:
    """D3: the retries left, and what nobody has asked for yet."""
    with unruly(1, max_retry=1) as manager, unruly(1, max_retry=1) as resumed:
        manager.launch(0)
        manager.step([901])
        resumed.load_state_dict(manager.state_dict())
        with pytest.raises(EnvFault):
            resumed.step([901])
        assert resumed.drain_faults()[0] == manager.drain_faults()[0]


# -- processes


class Busybody(ClockEnv):
    """Prints, and starts a thread and processes that never end."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        print("a line from an environment")
        os.write(1, b"and one past all buffers\n")
        self.thread = threading.Thread(target=time.sleep, args=(3600,))
        self.thread.start()
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        self.other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        self.other.start()


def test_nothing_is_left_of_what_environments_start() -> None:
    """F15: their threads and processes go with them."""
    before = footprint()
    with clocks(kind=Busybody) as manager:
        manager.launch(0)
        collect(manager, 4)
    del manager
    assert footprint() == before


def test_a_manager_that_nobody_holds_is_closed_at_once() -> None:
    """F15: it is in no cycle, so it need not wait for the garbage collector."""
    before = footprint()
    gc.disable()
    try:
        manager = clocks()
        manager.launch(0)
        manager.step([0, 0, 0])
        processes = manager._crew.processes
        del manager
        assert not any(process.alive for process in processes)
        del processes
    finally:
        gc.enable()
    assert footprint() == before


def test_two_managers_leave_each_other_alone() -> None:
    """F15: a process that holds an end of its sibling's pipe would keep it alive."""
    before = footprint()
    first = clocks()
    second = clocks()
    first.launch(0)
    first.close()
    second.launch(0)
    collect(second, 3)
    second.close()
    del first, second
    assert footprint() == before


def test_a_fork_may_not_step() -> None:
    """It shares the memory with its parent, which goes on; it is told so, and closing there costs nothing."""
    with clocks() as manager:
        manager.launch(0)
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                for call in (lambda: manager.step([0, 0, 0]), manager.reset, lambda: manager.obs):
                    with pytest.raises(FlowError, match="a fork of the process that owns the environments"):
                        call()
                manager.close()
                os.write(writer, b"refused")
            finally:
                os._exit(0)
        os.close(writer)
        assert os.read(reader, 100) == b"refused"
        os.close(reader)
        collect(manager, 5)
        assert manager.drain_faults() == []


def test_a_second_ctrl_c_does_not_stop_the_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: interrupted as it waits for the first process, it ends all of them nevertheless."""
    before = footprint()
    manager = clocks(envs_per_process=1)
    join, calls = multiprocessing.Process.join, iter([KeyboardInterrupt])

    def interrupted(process: Any, timeout: float | None = None) -> None:
        for error in calls:
            raise error
        join(process, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.process.BaseProcess, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.close()
    del manager
    assert footprint() == before


class BadlyClosed(ClockEnv):
    def close(self) -> None:
        if self.index == 1:
            raise OSError("stuck")
        if self.index == 2:
            time.sleep(3600)


def test_environments_are_closed_with_a_deadline() -> None:
    """F15: one that fails or hangs as it closes keeps no process."""
    before = footprint()
    manager = clocks(kind=BadlyClosed, envs_per_process=1, step_timeout=0.3, reset_timeout=0.3)
    manager.launch(0)
    start = time.monotonic()
    with pytest.raises(FlowError, match="environment 1 failed as it closed: OSError: stuck"):
        manager.close()
    manager.close()
    assert time.monotonic() - start < 1.3
    del manager
    assert footprint() == before


SCRIPT = """
import functools, sys, time, ctypes, os
from flowrl.envs import SubprocessEnvManager
from tests.clock_envs import ClockEnv, TERMINATED

class Env(ClockEnv):
    def step(self, action):
        os.write(1, b"stepping\\n")
        {step}
        return super().step(action)
    def close(self):
        os.write(1, b"closed\\n")

if __name__ == "__main__":
    manager = SubprocessEnvManager([functools.partial(Env, i, [(9, TERMINATED)]) for i in range(2)], envs_per_process=1)
    os.write(1, " ".join(str(process.pid) for process in manager._crew.processes).encode() + b"\\n")
    manager.launch(0)
    {end}
"""


def script(step: str, end: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A program with two environments that is about to step them, and the file descriptors of their processes."""
    code = SCRIPT.format(step=step, end=end)
    root = Path(__file__).parents[2]
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    assert program.stdout is not None
    return program, [os.pidfd_open(int(pid)) for pid in program.stdout.readline().split()]


def have_ended(files: list[int]) -> bool:
    """Whether these processes end within a few seconds."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    left, deadline = set(files), time.monotonic() + 5
    while left and (seconds := deadline - time.monotonic()) > 0:
        for file, _ in poll.poll(seconds * 1000):
            poll.unregister(file)
            left.discard(file)
    for file in files:
        os.close(file)
    return not left


def read_two_steps(program: subprocess.Popen[bytes]) -> None:
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == [b"stepping\n"] * 2


def test_processes_die_with_their_parent_even_inside_c_code() -> None:
    """F15: killed, it cannot say goodbye, and nobody listens while C code holds the interpreter."""
    program, files = script("ctypes.PyDLL(None).sleep(3600)", "manager.step([0, 0])")
    read_two_steps(program)
    program.kill()
    assert have_ended(files)
    program.communicate(timeout=5)


def test_a_fork_does_not_keep_the_processes_alive() -> None:
    """F15: another child of the parent inherits its ends of the pipes, but not its say."""
    code = "if os.fork() == 0: time.sleep(3600)\n    else: manager.step([0, 0])"
    program, files = script("ctypes.PyDLL(None).sleep(3600)", code)
    read_two_steps(program)
    os.kill(program.pid, signal.SIGKILL)
    assert have_ended(files)
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate(timeout=5)


def test_ctrl_c_reaches_the_parent_alone_and_closes_all() -> None:
    """F15: environments finish their step and are closed."""
    program, files = script("time.sleep(0.5)", "with manager: manager.step([0, 0])")
    read_two_steps(program)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=10)
    assert out.splitlines() == [b"closed"] * 2
    assert b"KeyboardInterrupt" in err
    assert have_ended(files)


def test_a_program_may_end_without_closing() -> None:
    """F15: no hang at exit, and environments are closed."""
    program, files = script("pass", "manager.step([0, 0]); kept = manager")
    out, err = program.communicate(timeout=10)
    assert sorted(out.splitlines()) == [*[b"closed"] * 2, *[b"stepping"] * 2]
    assert (program.returncode, err) == (0, b"")
    assert have_ended(files)


# -- bad input


def test_factories_that_cannot_travel_are_refused() -> None:
    lock = threading.Lock()
    before = footprint()
    with pytest.raises(ConfigError, match=r"factories of environments \[0\] cannot be pickled: .*lock"):
        SubprocessEnvManager([lambda: ClockEnv(0, [(1, TERMINATED)], bool(lock))], start_method="spawn")
    assert footprint() == before


class Changeling(ClockEnv):
    """Another one each time that it is made; its second reset takes the process down."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, [(2, TERMINATED)])
        count = len(list(folder.iterdir()))
        (folder / str(count)).touch()
        if count == 1:
            self.observation_space = spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> Any:
        if self.episode == 0:
            os._exit(1)
        return super().reset(**kwargs)


def test_an_environment_that_comes_back_as_another_is_made_again(tmp_path: Path) -> None:
    with SubprocessEnvManager([functools.partial(Changeling, tmp_path)]) as manager:
        manager.launch(0)
        manager.step([0])
        manager.step([0])
        gone, changed = manager.drain_faults()
        assert (gone.during, gone.message) == ("reset", "its process exited with code 1")
        assert changed.during == "construction"
        assert "environment 0 has the observation space Discrete(2)" in changed.message
        assert manager.step([0]).next_obs.tolist() == [[0, 0, 1001]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"envs_per_process": 0}, "envs_per_process=0: expected at least 1"),
        ({"start_method": "frok"}, "start_method='frok': did you mean 'fork'"),
        ({"step_timeout": 0}, "step_timeout=0: expected seconds, more than 0"),
        ({"launch_timeout": float("inf")}, "launch_timeout=inf: expected seconds, .* at most a day"),
        ({"reset_timeout": float("nan")}, "reset_timeout=nan"),
        ({"max_retry": -1}, "max_retry=-1"),
        ({"episode_seeds": []}, r"episode_seeds=\[\]: expected a list of at least one whole number"),
        ({"episode_seeds": [1, -2]}, "none below 0"),
    ],
)
def test_bad_settings_are_refused(options: Any, message: str) -> None:
    before = footprint()
    with pytest.raises(ConfigError, match=message):
        clocks(**options)
    assert footprint() == before


def test_environments_must_be_several_and_alike() -> None:
    with pytest.raises(ConfigError, match="0 environments"):
        SubprocessEnvManager([])
    kinds: list[Callable[..., Any]] = [ClockEnv, DictClockEnv]
    with pytest.raises(ConfigError, match=r"environment 1 has the observation space Dict.*0 has Box"):
        SubprocessEnvManager([functools.partial(kind, 0, [(1, TERMINATED)]) for kind in kinds])


def test_wrong_actions_are_refused_before_anybody_steps() -> None:
    with clocks(noisy=False) as manager:
        manager.launch(0)
        with pytest.raises(SchemaError, match=r"expected int64\[3\]"):
            manager.step([0, 0])
        assert manager.step([0, 0, 0]).next_obs[:, 2].tolist() == [1001, 1001, 1001]
