"""Running discounted returns over a stream of fragments; their deviation scales rewards."""

from __future__ import annotations

import numpy as np

from flowrl.data.advantages import trace_ends
from flowrl.data.batch import Batch
from flowrl.data.columns import ENDS, PROVENANCE
from flowrl.data.trajectories import env_names
from flowrl.data.types import Array

Running = dict[str, tuple[float, int, int]]
"""By environment: the return of its running episode so far, the episode, and its next step."""

_USED = ("reward", "mask", *ENDS, *PROVENANCE)
_NOTHING = (0.0, -1, -1)


def running_returns(fragment: Batch, gamma: float, running: Running) -> Array:
    """The discounted return `[T, N]` of each episode up to each row: Gₜ = rₜ + γ Gₜ₋₁ per environment (O3).

    It starts from 0 with each episode. Episodes end at their end, and where provenance shows that they were cut. A
    fragment with a `mask` is complete in itself.

    Args:
        fragment: the next fragment of the stream, `[T, N, ...]`.
        running: the state after the previous fragment; updated in place.
    """
    used = fragment.select([name for name in _USED if name in fragment]).to_numpy()
    over = trace_ends(used) | (used["terminated"] != 0)
    names, first, last = env_names(used), _places(used, 0), _places(used, -1)
    carries_on = "mask" not in used
    carried = np.array([_so_far(running, *each) if carries_on else 0.0 for each in zip(names, first)])
    returns = np.empty(over.shape)
    for step, reward in enumerate(used["reward"]):
        returns[step] = reward + gamma * carried
        carried = np.where(over[step], 0.0, returns[step])
    if carries_on:
        found = zip(names, carried.tolist(), last, over[-1].tolist())
        steps = int("t" in used)
        running.update({name: (g, episode, t + steps) for name, g, (episode, t), done in found if not done})
    return returns


def _so_far(running: Running, name: str, place: tuple[int, int]) -> float:
    """The return of an environment's running episode, if it continues at this episode and step."""
    so_far, *expected = running.pop(name, _NOTHING)
    return so_far if tuple(expected) == place else 0.0


def _places(fragment: Batch, row: int) -> list[tuple[int, int]]:
    """Episode and step of each environment in a row, 0 if unknown."""
    nowhere = np.zeros(fragment["reward"].shape[1], np.int64)
    columns = [fragment[name][row] if name in fragment else nowhere for name in ("episode_id", "t")]
    return list(zip(*(column.tolist() for column in columns)))
