"""Actions of several parts: a Tuple or a Dict action space, as rows of numbers of which a policy learns each part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from flowrl.errors import ConfigError

Array = npt.NDArray[Any]


class HybridActions(spaces.Space[Array]):
    """The actions of a Tuple or a Dict, nested or not, as rows `[..., size]` of float32, part after part.

    A discrete choice is its number in the row, counted from the start of its space.

    Attributes:
        space: The Tuple or the Dict. parts: The spaces in it, in the order of the row.

    Raises: ConfigError for a part that is no Discrete, MultiDiscrete or MultiBinary `[n]`, nor a Box of floats.

    >>> throw = HybridActions(spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]))
    >>> throw.to_env(np.array([2, 0.5, -7], np.float32))
    (np.int64(2), array([ 0.5, -1. ], dtype=float32))
    """

    def __init__(self, space: spaces.Tuple[Any] | spaces.Dict) -> None:
        self.space, self.parts = space, list(_leaves(space))
        if not self.parts:
            raise ConfigError(f"the action space {space} is empty: it needs at least one part")
        self._ends = np.cumsum([math.prod(part.shape or ()) for part in self.parts]).tolist()
        super().__init__((self._ends[-1],), np.float32)

    def split(self, rows: Any) -> list[Any]:
        """The columns `[N, *shape]` of each part in rows `[N, size]`, or those of one row; of an array or a tensor."""
        cut = zip(self.parts, [0, *self._ends], self._ends)
        return [rows[..., at:end].reshape((*rows.shape[:-1], *(part.shape or ()))) for part, at, end in cut]

    @staticmethod
    def join(columns: Sequence[Array]) -> Array:
        """The rows `[N, size]` with these columns `[N, *shape]` of each part."""
        return np.concatenate([column.reshape(len(column), -1) for column in columns], 1, dtype=np.float32)

    def to_env(self, rows: Array) -> Any:
        """The actions of the environment in a row `[size]`, or in rows `[N, size]` as a batch of its space.

        Rounding to float32 may leave the bounds of a Box of float64, so numbers are clipped to them.
        """
        return _nested(self.space, iter(self.split(np.asarray(rows))))

    def sample(self, mask: Any = None, probability: Any = None) -> Array:
        """A row of random actions of the parts."""
        return _row(self.space.sample(mask=mask, probability=probability))

    def seed(self, seed: Any = None) -> Any:
        """Seed the parts."""
        return self.space.seed(seed)

    def contains(self, x: Any) -> bool:
        """Whether a row holds an action of each part."""
        return isinstance(x, np.ndarray) and x.shape == self.shape and bool(self.space.contains(self.to_env(x)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HybridActions) and bool(self.space == other.space)

    def __repr__(self) -> str:
        return f"HybridActions({self.space})"


class FlattenAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment of Tuple or Dict actions that takes rows of `HybridActions`; around such ones by default."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.action_space, spaces.Tuple | spaces.Dict)
        self.action_space = self._actions = HybridActions(env.action_space)

    def action(self, action: Array) -> Any:
        """The environment's own action."""
        return self._actions.to_env(action)


def of_arrays(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, in `FlattenAction` if its actions are a Tuple or a Dict."""
    return FlattenAction(env) if isinstance(env.action_space, spaces.Tuple | spaces.Dict) else env


def _leaves(space: Any) -> Iterator[spaces.Space[Any]]:
    if isinstance(space, spaces.Tuple | spaces.Dict):
        for part in space.values() if isinstance(space, spaces.Dict) else space:
            yield from _leaves(part)
        return
    floats = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    several = isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and len(space.shape) == 1
    if not (floats and math.prod(space.shape)) and not several and not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"the action space has the part {space}: expected a Discrete, a MultiDiscrete or MultiBinary [n], or a "
            "Box of floats; gymnasium.wrappers.TransformAction makes it one"
        )
    yield space


def _nested(space: Any, columns: Iterator[Array]) -> Any:
    """The action of a space from the columns of its leaves."""
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, columns) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, columns) for part in space)
    values = next(columns).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(values, space.low, space.high)
    return values if values.shape else values[()]


def _row(action: Any) -> Array:
    """The row of an action of the space."""
    parts = action.values() if isinstance(action, dict) else action if isinstance(action, tuple) else None
    if parts is None:
        return np.asarray(action, np.float32).reshape(-1)
    return np.concatenate([_row(part) for part in parts])
