"""Faults of environments, and how many each may have before the run ends."""

from __future__ import annotations

import re
import traceback
from typing import Any, Literal, get_args

import attrs

from flowrl.errors import EnvFault
from flowrl.frames import in_lines, is_own, own_frames

During = Literal["construction", "reset", "step"]
Kind = Literal["exception", "timeout", "exit", "observation"]
DURING: tuple[During, ...] = get_args(During)
KINDS: tuple[Kind, ...] = get_args(Kind)


@attrs.frozen
class Fault:
    """One failure of one environment, which cost it its running episode.

    - `episode_id`, `t`, `seed`: the episode, the step in it, and the seed that it began with (None before the first).
      `during` counts an automatic reset as a reset.
    - `kind`: the environment raised an exception, exceeded its time limit, crashed its process, or returned an
      observation outside its space (`observation`).
    - `message` is one line, `traceback` that of the environment's process or thread, or "".
    - `collateral`: other environments whose episodes were cut because they shared the process.
    """

    env_id: int
    episode_id: int
    t: int
    seed: int | None
    during: During
    kind: Kind
    message: str
    traceback: str = ""
    collateral: tuple[int, ...] = ()

    def __str__(self) -> str:
        seed = "" if self.seed is None else f" (seed {self.seed})"
        where = f"environment {self.env_id}, episode {self.episode_id}{seed}, step {self.t}"
        also = f"; episodes of environments {list(self.collateral)} were cut with it" if self.collateral else ""
        return f"{where}: {self.kind} during {self.during}: {self.message}{also}"


class FaultLog:
    """The faults of N environments. Each may have `max_retry` faults per finished episode.

    State: faults not drained yet, and the faults of each environment since it last finished an episode.
    """

    def __init__(self, num_envs: int, max_retry: int = 0) -> None:
        self.max_retry = max_retry
        self._new: list[Fault] = []
        self._since: list[list[Fault]] = [[] for _ in range(num_envs)]

    def add(self, fault: Fault, way_out: str = "") -> None:
        """Add a fault. Raises: EnvFault if it is one too many; the environment then gets its retries back."""
        self._new.append(fault)
        since = self._since[fault.env_id]
        since.append(fault)
        if len(since) <= self.max_retry:
            return
        self.forgive(fault.env_id)
        first = next((each for each in since if each.traceback), fault)
        lines = in_lines(own_frames(first.traceback)) or first.traceback.splitlines()
        if first.message != fault.message:
            lines = [f"the first was {first.message}", *lines]
        times = f"{len(since)} faults since it last finished an episode, max_retry={self.max_retry} (env_manager_args)"
        raise EnvFault("\n".join([str(fault), *lines, times + way_out]))

    def forgive(self, env_id: int) -> None:
        """Clear the faults of an environment that finished an episode."""
        if self._since[env_id]:
            self._since[env_id] = []

    def drain(self) -> list[Fault]:
        """The faults since the last drain, oldest first."""
        drained, self._new = self._new, []
        return drained

    def state_dict(self) -> dict[str, Any]:
        return {
            "new": [attrs.astuple(fault) for fault in self._new],
            "since": [[attrs.astuple(fault) for fault in faults] for faults in self._since],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._new = [_fault(fields) for fields in state["new"]]
        self._since = [[_fault(fields) for fields in faults] for faults in state["since"]]


#: What to do where an environment cannot be made in a process that has another.
ONE_EACH = (
    "if a process can hold only one, take env_manager='subprocess' with env_manager_args={'envs_per_process': 1}, "
    "which gives each a process of its own"
)

_CLASSIC = (
    "its interface is that of classic gym, before 0.26: gymnasium's reset gives (obs, info) and takes seed= and "
    "options=, its step gives (obs, reward, terminated, truncated, info)"
)


def env_error(error: BaseException) -> Exception:
    """The error of an environment of this process, with a note where its interface is that of classic gym.

    One that leaves the program, as games do whose window is closed, has failed like any other.
    """
    if not isinstance(error, Exception):
        told = f"the environment left the program, by {error!r}; let it raise an error that says what is wrong"
        return RuntimeError(told)
    if classic := classic_interface(error):
        error.add_note(classic)
    return error


def classic_interface(error: BaseException) -> str:
    """The interface that an environment should have, if an error says that it has that of classic gym; else ""."""
    *_, innermost = ("", *(each.filename for each in traceback.extract_tb(error.__traceback__)))
    found = (isinstance(error, ValueError) and _UNPACKED.search(str(error))) or (
        isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in str(error)
    )
    return _CLASSIC if found and not is_own(innermost) else ""


#: A step that gives four values, and a reset that gives the observation alone.
_UNPACKED = re.compile(r"values to unpack \(expected (5, got 4|2(, got \d+)?)\)")


def _fault(fields: Any) -> Fault:
    fault = Fault(*fields)
    return attrs.evolve(fault, collateral=tuple(fault.collateral))
