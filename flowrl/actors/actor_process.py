"""The object in an actor's process; answers bring home its errors, warnings and prints."""

from __future__ import annotations

import io
import logging
import os
import pickle
import platform
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import metadata
from operator import methodcaller
from time import perf_counter as clock
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from flowrl import _version
from flowrl.engine.workers.pickling import pack_plain
from flowrl.engine.workers.remote import measured
from flowrl.errors import ConfigError

log = logging.getLogger("flowrl")

#: The log level of printed lines.
PRINTED = logging.NOTSET
#: Of the answers to one method, one in so many is timed while it is pickled and unpickled, the first among them.
TIMED = 16


class Mark:
    """Arrives as the times at which it was pickled, there, and unpickled, here; its place among them tells of what.

    >>> (before, _), value, (after, _) = pickle.loads(pickle.dumps((Mark(), 3, Mark())))
    >>> value, before < after
    (3, True)
    """

    def __reduce__(self) -> Any:
        return _arrived, (clock(),)


def _arrived(pickled: float) -> tuple[float, float]:
    return pickled, clock()


class ActorProcess:
    """An object in an actor. Answers are (mark, value, error, said, mark), so that an error arrives as raised.

    `said` is a list of (level, text): warnings and printed lines. The marks are None if the answer is not timed. An
    answer of plain values is pickled here, which takes a fraction of the time that it takes Ray.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._target: Any = None
        self._broken: Any = None
        self._said = _Said()
        self._asked = Counter[str]()  # by method
        self._newest = b""
        logging.captureWarnings(True)
        for told in (log, logging.getLogger("py.warnings")):
            told.addHandler(self._said)

    def __repr__(self) -> str:
        return self._name

    def begin(self, versions: dict[str, str], path: list[str], threads: int, make: bytes) -> Any:
        """Create the object, if both ends run the same flowrl; an error here becomes the answer to every request.

        Modules are searched in the caller's folders, as far as this machine has them.
        """
        sys.path += [folder for folder in path if folder not in sys.path]
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        try:
            _compare(versions, f"{self._name} on {platform.node()}")
            with redirect_stdout(self._said.out):
                self._target = pickle.loads(make)()
        except BaseException as error:
            self._broken = self._failed(error)
            return self._broken
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        return None, None, None, self._said.taken(), None

    def ask(self, request: bytes) -> Any:
        """Answer a request, the pickled arguments of `do`."""
        self._newest = request
        return self.again()

    def again(self) -> Any:
        """Answer the request of the newest `ask` once more: Ray takes as long for an argument as for the rest."""
        return self.do(*pickle.loads(self._newest))

    def do(self, apart: bool, method: str, *args: Any) -> Any:
        """Call a method; with `apart` it returns (answer, item).

        Returns: the answer; with `apart` the answer with the size of the item, and the item, which is kept here.
        """
        if self._broken is not None:
            return (self._broken, None) if apart else self._broken
        try:
            with redirect_stdout(self._said.out):
                value, item = methodcaller(method, *args)(self._target), None
            if apart:
                value, item = (value[0], *measured(value[1])), value[1]
            timed = self._asked[method] % TIMED == 0
            self._asked[method] += 1
            answer: Any = Mark() if timed else None, value, None, self._said.taken(), Mark() if timed else None
            answer = pack_plain(answer) or answer
        except BaseException as error:  # Ray would silently treat sys.exit() of an environment as a death
            answer, item = self._failed(error), None
        return (answer, item) if apart else answer

    def _failed(self, error: BaseException) -> Any:
        packed = _packed(error, f"{self._name}, process {os.getpid()} on {platform.node()}")
        return None, None, packed, self._said.taken(), None


def versions() -> dict[str, str]:
    """The versions that both ends of a connection must share."""
    found = {"flowrl": _version.__version__, "python": ".".join(platform.python_version_tuple()[:2])}
    for package in ("numpy", "torch"):
        found[package] = metadata.version(package).partition("+")[0]  # "+cpu", "+cu12": the same torch
    return found


def _compare(theirs: dict[str, str], where: str) -> None:
    """Raise if flowrl or Python differ, and warn if numpy or torch do."""
    for name, ours in versions().items():
        if ours == theirs[name]:
            continue
        text = f"{where} has {name} {ours}, its caller has {theirs[name]}"
        if name in ("flowrl", "python"):
            raise ConfigError(f"{text}: install the same on all machines of the cluster")
        log.warning("%s: results may differ in the last bits", text)


def _packed(error: BaseException, where: str) -> bytes:
    """The error with its traceback as a note; a RuntimeError if it cannot be pickled or would end the caller."""
    told = traceback.TracebackException.from_exception(error)
    told.__notes__ = None  # the pickled error keeps them
    error.add_note(f"raised in {where}:\n{''.join(told.format()).rstrip()}")
    try:
        if not isinstance(error, Exception):
            raise TypeError
        packed: bytes = cloudpickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.__notes__ = error.__notes__
        packed = cloudpickle.dumps(other)
    return packed


class _Said(logging.Handler):
    """Collects log records, and lines printed to `out`, until an answer takes them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[tuple[int, str]] = []
        self.out = _Lines(lambda line: self._kept.append((PRINTED, line)))

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append((record.levelno, record.getMessage().rstrip()))

    def taken(self) -> list[tuple[int, str]]:
        kept, self._kept = self._kept, []
        return kept


class _Lines(io.TextIOBase):
    """A standard output that passes each line to a function."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take, self._begun = take, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)
