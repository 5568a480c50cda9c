"""R4: environments that own what only one can own are saved without a copy that comes to life beside them."""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from flowrl.envs import Manager, make_manager

ENDED: list[str] = []


class Simulator:
    """Counts."""

    def __init__(self) -> None:
        self.at = 0

    def forward(self) -> int:
        self.at += 1
        return self.at


class Opened(Simulator):
    """Has a handle."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = os.open("/dev/zero", os.O_RDONLY)

    def forward(self) -> int:
        return super().forward() + os.read(self.handle, 1)[0]


class Destructed(Opened):
    """Its destructor ends the handle."""

    def __del__(self) -> None:
        ENDED.append("destructor")
        os.close(self.handle)


class Finalized(Opened):
    """Its finalizer does."""

    def __init__(self) -> None:
        super().__init__()
        weakref.finalize(self, os.close, self.handle)


class Temporary(Simulator):
    """Its directory goes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        weakref.finalize(self, self.folder.cleanup)

    def forward(self) -> int:
        return super().forward() + len(os.listdir(self.folder.name))


class Address(Simulator):
    """It knows where its memory is."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = ctypes.c_uint64(0)

    def forward(self) -> int:
        return super().forward() + int(self.memory.value)


class Reopened(Destructed):
    """It says how it is saved: a copy opens a handle of its own."""

    def __getstate__(self) -> int:
        return self.at

    def __setstate__(self, at: int) -> None:
        ENDED.append("copy")
        self.__init__()  # type: ignore[misc]
        self.at = at


class Unloadable(Simulator):
    """Its pickle cannot be loaded."""

    def __getstate__(self) -> int:
        return self.at

    def __setstate__(self, state: Any) -> None:
        raise OSError("there is one licence")


class Simulated(gymnasium.Env[Any, Any]):
    """Counts in a simulator, somewhere within what it holds."""

    observation_space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, kind: Callable[[], Any]) -> None:
        self.held = {"simulators": [kind()]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.held["simulators"][0].at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.float32([self.held["simulators"][0].forward()]), 1.0, False, False, {}


KINDS = ("local", "subprocess", "async", "thread", "vector", "brought")


def manager(kind: str, simulator: Callable[[], Any]) -> Manager:
    if kind == "brought":
        return make_manager(lambda: SyncVectorEnv([lambda: Simulated(simulator)]), 1)
    return make_manager(Simulated, 1, {"kind": simulator}, kind=kind)


def step(envs: Manager) -> float:
    stepped = envs.step([0])
    while stepped.acted is not None and not stepped.acted.all():
        stepped = envs.step([0])
    return float(stepped.next_obs[0, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("simulator", "cut"),
    [(Simulator, 0), (Destructed, 1), (Finalized, 1), (Temporary, 1), (Address, 1), (Reopened, 0), (Unloadable, 1)],
)
def test_what_runs_is_not_disturbed_and_what_cannot_be_saved_is_cut(kind: str, simulator: Any, cut: int) -> None:
    """R4, D3: saving makes no copy; a loaded environment outlives the one made first, or a new episode begins."""
    with manager(kind, simulator) as envs:
        envs.launch(seed=0)
        assert step(envs) == 1
        ENDED.clear()
        state = envs.state_dict()
        assert envs.state_dict()["envs"] == state["envs"]  # D5
        assert ENDED == []
        assert step(envs) == 2
        with manager(kind, simulator) as resumed:
            resumed.load_state_dict(state)
            assert resumed.cut_episodes == cut
            assert [step(resumed), step(resumed)] == ([1, 2] if cut else [2, 3])
        assert step(envs) == 3
