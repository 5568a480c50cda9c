"""Environments that each have one thing wrong, or worth knowing; `Healthy` has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tests.clock_envs import ClockEnv

BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


class Healthy(gymnasium.Env[Any, Any]):
    """Ends at random, says who won, gives pictures."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space: gymnasium.Space[Any] = BOX
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.over()
        return self.obs(), self.reward(), over, False, {"is_success": True} if over else {}

    def obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reward(self) -> Any:
        return 1.0

    def over(self) -> Any:
        return bool(self.np_random.random() < 0.1)

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class TextSpace(Healthy):
    observation_space = gymnasium.spaces.Dict(speed=BOX, words=gymnasium.spaces.Text(5))


class WrongMask(Healthy):
    observation_space = gymnasium.spaces.Dict(speed=BOX, action_mask=gymnasium.spaces.MultiBinary(3))


class Pairs(Healthy):
    observation_space = gymnasium.spaces.Tuple([BOX, gymnasium.spaces.Dict(speed=BOX)])

    def obs(self) -> Any:
        return super().obs(), {"speed": super().obs()}


class WrongShape(Healthy):
    def obs(self) -> Any:
        return super().obs()[:1] if getattr(self, "t", 0) == 3 else super().obs()


class WrongDtype(Healthy):
    def obs(self) -> Any:
        return super().obs().astype(complex)


class Float64(Healthy):
    def obs(self) -> Any:
        return super().obs().astype(np.float64)


class NanObs(Healthy):
    observation_space = gymnasium.spaces.Dict(speed=BOX)

    def obs(self) -> Any:
        return {"speed": np.full(2, np.nan if self.t == 2 else 0.5, np.float32)}


class OutOfBounds(Healthy):
    def obs(self) -> Any:
        return np.full(2, 3.0, np.float32)


class ArrayReward(Healthy):
    def reward(self) -> Any:
        return np.ones(1)


class NanReward(Healthy):
    def reward(self) -> Any:
        return float("nan")


class InfiniteReward(Healthy):
    def reward(self) -> Any:
        return -float("inf")


class IntegerFlags(Healthy):
    def over(self) -> Any:
        return int(super().over())


class NoInfo(Healthy):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], None)


class OldStep(Healthy):
    def step(self, action: Any) -> Any:
        obs, reward, over, _, info = super().step(action)
        return obs, reward, over, info


class OldReset(Healthy):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class GlobalGenerator(Healthy):
    def obs(self) -> Any:
        return np.random.uniform(-1, 1, 2).astype(np.float32)  # noqa: NPY002


class Remembers(Healthy):
    """Its second life is another one, whatever the seed."""

    lives = 0

    def reset(self, **options: Any) -> Any:
        self.lives += 1
        return super().reset(**options)

    def obs(self) -> Any:
        return np.full(2, 1 / (1 + self.lives), np.float32)


class AlwaysAlike(Healthy):
    def step(self, action: Any) -> Any:
        self.action = action
        return super().step(action)

    def obs(self) -> Any:
        return np.zeros(2, np.float32)

    def over(self) -> Any:
        return bool(self.action == 1)


class Endless(Healthy):
    def over(self) -> Any:
        return False


class TerminatesOnTime(Healthy):
    def over(self) -> Any:
        return self.t == 20


class NoSuccess(Healthy):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {})


class Reuses(Healthy):
    def obs(self) -> Any:
        self.mine = getattr(self, "mine", np.zeros(2, np.float32))
        self.mine[:] = super().obs()
        return self.mine


class Rebuilt(Healthy, EzPickle):
    def __init__(self, render_mode: str | None = None) -> None:
        EzPickle.__init__(self, render_mode)
        super().__init__(render_mode)


class ForgetsItsState(Healthy):
    def __getstate__(self) -> Any:
        return {**vars(self), "_np_random": None}


class NoPictures(Healthy):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


class Unbounded(Healthy):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class RaisesInStep(Healthy):
    def step(self, action: Any) -> Any:
        raise KeyError("a joint that is not there")


class RaisesWhenMade(Healthy):
    def __init__(self) -> None:
        raise OSError("no such simulator")


class HangsInStep(Healthy):
    def step(self, action: Any) -> Any:
        threading.Event().wait()


class HangsInReset(Healthy):
    def reset(self, **options: Any) -> Any:
        threading.Event().wait()


class HangsWhenMade(Healthy):
    def __init__(self) -> None:
        threading.Event().wait()


class Exits(Healthy):
    def step(self, action: Any) -> Any:
        os._exit(3)


class Crashes(Healthy):
    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class RaisesInRender(Healthy):
    """As on a machine without a display; then it cannot be closed either."""

    tries, shown = 0, False

    def render(self) -> Any:
        type(self).tries += 1
        self.shown = True
        raise OSError("cannot connect to a display")

    def close(self) -> None:
        if self.shown:
            raise AttributeError("there is no viewer")


class RaisesInClose(Healthy):
    def close(self) -> None:
        raise RuntimeError("there is no window")


class CrashesInRender(Healthy):
    def render(self) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class OneAtATime(Healthy):
    """An emulator of which a process holds one."""

    emulators = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if OneAtATime.emulators:
            raise RuntimeError("Cannot create multiple emulator instances per process")
        OneAtATime.emulators += 1

    def close(self) -> None:
        OneAtATime.emulators -= 1


class StartsAnother(Healthy):
    """Leaves a process of its own, whose number it prints, and hangs."""

    def __init__(self) -> None:
        other = subprocess.Popen(["sleep", "600"])
        print(f"pid {other.pid}", file=sys.stderr, flush=True)
        threading.Event().wait()


class Stumbles(Healthy):
    """Every third episode or so raises at its third step, if it is not over by then."""

    def reset(self, **options: Any) -> Any:
        answer = super().reset(**options)
        self.stumbles = self.np_random.random() < 0.3
        return answer

    def step(self, action: Any) -> Any:
        if self.stumbles and self.t == 2:
            raise RuntimeError("it stumbled")
        return super().step(action)


class Prints(Healthy):
    def step(self, action: Any) -> Any:
        print("a simulator with much to say")
        return super().step(action)


def healthy_vector(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Healthy] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def silent_vector(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Does not say when it resets."""
    envs = healthy_vector(num_envs)
    envs.metadata = {}
    return envs


def random_vector(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([GlobalGenerator] * num_envs)


def endless_vector(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([lambda: ClockEnv(0, [(10**6, "terminated")])] * num_envs)
