"""The parts of a run that its operators share: counters with units, records, random streams and the bell."""

from __future__ import annotations

import copy
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.protocols import Decisions, Observer
from flowrl.engine.seeds import SeedTree
from flowrl.errors import PlanError
from flowrl.saved import Saved

if TYPE_CHECKING:
    import numpy as np

    from flowrl.engine.stages import Stage

#: Number of newest values kept of each record between two reports, so that records are bounded (F7).
RECORD_LIMIT = 10_000

#: Most seconds of one sleep: timeouts cannot be infinite.
LONGEST_WAIT = 86_400.0


class Bell:
    """The one object a run sleeps on: every future that completes rings it, from whichever thread.

    A signal handler may ring it too; with a `threading.Event`, whose lock is not reentrant, that could deadlock.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._rung = False

    def ring(self, _future: object = None) -> None:
        if not self._rung:
            self._rung = True
            self._rings.put(None)

    def wait(self, seconds: float) -> bool:
        """Sleep until rung, at most `seconds` and `LONGEST_WAIT`; returns whether the bell rang."""
        try:
            self._rings.get(timeout=min(seconds, LONGEST_WAIT))
        except queue.Empty:
            return False
        # Before the next step looks at its futures, so that a ring during that step is not lost.
        self._rung = False
        return True


@attrs.define(slots=False, eq=False)
class Metrics:
    """Counters and records of a run. Counters have one unit each (F12): env_steps, sampled, trained, updates ..."""

    counters: dict[str, int] = attrs.field(factory=dict)
    records: dict[str, deque[Any]] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)

    def count(self, unit: str, n: int = 1) -> None:
        with self._lock:  # prefetch threads count too
            self.counters[unit] = self.counters.get(unit, 0) + n

    def record(self, name: str, *values: Any) -> None:
        with self._lock:
            self._keep(name, values)

    def _keep(self, name: str, values: Iterable[Any]) -> None:
        if (kept := self.records.get(name)) is None:
            kept = self.records[name] = deque(maxlen=RECORD_LIMIT)
        kept.extend(values)

    def drain(self, name: str) -> list[Any]:
        """Remove and return the values recorded under a name."""
        with self._lock:
            return list(self.records.pop(name, ()))

    def merge(self, counters: Mapping[str, int], records: Mapping[str, list[Any]]) -> None:
        """Add a worker's counters and records."""
        with self._lock:
            for unit, n in counters.items():
                self.counters[unit] = self.counters.get(unit, 0) + n
            for name, values in records.items():
                self._keep(name, values)

    def take(self) -> tuple[dict[str, int], dict[str, list[Any]]]:
        """Remove and return all counters and records; a worker sends them with an item."""
        with self._lock:
            counters, records = self.counters, self.records
            self.counters, self.records = {}, {}
        return counters, {name: list(values) for name, values in records.items()}

    def state_dict(self) -> dict[str, Any]:
        records = {name: list(values) for name, values in self.records.items()}
        return {"counters": dict(self.counters), "records": copy.deepcopy(records)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, "the saved counters")
        counters, records = saved.get("counters", dict[str, int]), saved.get("records", dict[str, list[Any]])
        self.counters.clear()
        self.records.clear()
        self.merge(counters, copy.deepcopy(records))


@attrs.define
class Stopwatch:
    """Seconds that a run has been open: those of evaluation, and the others, which are training's.

    `earlier_training` and `earlier_evaluation` are those before a resume, `since_open` is training's since then.
    """

    earlier_training: float = 0.0
    earlier_evaluation: float = 0.0
    _opened: float = attrs.field(factory=lambda: clock(), init=False)
    _evaluated: float = attrs.field(default=0.0, init=False)
    warned: bool = attrs.field(default=False, init=False)  #: of the share of evaluation

    @property
    def seconds(self) -> float:
        return self.training + self.evaluation

    @property
    def training(self) -> float:
        return self.earlier_training + self.since_open

    @property
    def evaluation(self) -> float:
        return self.earlier_evaluation + self._evaluated

    @property
    def since_open(self) -> float:
        return clock() - self._opened - self._evaluated

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the seconds of the block as evaluation's."""
        begun = clock()
        try:
            yield
        finally:
            self._evaluated += clock() - begun


@attrs.define(slots=False, eq=False)
class Context:
    """An operator's view of its run. Outside a run, an operator has a small one of its own.

    `path` names the operator; its random streams depend only on the run's seed and this path, not on the rest
    of the plan (D6). `worker` is the worker that runs this part of the plan, None in the driver. `learner` names the
    learner that the operator trains, "" unless the plan has several; `learns` says whether any operator declares what
    it learns. `bounds` are pairs of a counter and a number of it, such as those of the budget: a report follows as soon
    as one is reached. `stages` are those of the run, for operators only: a resource outlives the run. `decisions`
    answers who looks whether something has arrived, see `flowrl.engine.recording.journal`; `observer` listens.
    """

    path: str = ""
    metrics: Metrics = attrs.field(factory=Metrics)
    seeds: SeedTree = attrs.field(factory=SeedTree)
    bell: Bell = attrs.field(factory=Bell)
    watch: Stopwatch = attrs.field(factory=Stopwatch)
    worker: Any = None
    learner: str = ""
    learns: bool = False
    bounds: set[tuple[str, float]] = attrs.field(factory=set)
    stages: Sequence[Stage] = ()
    decisions: Decisions = attrs.field(factory=Decisions)
    observer: Observer | None = None

    def __reduce__(self) -> tuple[type[Context], tuple[str]]:
        return Context, (self.path,)  # an operator sent to another process has no run there until one opens

    def at(self, path: str, learner: str = "", stages: Sequence[Stage] = ()) -> Context:
        """The same run, seen by the operator at another path, or by a resource of that name."""
        return attrs.evolve(self, path=path, learner=learner, stages=stages)

    @property
    def counters(self) -> dict[str, int]:
        return self.metrics.counters

    def count(self, unit: str, n: int = 1) -> None:
        """Add to a counter of the run, in its unit."""
        self.metrics.count(unit if unit.__class__ is str else _text(unit), n)

    def record(self, name: str, *values: Any) -> None:
        """Keep values for the next report, at most `RECORD_LIMIT` of a name."""
        self.metrics.record(_text(name), *values)

    def learned(self, counters: Mapping[str, int], records: Mapping[str, list[Any]], learner: str = "") -> None:
        """Add the counters and records of learning. Of several learners, each counts under its own name too, such as
        `updates/dqn`, and records under its own name only; `learner` is that name where an operator trains several."""
        if learner := learner or self.learner:
            counters = {**counters, **{f"{unit}/{learner}": n for unit, n in counters.items()}}
            records = {f"{name}/{learner}": values for name, values in records.items()}
        self.metrics.merge(counters, records)

    def generator(self, name: str = "") -> np.random.Generator:
        """This operator's numpy generator; its state is part of the run's state."""
        return self.seeds.generator(f"{self.path}/{name}")

    def seed(self, name: str = "") -> int:
        """A seed for a generator that the operator or resource itself keeps and saves."""
        return self.seeds.integer(f"{self.path}/{name}")


def _text(name: str) -> str:
    if not isinstance(name, str):
        raise PlanError(f"a name of a counter or record is a text, got {name!r}")
    return name
