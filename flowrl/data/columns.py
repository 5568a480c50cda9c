"""Operations on one column of a Batch: an array, a tensor or a nested batch. Never loads torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flowrl.errors import SchemaError

if TYPE_CHECKING:
    import torch

Column: TypeAlias = Any
"""A numpy array, a torch tensor, or a nested `Batch`."""

STREAM = ("worker", "env_id", "agent")
"""The columns that identify an environment, and in a game of several agents the seat of one (M4)."""

PROVENANCE = (*STREAM, "episode_id", "t")
"""The columns that identify an episode and a step; `t` is the number of a step in its episode."""

ENDS = ("terminated", "truncated")
"""The columns for the end of an episode."""

OF_LAST = ("next_obs", *ENDS)
"""The columns of an n-step transition that come from its last step; all others come from the first."""

TRANSITION = ("obs", "action", "reward", *OF_LAST)
"""The columns that demonstrated steps need to mix with an agent's."""

STEP_DISCOUNT = "step_discount"
"""The column of what everything after a step counts, where the game says so; it takes the place of a gamma."""

PLACE = ("index", "generation", "shard", "part")
"""The columns that locate a drawn row in a replay buffer; `shard` and `part` only if there are several."""


ACTION_MASK = "action_mask"
"""The entry of dictionary observations that marks the valid actions."""

AGENT = "agent"
"""The entry of dictionary observations that tells an agent of a game its number among all."""

STATE = "state"
"""The entry of dictionary observations for the state of a whole game, which only learners read."""

GOALS = ("achieved_goal", "desired_goal")
"""The observation entries of goal environments, as in gymnasium-robotics."""


class MissingColumn(SchemaError, KeyError, AttributeError):
    """A column that a batch does not have; a KeyError and an AttributeError, for both kinds of access."""


def kind(column: Column) -> str:
    """`"array"`, `"tensor"` or `"other"` (a nested batch, when it is a batch's column)."""
    if type(column) is np.ndarray:
        return "array"
    torch = sys.modules.get("torch")  # loaded already if anyone holds a tensor
    if torch is not None and isinstance(column, torch.Tensor):
        return "tensor"
    return "array" if isinstance(column, np.ndarray | np.generic) else "other"


def describe(column: Column) -> str:
    """Dtype, shape and device: `float32[4, 2]`."""
    if kind(column) == "other":
        return repr(column)
    device = f"@{column.device}" if kind(column) == "tensor" and column.device.type != "cpu" else ""
    return f"{column.dtype}{list(column.shape)}{device}"


def same(a: Column, b: Column) -> bool:
    """Equal in kind, dtype, shape, device and value; NaN equals NaN."""
    if kind(a) != kind(b):
        return False
    if kind(a) == "other":
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if kind(a) == "tensor":
        return a.device == b.device and bool(((a == b) | ((a != a) & (b != b))).all())
    if a.dtype == object:
        return all(map(_same_object, a.flat, b.flat))
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _same_object(a: Any, b: Any) -> bool:
    """Equal in type and value, including arrays inside."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_object(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same_object, a, b))
    return same(a, b)


def boxed(value: Any) -> np.ndarray[Any, Any]:
    """Any object as a 0-d object array, whatever numpy would convert it to."""
    box = np.empty((), object)
    box[()] = value
    return box


def numeric(column: Column) -> bool:
    """Whether a column holds numbers or booleans, not objects, text or dates."""
    return kind(column) == "tensor" or np.asarray(column).dtype.kind in "biufc"


def like(column: Column, part: Any) -> Any:
    """Convert a value to the kind of a column: a tensor or an array."""
    if kind(column) == "tensor":
        if kind(part) == "array" or isinstance(part, (list, tuple)):
            return tensor(np.asarray(part), column.device)
    elif kind(part) == "tensor":
        return array(part)
    elif type(part) is np.ndarray and not part.shape and part.dtype == object:
        return part.item()  # numpy would store the array itself, not its element
    return part


def tensor(column: Column, device: torch.device | str | None) -> torch.Tensor:
    """A column as a tensor; on the CPU it shares memory with a writable array."""
    import torch

    if isinstance(column, torch.Tensor):
        return column if device is None else column.to(device)
    array = np.asarray(column)
    if not array.flags.writeable or not (array.flags.c_contiguous or min(array.strides) >= 0):
        array = array.copy()  # torch supports neither read-only memory nor negative strides
    made = torch.from_numpy(array)
    return made if device is None or device == made.device else made.to(device)


def array(column: Column) -> np.ndarray[Any, Any]:
    """A column as an array; a CPU tensor shares its memory."""
    return np.asarray(column.detach().cpu() if kind(column) == "tensor" else column)


class HostTensors(dict[str, Any]):
    """Tensors by name, on the host, that pickle shares with other processes as arrays and returns as a dict of tensors.

    A tensor of its own is copied when it is pickled, and again by each who unpickles it.

    >>> import pickle, torch
    >>> pickle.loads(pickle.dumps(HostTensors(weight=torch.ones(2), steps=3)))
    {'weight': tensor([1., 1.]), 'steps': 3}
    """

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.update((name, value.cpu()) for name, value in self.items() if kind(value) == "tensor")

    def __reduce__(self) -> Any:
        shared = {name: _shared(value) for name, value in self.items()}
        return _as_tensors, (shared, [name for name, value in self.items() if shared[name] is not value])


def _shared(value: Any) -> Any:
    """A tensor as an array of the same memory, unless numpy has no such type; anything else as it is."""
    try:
        return array(value) if kind(value) == "tensor" else value
    except TypeError:
        return value


def _as_tensors(shared: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return shared | {name: tensor(shared[name], None) for name in names}


def join(parts: Sequence[Column], axis: int, how: str) -> Column:
    """`cat` or `stack` arrays or tensors."""
    if kind(parts[0]) == "tensor":
        import torch

        return torch.cat(list(parts), axis) if how == "cat" else torch.stack(list(parts), axis)
    return np.concatenate(parts, axis) if how == "cat" else np.stack(parts, axis)


def common_axes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The longest leading shape of both.

    >>> common_axes((4, 2, 3), (4, 2, 5))
    (4, 2)
    """
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]


def episode_breaks(steps: Any) -> Any:
    """Where the following row is not the next step of the same episode, by provenance: `[T - 1, N]`.

    This finds episodes that ended without a flag: the worker died, a fragment was lost, or it was reset.

    Args:
        steps: batch of columns `[T, N, ...]`; without provenance, all False.
    """
    found: Any = np.False_
    for name in PROVENANCE:
        if name in steps:
            before, after = steps[name][:-1], steps[name][1:]
            found = found | (after != (before + 1 if name == "t" else before))
    return found


def check_names(expected: Mapping[str, Column], got: Iterable[str], what: str) -> None:
    """Raise a SchemaError that lists missing and extra names."""
    got = set(got)
    parts = []
    if missing := [name for name in expected if name not in got]:
        parts.append("lacks " + ", ".join(map(repr, missing)))
    if extra := sorted(got - set(expected)):
        parts.append("has extra " + ", ".join(map(repr, extra)))
    if parts:
        raise SchemaError(f"{what} {' and '.join(parts)}; expected columns: {', '.join(expected) or 'none'}")
