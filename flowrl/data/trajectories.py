"""Trajectories: the steps of one episode of one environment, reassembled from fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import PROVENANCE, STREAM, episode_breaks
from flowrl.data.steps import pad
from flowrl.data.types import Index
from flowrl.errors import SchemaError

Held = dict[str, tuple[int, int]]
"""By environment: the number of held rows of its running episode, and of its steps so far."""


class Trajectory(NamedTuple):
    """Consecutive steps of one episode, as row indices of a table."""

    env: str  #: name of the environment
    rows: Index  #: the newest steps of the episode, those still in the table
    known: int  #: steps of the episode before the newest fragment, dropped rows included
    length: int  #: steps of the episode with the newest fragment
    ended: bool  #: terminated or truncated
    open: bool  #: it continues in a later fragment; if neither open nor ended, the rest is lost

    @property
    def start(self) -> int:
        """The step of the first row in the table, counted in the episode."""
        return self.length - len(self.rows)

    def after(self, step: int) -> Index:
        """The rows from a step of the episode on, as far as the table has them."""
        return self.rows[max(0, step - self.start) :]


def trajectories(held: Batch, running: Held, fragment: Batch) -> tuple[Batch, list[Trajectory]]:
    """Combine a stream's newest fragment `[T, N, ...]` with the held rows of earlier ones.

    An episode is over where a step terminated or truncated it, or where provenance (`worker`, `env_id`, `episode_id`,
    `t`, if present) shows that its next step is lost. Padded steps (`mask` 0) are dropped.

    Args:
        held: rows `[B, ...]` of running episodes, in the order of `running`.
        running: see `Held`.

    Returns: The table of rows `[B, ...]` and its trajectories, by environment, then time. Environments without
        new steps come first.
    Raises: SchemaError if the number of environments changes and no column identifies them.
    """
    fragment = fragment.to_numpy()
    parts = _held_rows(running)
    steps, envs = fragment["reward"].shape
    names = env_names(fragment)
    if any(_columns(name) not in (None, envs) for name in running):
        raise SchemaError(
            f"there were other environments before these {envs}, and no column env_id tells which is which"
        )
    number = len(held) + np.arange(steps * envs).reshape(steps, envs)
    real = np.not_equal(fragment["mask"], 0) if "mask" in fragment else None
    for env, name in enumerate(names):
        new = number[:, env] if real is None else number[real[:, env], env]
        parts[name] = np.concatenate([parts[name], new]) if name in parts else new
    # Without the mask, held and new rows have the same columns.
    rows = fragment.select([name for name in fragment if name != "mask"]).flat()
    table = Batch.cat([held, rows]) if running else rows
    return table, _cut(table, parts, running)


def still_open(running: Held) -> list[Trajectory]:
    """The trajectories of the held rows, without new steps."""
    return [
        Trajectory(name, rows, running[name][1], running[name][1], ended=False, open=True)
        for name, rows in _held_rows(running).items()
    ]


def hold(table: Batch, kept: Sequence[Trajectory]) -> tuple[Batch, Held]:
    """Copies of the rows of these trajectories, to hold until the next fragment: see `trajectories`."""
    rows = np.concatenate([each.rows for each in kept]) if kept else np.zeros(0, np.int64)
    return table[rows], {each.env: (len(each.rows), each.length) for each in kept}


def side_by_side(table: Batch, columns: Sequence[Index], length: int) -> Batch:
    """Rows of a table as columns `[length, N, ...]`, each padded, see `pad`, with a `mask` (N6).

    >>> side_by_side(Batch(t=[5, 6, 7]), [np.array([0, 1]), np.array([2])], length=2).t.T.tolist()
    [[5, 6], [7, 0]]
    """
    index = np.full((length, len(columns)), -1)
    for column, rows in enumerate(columns):
        index[: len(rows), column] = rows
    mask = index >= 0
    made: Batch = table[index]
    if not mask.all():
        pad(made, mask)
    made["mask"] = mask
    return made


def _cut(table: Batch, parts: Mapping[str, Index], running: Held) -> list[Trajectory]:
    """The rows of each environment, in the order of time, cut where an episode is over."""
    order = np.concatenate([*parts.values(), np.zeros(0, np.int64)])
    ended = (table["terminated"][order] != 0) | (table["truncated"][order] != 0)
    over = ended.copy()
    over[:-1] |= episode_breaks(table.select([name for name in PROVENANCE if name in table])[order])
    found, first = [], 0
    for env, rows in parts.items():
        count, length = running.get(env, (0, 0))
        last = first + len(rows)
        ends = np.flatnonzero(over[first : max(last - 1, first)]) + 1  # a seat of a game may have no row yet
        for begin, end in zip([0, *ends.tolist()], [*ends.tolist(), len(rows)]):
            if begin == end:
                continue
            known = length if begin == 0 and count else 0
            total = end - begin + (length - count if known else 0)
            finished = bool(ended[first + end - 1])
            found.append(Trajectory(env, rows[begin:end], known, total, finished, end == len(rows) and not finished))
        first = last
    return found


def _held_rows(running: Held) -> dict[str, Index]:
    ends = np.cumsum([count for count, _ in running.values()], dtype=np.int64)
    return {name: np.arange(end - count, end) for (name, (count, _)), end in zip(running.items(), ends)}


def env_names(fragment: Batch) -> list[str]:
    """A name for the environment of each column of `[T, N, ...]`, unique in the stream."""
    envs = fragment["reward"].shape[1]
    if "env_id" not in fragment:
        return [f"column {env} of {envs}" for env in range(envs)]
    ids = [fragment[name][0].tolist() for name in STREAM if name in fragment] if len(fragment) else [[]]
    return ["/".join(map(str, each)) for each in zip(*ids)]


def of_seats(fragment: Batch) -> bool:
    """Whether the columns are seats of games, which have rows in later fragments although there is a `mask` (M5)."""
    return fragment.keys() >= {"mask", "agent", "env_id"}


def _columns(name: str) -> int | None:
    """The number of columns, if only their order identifies them."""
    return int(name.rpartition(" of ")[2]) if name.startswith("column") else None
