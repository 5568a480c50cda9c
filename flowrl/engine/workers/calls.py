"""The Call primitive and prefetch: work for a worker, with a bounded number of requests in flight."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs

from flowrl.engine.operator import operator, runtime, state
from flowrl.engine.protocols import DONE, WAITING, WORKED, CalleeContract, Signal
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.engine.stages import Stage, as_item
from flowrl.engine.workers.futures import Future, completed, pickling_of, wait
from flowrl.engine.workers.local import DRAIN_SECONDS, InlineWorker, ThreadWorker, as_worker, ask, wait_for
from flowrl.engine.workers.remote import Remote, nbytes_of
from flowrl.errors import ValueLost, WorkerDied

if TYPE_CHECKING:
    from flowrl.engine.meter import Meter, SecondsByThread

log = logging.getLogger("flowrl")


class Told(NamedTuple):
    """What a worker tells with an answer of its part of a plan, as far as somebody wants to know.

    Attributes:
        held: The rows that it holds for later items, None if none of its operators ever does.
        accounts: Its newest ones, once in a while: see `flowrl.engine.workers.accounts`.
        noted, digest: What it noted for a journal, and the digest of the item.
        spans: When it began and ended, and what its operators did meanwhile, for a trace.
    """

    held: int | None = None
    accounts: list[Any] | None = None
    noted: bytes = b""
    digest: int | None = None
    spans: tuple[float, float, list[tuple[str, float, float]]] | None = None


class Answer(NamedTuple):
    """A worker's answer: an item, or `done`, with the counters and records of the work for it.

    `told` has the fields of a `Told`; those who ask take them off.
    """

    item: Any
    done: bool
    counters: dict[str, int]
    records: dict[str, list[Any]]
    told: tuple[Any, ...] = ()


@operator
class Call(Stage):
    """Sends each item to `worker.method(item)` and emits the results in the order of the items.

    A result may be an `Answer`: `Call` emits its item and adds its counters and records to the run.
    `flowrl.engine.protocols.CalleeContract` describes the other members of a worker.

    State: requests whose results are not emitted yet; taking a state waits for them, see `CalleeContract.repeats`.
    Counts: lost_requests, those that are repeated, and those whose item is lost with the machine that held it (F10).
    """

    one_at_a_time: ClassVar[dict[str, Any]] = {"in_flight": 1, "thread": False}
    worker: Any
    method: str
    in_flight: int = 1
    thread: bool = False
    pending: list[tuple[str, Any]] = state(factory=list)
    _running: deque[tuple[Any, Future[Any]]] = runtime(factory=deque)
    _unheard: list[Future[Any]] = runtime(factory=list)  # what the last state is without
    #: Requests answered elsewhere, and the seconds for which the worker had one: it takes one after another.
    calls: int = runtime(default=0)
    served: float = runtime(default=0.0)
    _served_until: float = runtime(default=0.0)
    nbytes: int = runtime(default=0)  #: of the items of these requests
    pickling: float = runtime(default=0.0)  #: seconds for which the answers are pickled and unpickled
    _callee: Any = runtime()  # `worker`, or a worker in front of it
    _receive: Callable[[Any], Any] = runtime()
    _contract: CalleeContract = runtime(
        default=attrs.Factory(lambda self: CalleeContract(self.worker), takes_self=True)
    )

    def bind(self, meter: Meter, inputs: list[Stage]) -> None:
        super().bind(meter, inputs)
        self._receive = self._contract.receive
        self._callee = as_worker(self.worker, thread=self.thread, name=meter.path)

    @property
    def takes_remote(self) -> bool:
        return self._contract.takes_remote

    @property
    def requires(self) -> Any:
        return self._contract.requires or ()

    @property
    def learns(self) -> Any:
        return self._contract.learns

    def schema(self, given: Schema) -> Schema:
        return UNKNOWN if self._contract.requires is None else self._contract.schema(given)

    def step(self) -> Any:
        if self.pending:  # left by drain(), a checkpoint or an error
            old = [(value, completed(value)) if kind == "result" else self._ask(value) for kind, value in self.pending]
            self._running.extendleft(reversed(old))
            self.pending.clear()
        signal = WORKED
        while len(self._running) < self.in_flight:
            item = self.inputs[0].step()
            if item.__class__ is Signal:
                signal = item
                break
            self._running.append(self._ask(item))
        if not self._running:
            return signal
        item, future = self._running[0]
        if not self._is_answered(future):
            return WAITING
        error = future.exception()
        if error and not (error := self._contract.recover(error)):
            self._ask_again()
            return WORKED
        self._running.popleft()
        if error is None:
            try:
                answer = self._received(future.result())
            except Exception as unreceived:  # as if the request had failed
                error = unreceived
            else:
                self.meter.items += 1
                return answer
        if isinstance(error, ValueLost):
            self.meter.context.count("lost_requests")
            log.warning("%s: an item is lost: %s", self.meter.path, error)
            return WORKED
        verdict = self.meter.judge(error, item)
        if verdict != "skip":
            self.pending.append(("request", item))
        if verdict == "raise":
            raise error
        return WORKED

    def _is_answered(self, future: Future[Any]) -> bool:
        if isinstance(self._callee, InlineWorker):  # all are, at once
            return True
        lost = (done := future.done()) and isinstance(future.exception(), WorkerDied)
        return self.meter.context.decisions.happens(self.meter.path, done, lost=lost)

    def _received(self, answer: Any) -> Any:
        answer = self._receive(answer)
        if isinstance(answer, Remote) and not self.gives_remote:
            answer = answer.fetch()
        if not isinstance(answer, Answer):
            return as_item(answer)
        item = as_item(answer.item)
        self.meter.context.learned(answer.counters, answer.records)
        return item

    def _ask_again(self) -> None:
        """Repeat the failed requests, in the order of the items."""
        failed = [future.done() and future.exception() is not None for _, future in self._running]
        self.meter.context.count("lost_requests", sum(failed))
        self._running = deque(self._ask(each[0]) if lost else each for each, lost in zip(self._running, failed))

    def _ask(self, item: Any) -> tuple[Any, Future[Any]]:
        start = clock()
        future = ask(self._callee, self.method, item)
        self.meter.busy += clock() - start  # the whole work if the worker is in this thread
        if future.done():
            self.meter.context.bell.ring()
        else:
            future.add_done_callback(partial(self._answered, start, nbytes_of(item)))
        return item, future

    def _answered(self, asked: float, nbytes: int, future: Future[Any]) -> None:
        """The done-callback of a request, called in whichever thread completes it."""
        now = clock()
        if (observer := self.meter.context.observer) is not None:
            observer.answered(self.meter.path, 0, asked, now)
        self.calls += 1
        self.nbytes += nbytes
        self.pickling += pickling_of(future)
        self.served += now - max(asked, self._served_until)
        self._served_until = now
        self.meter.context.bell.ring()

    def drain(self) -> None:
        futures = [future for _, future in self._running]
        if not self._contract.repeats:
            wait_for(futures, f"{self.meter.path}: {self.method!r} of its worker")
        elif self._contract.silent < DRAIN_SECONDS:
            wait(futures, DRAIN_SECONDS)

    def save(self) -> dict[str, dict[str, Any]]:
        saved = super().save()
        self._unheard = [future for _, future in self._running if not future.done()]
        if self._unheard:
            words = "%s: %r does not answer, so the state is without %d answers; who loads it makes the requests again"
            log.warning(words, self.meter.path, self.worker, len(self._unheard))
        for item, future in self._running:
            unanswered = future in self._unheard or future.exception() is not None
            answer = ("request", item) if unanswered else ("result", future.result())
            saved[self.meter.path]["pending"].append(copy.deepcopy(answer))
        return saved

    @property
    def outdated(self) -> bool:
        return any(future.done() for future in self._unheard)

    def fill(self) -> tuple[int, int]:
        return len(self._running), self.in_flight

    def awaits(self) -> list[str]:
        return [self.meter.path] if self._running else super().awaits()

    def stuck(self) -> list[str]:
        if self._running:
            return [f"{self.meter.path}: {self.method!r} was asked {len(self._running)} times, no answer yet"]
        return super().stuck()

    @property
    def runs_here(self) -> bool:
        return isinstance(self._callee, ThreadWorker) and self._callee.runs_here

    def close(self) -> None:
        if self._callee is not self.worker:
            self._callee.close()


@operator
class Prefetch(Stage):
    """Keeps up to `n` items ready. With `thread`, its input runs in a separate thread.

    State: the ready items.
    """

    one_at_a_time: ClassVar[dict[str, Any]] = {"n": 1, "thread": False}
    provides = ()
    n: int
    thread: bool = False
    ready_items: deque[Any] = state(factory=deque)
    _job: Future[Signal | None] | None = runtime()
    _pause: bool = runtime(default=False)
    _ended: bool = runtime(default=False)  # its input, which a row of these need not ask again and again
    _stuck: bool = runtime(default=False)  # the thread could not go on
    _worker: ThreadWorker | None = runtime()
    # Of the thread: its seconds at work and between two jobs, which end when `n` items are ready or the input has none.
    _worked: float = runtime(default=0.0)
    _rests: dict[Signal | None, float] = runtime(factory=dict)  # by the signal that ended the job
    _changed: float = runtime(default=0.0)  # when the last job began or ended, 0 before the first
    _works: bool = runtime(default=False)
    _stopped: Signal | None = runtime()  # the signal that ended the last job
    visits: SecondsByThread | None = runtime()  #: of the reader's thread to the input

    def step(self) -> Any:
        signal = self._look() if self.thread else self._fill()
        item = self.ready_items.popleft() if self.ready_items else signal
        if self.thread and self._job is None and not self._stuck:
            self._start()
        if item.__class__ is not Signal:
            self.meter.items += 1
        return item

    def _look(self) -> Signal:
        """The signal for the state of the thread."""
        if self._job is not None:
            if not self._job.done():
                return WAITING
            job, self._job = self._job, None
            self._stuck = job.result() is not None  # raises what the thread raised
            return WORKED
        if self._stuck:  # its signal may be out of date, so ask the input again in this thread
            item = self.inputs[0].step() if self.visits is None else self.visits.pull(self.inputs[0].step)
            if item.__class__ is not Signal:
                self.ready_items.append(item)
            elif item is not WORKED:
                return item
            self._stuck = False
        return WAITING

    def _start(self) -> None:
        if self._worker is None:
            self._worker = ThreadWorker(self, self.meter.path)
        self._job = self._worker.submit("_work")
        self._job.add_done_callback(self.meter.context.bell.ring)

    def _work(self) -> Signal | None:
        """The job of the thread."""
        began = clock()
        if self._changed:
            self._rests[self._stopped] = self._rests.get(self._stopped, 0.0) + began - self._changed
        self._changed, self._works = began, True
        try:
            self._stopped = self._fill()
            return self._stopped
        finally:
            self._works, self._changed = False, clock()
            self._worked += self._changed - began

    def times(self, now: float) -> tuple[float, float, float]:
        """Seconds of the thread up to now: at work, at rest as `n` items were ready, and as its input had none."""
        rests = dict(self._rests)
        current = now - self._changed if self._changed else 0.0
        if current and not self._works:
            rests[self._stopped] = rests.get(self._stopped, 0.0) + current
        full = rests.pop(None, 0.0)
        return self._worked + (current if self._works else 0.0), full, sum(rests.values())

    def _fill(self) -> Signal | None:
        """Pull until `n` items are ready; returns the signal that ended it early, or None."""
        while len(self.ready_items) < self.n and not self._pause:
            if self._ended:
                return DONE
            item = self.inputs[0].step()
            if item.__class__ is not Signal:
                self.ready_items.append(item)
                self.meter.context.bell.ring()
            elif item is not WORKED or not self.thread:
                self._ended = item is DONE
                return item
        return None

    def drain(self) -> None:
        if self._job is not None:
            self._pause = True
            try:
                wait_for([self._job], f"{self.meter.path}: its thread")
            finally:
                self._pause = False  # the run may go on even if its state could not be taken

    def fill(self) -> tuple[int, int]:
        return len(self.ready_items), self.n

    def awaits(self) -> list[str]:
        return super().awaits() if self._job is None else [self.meter.path]

    def stuck(self) -> list[str]:
        return super().stuck() or ([f"{self.meter.path}: its thread works"] if self._job is not None else [])

    @property
    def runs_here(self) -> bool:
        return self._worker is not None and self._worker.runs_here

    @property
    def ident(self) -> int:
        """The identifier of its thread, 0 if it has none."""
        return 0 if self._worker is None else self._worker.ident

    def close(self) -> None:
        self._pause = True
        if self._worker is not None:
            self._worker.close()
