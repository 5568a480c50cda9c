"""The errors that flowrl raises itself, and the "did you mean" that they share.

They reject what can be rejected before any work starts, and end a run that cannot go on. An error of a user's
function keeps its type and gains a note (see `flowrl.engine.stages`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeGuard


class FlowError(Exception):
    """Base of all errors that flowrl raises on purpose; its text, part of which may be a stranger's, is printable."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # KeyError, a base of some, would quote it


class PlanError(FlowError):
    """A plan that cannot be built, edited or run as it stands."""


class SchemaError(FlowError):
    """Data without the columns, dtypes or shapes that an operator or buffer needs."""


class ConfigError(FlowError):
    """An unknown plan, environment, option or configuration key, or a value of the wrong type."""


class CheckpointError(FlowError):
    """A saved state that is damaged, or belongs to another run."""


class EnvFault(FlowError):
    """An environment that keeps failing, although it was reset and recreated."""


class DatasetError(FlowError):
    """A dataset on disk that is damaged, does not fit, or cannot be written."""


class NotFinite(FlowError):
    """A loss, a gradient, weights, an estimate or a score that is not finite (X1): NaN, infinite, or out of range.

    Attributes:
        batches: The rows that it was computed from, as numpy arrays; `flowrl run` saves them in the run's folder.
    """

    batches: tuple[Any, ...] = ()


class ContractError(FlowError):
    """An item that breaks a contract on an edge of a plan, see `flowrl.operators.contracts`."""


class Deadlock(FlowError):
    """Every branch of a running plan waits for another branch."""


class Stalled(FlowError, TimeoutError):
    """A future that a run waits for did not complete before the run's deadline."""


class Disconnected(FlowError):
    """A member of a group of learners is gone, or did not join or answer in time."""


class WorkerDied(FlowError):
    """The death of a process, an actor or a machine, or the loss of a value that it held.

    Attributes:
        what: The process, actor or machine.
        why: The reason, as far as it is known.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return printable(f"{self.what} died: {self.why}")


class ValueLost(WorkerDied):
    """A value was lost with the machine that held it; the actor that needed it is alive."""


def is_death(error: object) -> TypeGuard[WorkerDied]:
    """Whether an error reports a death, not only a lost value."""
    return isinstance(error, WorkerDied) and not isinstance(error, ValueLost)


def out_of_memory(error: BaseException) -> bool:
    """Whether there is not enough memory; torch has no class of its own for that on the CPU.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("can't allocate memory: you tried ..."))
    (True, True)
    """
    words = ("allocate memory", "out of memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    )


def notes_of(error: BaseException) -> list[str]:
    """What was added to an error on its way."""
    return getattr(error, "__notes__", [])


def printable(text: str) -> str:
    """Text of which a terminal obeys nothing but the ends of lines and tabs: all else is escaped.

    >>> printable("two\\nlines, \\x1b[2J")
    'two\\nlines, \\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """The closest option and the list of all options, to end an error message.

    >>> did_you_mean("lern_rate", ["learn_rate", "gamma"])
    "did you mean 'learn_rate'? There are: gamma, learn_rate"
    >>> did_you_mean("x", [])
    'there are none'
    """
    options = sorted(set(options))
    if not options:
        return "there are none"
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    listed = ", ".join(options)
    return f"did you mean {close[0]!r}? There are: {listed}" if close else f"there are: {listed}"


def closest(name: str, options: Iterable[str], otherwise: str = "") -> str:
    """Like `did_you_mean`, where there are too many options to list: the closest five.

    >>> closest("CartPool", ["CartPole", "Ant"]), closest("x", ["CartPole"], "; list() lists them")
    ("did you mean 'CartPole'? There are: CartPole", 'no name there is like it; list() lists them')
    """
    close = difflib.get_close_matches(name, list(options), n=5)
    return did_you_mean(name, close) if close else f"no name there is like it{otherwise}"
