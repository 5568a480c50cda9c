"""AgentRuns: the runs of a game's seats, whose steps lie scattered over one ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.columns import ENDS, PROVENANCE, STREAM, episode_breaks
from flowrl.data.types import Array, Index, Mask
from flowrl.saved import Saved

BACK, AHEAD = 0, 1


class Steps(NamedTuple):
    """New steps `[B]`, and those before them that may go on, seat by seat in the order of time."""

    told: Batch  #: their ends and provenance
    number: Index  #: the number of each in the ring
    so_far: Index  #: steps of the run with it
    ended: Mask  #: whether it ended its episode
    over: Mask  #: whether it is known to be the last step of its run
    settled: Mask  #: whether it is known if it is: its seat's next step is there, or it ended the episode


class AgentRuns:
    """Which steps of one ring follow one another in a seat's episode (M5): each knows how far away its neighbors are.

    A fragment of games has different numbers of rows of each seat, also none, so the steps of a run are not side by
    side. Provenance (`worker`, `env_id`, `agent`, `episode_id`, `t`) tells which row goes on with which.

    Args:
        length: steps of the ring.

    State: the distances, and the newest step of each run that may go on.
    """

    def __init__(self, length: int) -> None:
        self.apart = np.zeros((2, length), np.int32)
        """By slot, the steps back to the one before it in its run, and ahead to the next; 0: there is none."""
        self._waiting = Batch()  # the newest steps of runs that may go on: what `Steps` has of them

    def add(self, told: Batch, written: int, begins: Mask, *, cut: bool) -> Steps:
        """Link new steps `[B]` with those that they follow.

        Args:
            told: their ends and provenance, each seat's in the order of time. written: steps in the ring with these.
            begins: whether a step begins a run whatever provenance says. cut: whether all runs before are over.
        """
        number = np.arange(written - len(told), written)
        self.apart[:, number[-self.apart.shape[1] :] % self.apart.shape[1]] = 0
        rows = told.replace(number=number, count=np.zeros(len(told), np.int64), begins=begins)
        if self._waiting:
            waiting = self._waiting.replace(begins=np.zeros(len(self._waiting), np.bool_))
            rows = Batch.cat([waiting, rows])
        # A stable order: of each seat, what waited comes first, then what is new.
        rows = rows[np.lexsort([rows[name] for name in STREAM if name in rows])]
        number, ended = rows["number"], (rows["terminated"] != 0) | (rows["truncated"] != 0)
        newest = np.ones(len(rows), np.bool_)  # of its seat
        newest[:-1] = np.any([rows[name][1:] != rows[name][:-1] for name in STREAM if name in rows], axis=0)
        goes_on = ~ended & ~newest
        goes_on[:-1] &= ~episode_breaks(rows) & ~rows["begins"][1:]
        lost = (rows["count"] > 0) & cut
        goes_on &= ~lost
        place = np.arange(len(rows))
        begin = np.maximum.accumulate(np.where(np.r_[True, ~goes_on[:-1]], place, 0))
        count = place - begin + np.maximum(rows["count"][begin], 1)
        self._link(number[:-1][goes_on[:-1]], number[1:][goes_on[:-1]], written)
        settled = ended | ~newest | lost
        self._waiting = rows.select(list(told)).replace(number=number, count=count)[~settled]
        return Steps(rows, number, count, ended, settled & ~goes_on, settled)

    def _link(self, first: Index, second: Index, written: int) -> None:
        stored = first >= written - self.apart.shape[1]
        first, second = first[stored], second[stored]
        self.apart[AHEAD, first % self.apart.shape[1]] = second - first
        self.apart[BACK, second % self.apart.shape[1]] = second - first

    def walk(self, slot: Index, n: int, way: int, room: Index) -> tuple[Index, Mask]:
        """The slots of n steps of one run from each slot on, `[n, B]`, BACK or AHEAD, and where its end is reached.

        Beyond it the slot is repeated. `room`: how many stored steps the ring has that way.
        """
        slots, reached = np.empty((n, len(slot)), np.int64), np.empty((n, len(slot)), np.bool_)
        for step in range(n):
            away = self.apart[way, slot].astype(np.int64)
            away[away > room] = 0  # overwritten
            slots[step], reached[step] = slot, away == 0
            slot = (slot + (away if way == AHEAD else -away)) % self.apart.shape[1]
            room = room - away
        return slots, reached

    def begins(self, slot: Index, age: Index) -> Mask:
        """Whether the step before each slot's is missing: there was none, or it was overwritten."""
        back = self.apart[BACK, slot]
        missing: Mask = (back == 0) | (back > age)
        return missing

    def state_dict(self, size: int) -> dict[str, Any]:
        """The state, of a ring in which the first `size` slots are in use."""
        return {"back": self.apart[BACK, :size].copy(), "waiting": self._waiting.map(np.copy).to_dict()}

    def load(self, saved: Saved, age: Index, written: int, dtypes: Mapping[str, Any]) -> None:
        """Restore a saved state, for slots of these ages; `dtypes` are those of the stored columns."""
        back = saved.array("back", np.int32, (len(age),), least=0, most=self.apart.shape[1])
        slots = np.flatnonzero((back > 0) & (back <= age))  # else the step before was overwritten
        self.apart[BACK, : len(age)] = back
        self.apart[AHEAD, (slots - back[slots]) % self.apart.shape[1]] = back[slots]
        kept = saved.inside("waiting")
        if not kept.state:
            return
        known = {name: dtype for name, dtype in dtypes.items() if name in (*ENDS, *PROVENANCE)}
        columns: dict[str, Array] = {name: kept.array(name, dtype, (None,)) for name, dtype in known.items()}
        columns["number"] = kept.array("number", np.int64, (None,), least=0, most=written - 1)
        columns["count"] = kept.array("count", np.int64, (None,), least=1, most=written)
        if len({len(column) for column in columns.values()}) > 1:
            saved.refuse("waiting", "columns of one length")
        self._waiting = Batch(columns).map(np.copy)

    def in_a_row(self, size: int) -> None:
        """Rows that were stored before seats were told apart follow one another in the ring."""
        self.apart[:, :size] = 1
