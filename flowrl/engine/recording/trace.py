"""A trace of a run, which https://ui.perfetto.dev and chrome://tracing open: who worked when, and who waited for whom.

The format is the Trace Event Format of Chrome: complete events ("X") on tracks, and instants ("i").
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from time import perf_counter as clock
from typing import Any

import attrs

from flowrl.engine.meter import traced
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.run import Run
from flowrl.engine.workers.accounts import inline_parts
from flowrl.engine.workers.calls import Call, Prefetch
from flowrl.engine.workers.gather import Gather

#: Most events that are kept, the newest.
MOST = 200_000
#: Most busy spans of operators that a worker sends with an answer, the newest.
MOST_SPANS = 256

#: A process of the trace: the run's own has the threads, each gather or call one with its workers.
_OWN = 1


class Trace:
    """The events of a run from now on; start it before the run is pulled. It changes no result (E4).

    Each busy span of an operator is an event on the track of its thread, and each sleep one on that of the run's own.
    Each request to a worker is one on the track of that worker, from when it could begin until its answer came or the
    next one began. Within it are the busy spans of the operators there, by the clock of this process (E12). New
    weights are an instant there, at the first answer after which a request carries them.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._begun = run, clock()
        self._events: deque[tuple[str, str, float, float, int, int]] = deque(maxlen=MOST)
        self._workers: dict[int, str] = {}
        #: When the newest request on each track had begun, and was done and answered.
        self._newest: dict[tuple[int, int], tuple[float, float, float]] = {}
        kind = traced(self._busy)
        parts = [part for stage in run.stages if isinstance(stage, Gather) for part in inline_parts(stage)]
        for meter in [meter for each in (run, *parts) for meter in each.meters()]:
            meter.__class__ = kind
        run.asleep = _Asleep(run.asleep, self._slept)
        for number, stage in enumerate(run.stages, _OWN + 1):
            if isinstance(stage, Call):
                stage.observer = self._answers(number, stage.meter.path)
            elif isinstance(stage, Gather) and len(stage.inline) < len(stage.workers.members):
                stage.observer = self._answers(number, stage.meter.path, WorkersContract(stage.workers))
                stage.spans = MOST_SPANS

    def _busy(self, path: str, seconds: float) -> None:
        now = clock()
        self._events.append((path, "operator", now - seconds, seconds, _OWN, threading.get_ident()))

    def _slept(self, paths: Iterable[str], seconds: float) -> None:
        now, what = clock(), " or ".join(paths)
        self._events.append((f"waits for {what}", "stall", now - seconds, seconds, _OWN, threading.get_ident()))

    def _answers(
        self, process: int, path: str, workers: WorkersContract | None = None
    ) -> Callable[[int, float, float, Any], None]:
        self._workers[process] = path
        clocks: dict[int, _Clock] = {}
        carried: int | None = None

        def answered(worker: int, asked: float, now: float, noted: Any) -> None:
            nonlocal carried
            begun, ended, spans = noted or (asked, now, ())
            ahead = clocks.setdefault(worker, _Clock()).ahead(asked, begun, ended, now)
            first, done, track = asked, ended - ahead, (process, worker)
            if track in self._newest:  # it takes one request after another
                first = max(asked, self._newest[track][1])
                self._events.append(self._request(track, first))
            self._newest[track] = first, max(first, done), now
            for name, at, seconds in spans:
                start, end = max(at - ahead, first), min(at - ahead + seconds, done)
                self._events.append((name, "operator", start, max(0.0, end - start), *track))
            version = None if workers is None else workers.version
            if version is not None and version != carried:
                carried = version
                self._events.append((f"weights {version}", "weights", clock(), -1.0, process, worker))

        return answered

    def _request(self, track: tuple[int, int], until: float = inf) -> tuple[str, str, float, float, int, int]:
        begun, _, answered = self._newest[track]
        return self._workers[track[0]], "request", begun, max(0.0, min(answered, until) - begun), *track

    def text(self) -> str:
        """The trace as JSON, for a file."""
        idents = {stage.ident: stage.meter.path for stage in self._run.stages if isinstance(stage, Prefetch)}
        names = {_OWN: "flowrl", **{number: f"workers of {path}" for number, path in self._workers.items()}}
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


class _Asleep(dict[tuple[str, ...], float]):
    """Seconds asleep, which tells each sleep."""

    def __init__(self, seconds: dict[tuple[str, ...], float], tell: Callable[[Iterable[str], float], None]) -> None:
        super().__init__(seconds)
        self._tell = tell

    def __setitem__(self, paths: tuple[str, ...], seconds: float) -> None:
        self._tell(paths, seconds - self.get(paths, 0.0))
        super().__setitem__(paths, seconds)
