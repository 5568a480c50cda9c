"""Replay buffers of other libraries, behind the two calls that benchmarks/replay.py times.

Each is made as its documentation recommends for speed. Missing ones are skipped and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

Rows = dict[str, np.ndarray]
ENVS = 8
"""Rows of one vector step, for the peers that are filled by those."""


class Contestant(Protocol):
    """A full buffer."""

    def add(self, rows: Rows) -> Any: ...

    def sample(self, count: int) -> Any: ...


class Contest(NamedTuple):
    """What is stored."""

    capacity: int
    shape: tuple[int, ...]
    dtype: type
    once: bool
    """Whether next_obs is stored once."""

    def rows(self, count: int, generator: np.random.Generator) -> Rows:
        """The five columns that all of them have."""
        make = generator.random if self.dtype is np.float32 else lambda size, _: generator.integers(0, 256, size)
        obs = np.asarray(make((count + 1, *self.shape), np.float32)).astype(self.dtype)
        return {
            "obs": obs[:-1],
            "action": generator.integers(0, 4, count),
            "reward": generator.random(count, np.float32),
            "next_obs": obs[1:],
            "terminated": np.zeros(count, np.bool_),
        }


class NumpyRing:
    """The bound: arrays, a cursor, fancy indexing; into arrays of its own where `reuse`."""

    def __init__(self, contest: Contest, reuse: bool = False) -> None:
        example = contest.rows(1, np.random.default_rng(0))
        names = [name for name in example if not (contest.once and name == "next_obs")]
        self.columns = {
            name: np.zeros((contest.capacity, *example[name].shape[1:]), example[name].dtype) for name in names
        }
        self.capacity, self.at, self.once, self.reuse = contest.capacity, 0, contest.once, reuse
        self.generator = np.random.default_rng(0)
        self.out: Rows = {}

    def add(self, rows: Rows) -> None:
        count = len(rows["reward"])
        if self.at + count > self.capacity:
            self.at = 0
        for name, column in self.columns.items():
            column[self.at : self.at + count] = rows[name]
        self.at += count

    def sample(self, count: int) -> Rows:
        index = self.generator.integers(self.capacity - 1, size=count)
        drawn = {name: self._take(name, name, index) for name in self.columns}
        if self.once:
            drawn["next_obs"] = self._take("next_obs", "obs", index + 1)
        return drawn

    def _take(self, to: str, name: str, index: np.ndarray) -> np.ndarray:
        column = self.columns[name]
        if not self.reuse:
            return column[index]
        if to not in self.out:
            self.out[to] = np.empty((len(index), *column.shape[1:]), column.dtype)
        return np.take(column, index, axis=0, out=self.out[to], mode="clip")


class Cpprb:
    def __init__(self, contest: Contest) -> None:
        from cpprb import ReplayBuffer

        example = contest.rows(1, np.random.default_rng(0))
        columns = {name: {"shape": column.shape[1:] or 1, "dtype": column.dtype} for name, column in example.items()}
        if contest.once:
            del columns["next_obs"]
            self.buffer = ReplayBuffer(contest.capacity, columns, next_of="obs")
        else:
            self.buffer = ReplayBuffer(contest.capacity, columns)

    def add(self, rows: Rows) -> None:
        self.buffer.add(**rows)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)


class StableBaselines3:
    """Filled by vector steps of 8; what it draws are tensors."""

    def __init__(self, contest: Contest) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        low, high = (0, 255) if contest.dtype is np.uint8 else (-1.0, 1.0)
        self.buffer = ReplayBuffer(
            contest.capacity,
            Box(low, high, contest.shape, contest.dtype),  # type: ignore[arg-type]
            Discrete(4),
            device="cpu",
            n_envs=ENVS,
            optimize_memory_usage=contest.once,
            handle_timeout_termination=False,
        )

    def add(self, rows: Rows) -> None:
        for at in range(0, len(rows["reward"]), ENVS):
            to = slice(at, at + ENVS)
            obs, next_obs, action = rows["obs"][to], rows["next_obs"][to], rows["action"][to]
            self.buffer.add(obs, next_obs, action, rows["reward"][to], rows["terminated"][to], [{}] * ENVS)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)


class Tianshou:
    """Filled by vector steps of 8."""

    def __init__(self, contest: Contest) -> None:
        from tianshou.data import Batch, VectorReplayBuffer

        self.batch, self.ids = Batch, np.arange(ENVS)
        self.buffer = VectorReplayBuffer(contest.capacity, ENVS, ignore_obs_next=contest.once)

    def add(self, rows: Rows) -> None:
        for at in range(0, len(rows["reward"]), ENVS):
            to = slice(at, at + ENVS)
            batch = self.batch(
                obs=rows["obs"][to],
                act=rows["action"][to],
                rew=rows["reward"][to],
                terminated=rows["terminated"][to],
                truncated=rows["terminated"][to],
                obs_next=rows["next_obs"][to],
                info={},
            )
            self.buffer.add(batch, buffer_ids=self.ids)

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)


class TorchRL:
    """Tensors in memory, next_obs stored twice."""

    def __init__(self, contest: Contest) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self.torch, self.dict = torch, TensorDict
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(contest.capacity), batch_size=256)

    def add(self, rows: Rows) -> None:
        tensors = {name: self.torch.from_numpy(column) for name, column in rows.items()}
        self.buffer.extend(self.dict(tensors, batch_size=[len(rows["reward"])]))

    def sample(self, count: int) -> Any:
        return self.buffer.sample(count)


PEERS: dict[str, Callable[[Contest], Contestant]] = {
    "cpprb": Cpprb,
    "stable-baselines3": StableBaselines3,
    "tianshou": Tianshou,
    "torchrl": TorchRL,
}
"""By their package's name."""
