"""What environments in other processes do wrong, and what it costs."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.envs import SubprocessEnvManager
from flowrl.envs.managers import supervisor
from flowrl.errors import EnvFault, FlowError
from tests.clock_envs import TERMINATED, ClockEnv, EchoEnv
from tests.faulty_envs import RESET, Player, footprint, one_faulty
from tests.managers import in_processes


@pytest.mark.slow
def test_the_time_limit_is_that_of_one_environment() -> None:
    """F10: three environments in one process that take longer together than one may."""

    class Slow(ClockEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.4)
            return super().step(action)

        def reset(self, **kwargs: Any) -> Any:
            time.sleep(0.1)
            return super().reset(**kwargs)

    limits = {"step_timeout": 1.0, "reset_timeout": 1.0}
    with in_processes([[(2, TERMINATED)]] * 3, kind=Slow, noisy=False, envs_per_process=3, **limits) as manager:
        manager.launch(0)
        start = time.monotonic()
        for _ in range(2):
            assert manager.step([0, 0, 0]).acted is None
        assert time.monotonic() - start > 2 * 1.0
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
        if action == 906:
            ctypes.string_at(0)
        obs, reward, *rest = super().step(action)
        if action == 905:
            obs = obs.astype(complex)
        if action == 907:
            obs = obs[:2]
        if action == 908:
            return obs, reward
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
        (906, "exit", "its process was killed by SIGSEGV"),
        (905, "observation", "SchemaError: the observation is complex128, but its space says float32"),
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
        assert ("step" in fault.traceback) is (kind in ("exception", "observation") or action == 906)
        Player(manager).play(12)


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
        assert "the first was Unpicklable: " in str(caught.value)
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


def test_what_took_long_because_this_process_was_suspended_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: by a stop of all processes, which then need time to answer."""
    later = 0.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))

    class Suspended(SimpleNamespace):
        def poll(self, milliseconds: float) -> Any:
            nonlocal later
            if later:
                return self.real.poll(milliseconds)
            later = 1000.0
            return []

    with SubprocessEnvManager([functools.partial(EchoEnv, 0, [(9, TERMINATED)])]) as manager:
        manager.launch(seed=0)
        monkeypatch.setattr(manager._crew, "_poll", Suspended(real=manager._crew._poll))
        manager.step([0])
        assert later
        assert manager.drain_faults() == []


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
    with SubprocessEnvManager([functools.partial(Forking, 0, [(9, TERMINATED)])], step_timeout=3) as manager:
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
