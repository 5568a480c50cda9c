"""Running discounted returns over a stream of fragments; their deviation scales rewards."""

from __future__ import annotations

import numpy as np

from flowrl.data.advantages import trace_ends
from flowrl.data.batch import Batch
from flowrl.data.columns import ENDS, PROVENANCE
from flowrl.data.trajectories import env_names, of_seats
from flowrl.data.types import Array

Running = dict[str, tuple[float, int, int]]
"""By environment: the return of its running episode so far, the episode, and its next step."""

_USED = ("reward", "mask", *ENDS, *PROVENANCE)
_NOTHING = (0.0, -1, -1)


def running_returns(fragment: Batch, gamma: float, running: Running) -> Array:
    """The discounted return `[T, N]` of each episode up to each row: Gₜ = rₜ + γ Gₜ₋₁ per environment (O3).

    It starts from 0 with each episode. Episodes end at their end, and where provenance shows that they were cut. A
    fragment with a `mask` is complete in itself, unless its columns are seats of games; padded rows mean nothing.

    Args:
        fragment: the next fragment of the stream, `[T, N, ...]`.
        running: the state after the previous fragment; updated in place.
    """
    used = fragment.select([name for name in _USED if name in fragment]).to_numpy()
    over = trace_ends(used) | (used["terminated"] != 0)
    steps, columns = len(over), np.arange(over.shape[1])
    ragged = of_seats(used)
    lengths = used["mask"].astype(bool).sum(0) if ragged else np.full(len(columns), steps)
    newest = lengths - 1, columns
    if ragged:  # padding follows, but the episode goes on
        over[newest] = (used["terminated"] != 0)[newest] | (used["truncated"] != 0)[newest]
    names, first, last = env_names(used), _places(used, 0 * lengths), _places(used, lengths - 1)
    carries_on = (lengths > 0) & (ragged or "mask" not in used)
    known = zip(names, first, carries_on.tolist())
    carried = np.array([_so_far(running, name, place) if goes else 0.0 for name, place, goes in known])
    returns = np.empty(over.shape)
    for step, reward in enumerate(used["reward"]):
        returns[step] = reward + gamma * carried
        carried = np.where(step < lengths, np.where(over[step], 0.0, returns[step]), carried)
    found = zip(names, carried.tolist(), last, (carries_on & ~over[newest]).tolist())
    counted = int("t" in used)
    running.update({name: (g, episode, t + counted) for name, g, (episode, t), goes in found if goes})
    return returns


def _so_far(running: Running, name: str, place: tuple[int, int]) -> float:
    """The return of an environment's running episode, if it continues at this episode and step."""
    so_far, *expected = running.pop(name, _NOTHING)
    return so_far if tuple(expected) == place else 0.0


def _places(fragment: Batch, rows: Array) -> list[tuple[int, int]]:
    """Episode and step of each environment in a row of its own, 0 if unknown."""
    each = rows, np.arange(len(rows))
    columns = [fragment[name][each] if name in fragment else np.zeros_like(rows) for name in ("episode_id", "t")]
    return list(zip(*(column.tolist() for column in columns)))
