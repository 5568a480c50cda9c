"""A trace of a run, which https://ui.perfetto.dev and chrome://tracing open: who worked when, and who waited for whom.

The format is the Trace Event Format of Chrome: complete events ("X") on tracks, and instants ("i").
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter as clock
from typing import Any

import attrs

from flowrl.engine.protocols import Observer
from flowrl.engine.run import Run
from flowrl.engine.workers.calls import Prefetch
from flowrl.engine.workers.subplan import BusySpans

#: Most events that are kept, the newest.
MOST = 200_000
#: Most busy spans of operators that a worker sends with an answer, the newest.
MOST_SPANS = 256

#: A process of the trace: the run's own has the threads, each gather or call one with its workers.
_OWN = 1


class Trace(Observer):
    """The events of a run, as `plan.run(observer=Trace())`. It changes no result (E4).

    Each busy span of an operator is an event on the track of its thread, and each sleep one on that of the run's own.
    Each request to a worker is one on the track of that worker, from when it could begin until its answer came or the
    next one began. Within it are the busy spans of the operators there, by the clock of this process (E12). New
    weights are an instant there, at the first answer after which a request carries them.
    """

    def __init__(self) -> None:
        self._begun = clock()
        self._events: deque[tuple[str, str, float, float, int, int]] = deque(maxlen=MOST)
        self._workers: dict[str, int] = {}  # the process of each operator that asks some
        self._clocks = defaultdict[tuple[int, int], _Clock](lambda: _Clock())
        self._versions: dict[int, int | None] = {}  # of the newest weights, by process
        #: When the newest request on each track had begun, and was done and answered.
        self._newest: dict[tuple[int, int], tuple[float, float, float]] = {}

    def opened(self) -> None:
        self._begun = clock()

    def busy(self, path: str, seconds: float) -> None:
        now = clock()
        self._events.append((path, "operator", now - seconds, seconds, _OWN, threading.get_ident()))

    def slept(self, paths: Sequence[str], seconds: float) -> None:
        now, what = clock(), " or ".join(paths)
        self._events.append((f"waits for {what}", "stall", now - seconds, seconds, _OWN, threading.get_ident()))

    def part(self, *, inline: bool) -> Observer:
        return _Busy(self.busy) if inline else BusySpans(MOST_SPANS)

    def answered(
        self, path: str, worker: int, asked: float, answered: float, spans: Any = None, version: int | None = None
    ) -> None:
        process = self._workers.setdefault(path, _OWN + 1 + len(self._workers))
        track, (begun, ended, told) = (process, worker), spans or (asked, answered, ())
        ahead = self._clocks[track].ahead(asked, begun, ended, answered)
        first, done = asked, ended - ahead
        if track in self._newest:  # it takes one request after another
            first = max(asked, self._newest[track][1])
            self._events.append(self._request(track, first))
        self._newest[track] = first, max(first, done), answered
        for name, at, seconds in told:
            start, end = max(at - ahead, first), min(at - ahead + seconds, done)
            self._events.append((name, "operator", start, max(0.0, end - start), *track))
        if version is not None and version != self._versions.get(process):
            self._versions[process] = version
            self._events.append((f"weights {version}", "weights", clock(), -1.0, process, worker))

    def _request(self, track: tuple[int, int], until: float = inf) -> tuple[str, str, float, float, int, int]:
        begun, _, answered = self._newest[track]
        name = next(path for path, process in self._workers.items() if process == track[0])
        return name, "request", begun, max(0.0, min(answered, until) - begun), *track

    def text(self, run: Run) -> str:
        """The trace of the run as JSON, for a file."""
        idents = {stage.ident: stage.meter.path for stage in run.stages if isinstance(stage, Prefetch)}
        names = {_OWN: "flowrl", **{number: f"workers of {path}" for path, number in self._workers.items()}}
        events: list[dict[str, Any]] = [_named("process_name", pid, 0, name) for pid, name in names.items()]
        threads: dict[tuple[int, int], int] = {}
        for name, kind, begun, seconds, pid, ident in [*self._events, *map(self._request, self._newest)]:
            if (pid, ident) not in threads:
                threads[pid, ident] = tid = len(threads) + 1
                thread = f"worker {ident}" if pid != _OWN else "driver"
                thread = f"thread of {idents[ident]}" if pid == _OWN and ident in idents else thread
                events.append(_named("thread_name", pid, tid, thread))
            event = {"name": name, "cat": kind, "ts": 1e6 * (begun - self._begun), "pid": pid}
            event |= {"tid": threads[pid, ident]}
            events.append(event | ({"ph": "X", "dur": 1e6 * seconds} if seconds >= 0 else {"ph": "i", "s": "t"}))
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


@attrs.define
class _Clock:
    """What the requests so far say of a worker's clock: that it is ahead of this one by a number between two bounds."""

    low: float = -inf
    high: float = inf

    def ahead(self, asked: float, begun: float, ended: float, answered: float) -> float:
        """The middle. A request began no earlier than it was made, and ended no later than it was answered."""
        low, high = ended - answered, begun - asked
        self.low, self.high = max(self.low, low), min(self.high, high)
        if self.low > self.high:  # another clock, or one that drifts
            self.low, self.high = low, high
        return (self.low + self.high) / 2


@attrs.define
class _Busy(Observer):
    """Of a part of the plan in the thread that asks for it: its operators alone, as its run never sleeps there."""

    tell: Callable[[str, float], None]

    def busy(self, path: str, seconds: float) -> None:
        self.tell(path, seconds)
