"""Trajectories: the steps of one episode of one environment, put together again from fragments that cut it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import PROVENANCE, episode_breaks
from flowrl.data.types import Index
from flowrl.errors import SchemaError

Held = dict[str, tuple[int, int]]
"""By environment: how many rows of its running episode are held, and how many steps it has had by now."""


class Trajectory(NamedTuple):
    """Consecutive steps of one episode, as row numbers of a table."""

    env: str  #: which environment's
    rows: Index  #: the steps that are there: the newest ones of the episode
    known: int  #: steps of the episode, rows that are not held any more included, before the newest fragment
    length: int  #: and with it
    ended: bool  #: terminated or truncated
    open: bool  #: it goes on in a fragment to come; where neither is true, what follows is missing

    @property
    def start(self) -> int:
        """The number, in the episode, of the first row that is there."""
        return self.length - len(self.rows)

    def after(self, step: int) -> Index:
        """The rows from a step of the episode on, as far as they are there."""
        return self.rows[max(0, step - self.start) :]


def trajectories(held: Batch, running: Held, fragment: Batch) -> tuple[Batch, list[Trajectory]]:
    """What a stream's newest fragment `[T, N, ...]` and the rows held of earlier ones make.

    An episode is over where a step terminated or truncated it, and where provenance (`worker`, `env_id`,
    `episode_id`, `t`, if they are there) shows that its next step is missing. Padded steps (`mask` 0) are not there.

    Args:
        held: rows `[B, ...]` of episodes that were running, in the order of `running`.
        running: see `Held`.

    Returns: The table of rows `[B, ...]` and its trajectories, by environment, then time. Environments of which there
        is nothing new come too, first.
    Raises: SchemaError where the number of environments changes and nothing tells which is which.
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
    # The mask has been read; without it, rows that are held and new ones have the same columns.
    rows = fragment.select([name for name in fragment if name != "mask"]).flat()
    table = Batch.cat([held, rows]) if running else rows
    return table, _cut(table, parts, running)


def still_open(running: Held) -> list[Trajectory]:
    """The trajectories of rows that are held, nothing being new."""
    return [
        Trajectory(name, rows, running[name][1], running[name][1], ended=False, open=True)
        for name, rows in _held_rows(running).items()
    ]


def hold(table: Batch, kept: Sequence[Trajectory]) -> tuple[Batch, Held]:
    """Copies of the rows of these trajectories, to be held until the next fragment: see `trajectories`."""
    rows = np.concatenate([each.rows for each in kept]) if kept else np.zeros(0, np.int64)
    return table[rows], {each.env: (len(each.rows), each.length) for each in kept}


def side_by_side(table: Batch, columns: Sequence[Index], length: int) -> Batch:
    """Rows of a table as columns `[length, N, ...]`, each padded with zeros, and the `mask` that tells (N6).

    >>> side_by_side(Batch(t=[5, 6, 7]), [np.array([0, 1]), np.array([2])], length=2).t.T.tolist()
    [[5, 6], [7, 0]]
    """
    index = np.full((length, len(columns)), -1)
    for column, rows in enumerate(columns):
        index[: len(rows), column] = rows
    mask = index >= 0
    made: Batch = table[index]
    if not mask.all():
        made[~mask] = 0  # where -1 took the last row
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
        ends = np.flatnonzero(over[first : last - 1]) + 1
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
    """What tells the environment of each column of `[T, N, ...]` from the others of the stream."""
    envs = fragment["reward"].shape[1]
    if "env_id" not in fragment:
        return [f"column {env} of {envs}" for env in range(envs)]
    ids = [fragment[name][0].tolist() for name in ("worker", "env_id") if name in fragment] if len(fragment) else [[]]
    return ["/".join(map(str, each)) for each in zip(*ids)]


def _columns(name: str) -> int | None:
    """How many columns there were, where only their order told them apart."""
    return int(name.rpartition(" of ")[2]) if name.startswith("column") else None
