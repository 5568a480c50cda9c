"""Vector environments of gymnasium and other libraries, as benchmarks/env_managers.py steps them.

Each is called with a number of transitions and takes at least as many, with actions drawn before. Those that are
not installed are skipped and reported as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

Factories = Sequence[Callable[[], Any]]

#: Actions `[K, N]` of all contestants, in turn; there are two in every environment.
ACTIONS = np.random.default_rng(0).integers(0, 2, (1024, 8))


class Gymnasium:
    """SyncVectorEnv or AsyncVectorEnv, which resets on the step that ends an episode."""

    def __init__(self, factories: Factories, kind: type[Any], **options: Any) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self.envs = kind(factories, autoreset_mode=mode, **options)
        self.envs.reset(seed=0)
        self.close = self.envs.close

    def __call__(self, steps: int) -> None:
        for turn in range(-(-steps // self.envs.num_envs)):
            self.envs.step(ACTIONS[turn % len(ACTIONS)])


class GymnasiumNative(Gymnasium):
    """The environment's own vectorised form. Rows that only reset count as steps, as they do for flowrl's."""

    def __init__(self, env: str) -> None:
        self.envs: Any = gymnasium.make_vec(env, ACTIONS.shape[1], "vector_entry_point")
        self.envs.reset(seed=0)
        self.close = self.envs.close


class StableBaselines3:
    """SubprocVecEnv, with the start method that is quickest to start."""

    def __init__(self, factories: Factories) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self.envs = SubprocVecEnv(list(factories), start_method="fork")
        self.envs.reset()
        self.close = self.envs.close

    def __call__(self, steps: int) -> None:
        for turn in range(-(-steps // self.envs.num_envs)):
            self.envs.step(ACTIONS[turn % len(ACTIONS)])


class Tianshou:
    """ShmemVectorEnv; the caller resets, as Tianshou's Collector does."""

    def __init__(self, factories: Factories, wait_num: int | None = None) -> None:
        from tianshou.env import ShmemVectorEnv

        self.envs = ShmemVectorEnv(list(factories), wait_num=wait_num)
        self.ready = np.arange(len(factories))
        self.envs.reset()
        self.close = self.envs.close

    def __call__(self, steps: int) -> None:
        taken = turn = 0
        while taken < steps:
            actions = ACTIONS[turn % len(ACTIONS)][self.ready]
            _, _, terminated, truncated, infos = self.envs.step(actions, self.ready)
            if self.envs.is_async:
                self.ready = np.array([info["env_id"] for info in infos])
            taken, turn = taken + len(infos), turn + 1
            if (ended := terminated | truncated).any():
                self.envs.reset(self.ready[ended])
