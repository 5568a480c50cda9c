"""EnvPool: environments in C++ threads, as one gymnasium VectorEnv."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from flowrl.errors import ConfigError, closest

Mask = npt.NDArray[np.bool_]

#: Where flowrl's recorders of vector environments put what gymnasium's puts into `info["episode"]`.
RECORD = "__episode__"


class EnvPool(VectorEnv[Any, Any, Any]):
    """`num_envs` environments of one pool, which step together and reset themselves on the next step (T1).

    A pool gets its seed when it is made, so `reset(seed=)` makes a new pool; before the first reset there is none.
    Arguments are those of `envpool.make_spec`. Where `episodic_life` or `reward_clip` change what is learned, `records`
    is true if the pool tells rewards and ends of the games nevertheless, as that of Atari does: `info` then has their
    returns and lengths as gymnasium's recorder would give them (R3). `keeps_rewards` is false where nobody can know.

    Raises: ConfigError if envpool is not installed or has no such environment, and for the arguments `seed` and
    `batch_size`, which flowrl sets.
    """

    _stats_key = RECORD

    def __init__(self, env_id: str, /, num_envs: int, **args: Any) -> None:
        try:
            self._envpool: Any = importlib.import_module("envpool")
        except ModuleNotFoundError as error:
            raise ConfigError(f"'envpool:{env_id}' needs envpool: pip install 'flowrl-engine[envpool]'") from error
        self._id, self._args = env_id, {"num_envs": num_envs, **args}
        self._pool: Any = None
        if "seed" in args:
            raise ConfigError(f"env_args 'seed' of 'envpool:{env_id}': seeds follow from that of the run")
        if args.get("batch_size", num_envs) != num_envs:
            raise ConfigError(f"env_args 'batch_size' of 'envpool:{env_id}': all {num_envs} environments step together")
        known = self._envpool.list_all_envs()
        if env_id not in known:
            raise ConfigError(f"no environment {env_id!r} in envpool: {closest(env_id, known)}")
        with _quietly():
            spec = self._envpool.make_spec(env_id, **self._args)
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        changed = any(args.get(option) for option in ("episodic_life", "reward_clip"))
        self.records = changed and {"info:reward", "info:terminated"} <= set(spec.state_array_spec)
        self.keeps_rewards = self.records or not changed
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def __str__(self) -> str:
        return f"EnvPool({self._id}, num_envs={self.num_envs})"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes everywhere; `seed` determines their starts."""
        if seed is not None or self._pool is None:
            self.close_extras()
            more = {} if seed is None else {"seed": seed}
            self._pool = self._envpool.make_gymnasium(self._id, **self._args, **more)
        with _quietly():
            obs, info = self._pool.reset()
        self.episode_returns, self.episode_lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        return obs, info

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """(obs, reward, terminated, truncated, info), rows by environment."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        if self.records:
            info = self._with_record(terminated | truncated, truncated, info)
        return obs, reward, terminated, truncated, info

    def _with_record(self, ended: Mask, truncated: Mask, info: dict[str, Any]) -> dict[str, Any]:
        played, self._resetting = ~self._resetting, ended
        self.episode_returns += np.where(played, info["reward"], 0.0)
        self.episode_lengths += played
        over = played & (truncated | (info["terminated"] != 0))
        if not over.any():
            return info
        record = {"r": self.episode_returns.copy(), "l": self.episode_lengths.copy(), "t": np.zeros(self.num_envs)}
        self.episode_returns[over], self.episode_lengths[over] = 0.0, 0
        return {**info, RECORD: record, f"_{RECORD}": over}

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the pool's threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress gymnasium's warning about the bounds of EnvPool's spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        yield
