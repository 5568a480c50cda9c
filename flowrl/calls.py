"""The Call primitive: work sent to workers, a bounded number of requests in flight."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs

from flowrl.link import judged
from flowrl.operator import operator, state
from flowrl.schema import UNKNOWN, Schema
from flowrl.stages import DONE, WAITING, WORKED, Signal, Stage
from flowrl.workers import ThreadWorker, as_worker, ask, wait_for

if TYPE_CHECKING:
    from flowrl.link import Link
    from flowrl.plan import ErrorPolicies, Plan


class Receipt(NamedTuple):
    """A worker's answer: an item, or `done`, and what was counted and recorded while it was made."""

    item: Any
    done: bool
    counters: dict[str, int]
    records: dict[str, list[Any]]


def _runtime(default: Any = None) -> Any:
    """A field that belongs to one run and to no checkpoint."""
    return attrs.field(default=default, init=False, repr=False)


@operator
class Call(Stage):
    """Sends each item to `worker.method(item)` and emits the results in the order of the items.

    State: requests whose results were not emitted yet; taking a state waits for them.
    """

    one_at_a_time: ClassVar[dict[str, Any]] = {"in_flight": 1, "thread": False}
    worker: Any
    method: str
    in_flight: int = 1
    thread: bool = False
    pending: list[tuple[str, Any]] = state(factory=list)
    _running: deque[tuple[Any, Future[Any]]] = attrs.field(factory=deque, init=False, repr=False)
    _asked: Any = _runtime()

    def bind(self, link: Link, inputs: list[Stage]) -> None:
        super().bind(link, inputs)
        self._asked = as_worker(self.worker, thread=self.thread, name=link.path)

    def step(self) -> Any:
        if self.pending:  # as drain(), a checkpoint or an error left them
            again = [(value, _done(value)) if kind == "result" else self._ask(value) for kind, value in self.pending]
            self._running.extendleft(reversed(again))
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
        if not future.done():
            return WAITING
        self._running.popleft()
        if error := future.exception():
            verdict = self.link.judge(error, item)
            if verdict != "skip":
                self.pending.append(("request", item))
            if verdict == "raise":
                raise error
            return WORKED
        self.link.items += 1
        return future.result()

    def _ask(self, item: Any) -> tuple[Any, Future[Any]]:
        start = clock()
        future = ask(self._asked, self.method, item)
        self.link.busy += clock() - start  # all of the work when the worker is in this thread
        future.add_done_callback(self.link.context.bell.ring)
        return item, future

    def drain(self) -> None:
        wait_for([future for _, future in self._running], f"{self.link.path}: {self.method!r} of its worker")

    def save(self) -> dict[str, dict[str, Any]]:
        saved = super().save()
        for item, future in self._running:
            answer = ("request", item) if future.exception() else ("result", future.result())
            saved[self.link.path]["pending"].append(copy.deepcopy(answer))
        return saved

    def stuck(self) -> list[str]:
        if self._running:
            return [f"{self.link.path}: {self.method!r} was asked {len(self._running)} times, no answer yet"]
        return super().stuck()

    def close(self) -> None:
        if self._asked is not self.worker:
            self._asked.close()


@operator
class Gather(Stage):
    """Pulls the part of a plan that runs on workers.

    `sync`: one item from every worker, in the order of the workers, then the next round; with `rounds` the
    item is the list of a round. Otherwise items come as they are ready, each worker with `in_flight`
    requests. A worker is asked again only when its item has been processed (F3).

    State: requests to send, answers not emitted yet, and the state of the plan's part on each worker.
    """

    one_at_a_time: ClassVar[dict[str, Any]] = {"in_flight": 1}
    workers: Any
    sync: bool = attrs.field(repr=False)  # the verb's name says so
    in_flight: int = 1
    rounds: bool = attrs.field(default=False, repr=False)
    todo: list[int] = state(factory=list)
    pending: list[tuple[int, Receipt]] = state(factory=list)
    ended: list[int] = state(factory=list)
    _running: list[tuple[int, Future[Receipt]]] = attrs.field(factory=list, init=False, repr=False)

    def schema(self, given: Schema) -> Schema:
        if self.rounds:
            return Schema(of=given)
        return given if self.sync or given == UNKNOWN else attrs.evolve(given, in_turn=_count(self.workers))

    def host(self, plan: Plan, paths: list[str], on_error: ErrorPolicies) -> None:
        """Open the workers' part of the plan on each of them."""
        context = self.link.context
        opened = [
            worker.submit("open_plan", self.link.path, plan, paths, context.seeds.seed, index, on_error)
            for index, worker in enumerate(self.workers.members)
        ]
        wait_for(opened, f"{self.link.path}: the workers to take their part of the plan")
        for future in opened:
            future.result()
        self.todo = [index for index in range(len(opened)) for _ in range(self.in_flight)]

    def step(self) -> Any:
        while self.todo:
            self._ask(self.todo[0])
            del self.todo[0]
        for k, (index, future) in enumerate(self._running):
            if future.done() and (error := future.exception()):
                del self._running[k]
                self.todo.append(index)  # asked again, also if the run goes on after the error
                if judged(error) or self.link.judge(error, request=index) == "raise":
                    raise error
                return WORKED
        if signal := self._collect():
            return signal
        answers = self.pending if self.rounds else self.pending[:1]
        self.pending = self.pending[len(answers) :]
        items = [item for answer in answers for item in self._receive(*answer)]
        if not items:
            return WORKED
        self.link.items += 1
        return items if self.rounds else items[0]

    def _collect(self) -> Signal | None:
        """Have something in `pending`, or say why there is nothing."""
        done = [answer for answer in self._running if answer[1].done()]
        if self.sync:
            if len(done) < len(self._running):
                return WAITING
            self.pending += [(index, future.result()) for index, future in done]
            self.pending.sort(key=lambda answer: answer[0])
            self._running.clear()
            if not self.pending:
                self.todo = [index for index in range(len(self.workers.members)) if index not in self.ended]
                return WORKED if self.todo else DONE
        elif not self.pending:
            if not done:
                return WAITING if self._running else DONE
            self._running.remove(done[0])
            self.pending.append((done[0][0], done[0][1].result()))
        return None

    def _ask(self, index: int) -> None:
        start = clock()
        future = ask(self.workers.members[index], "pull_plan", self.link.path)
        self.link.busy += clock() - start
        future.add_done_callback(self.link.context.bell.ring)
        self._running.append((index, future))

    def _receive(self, index: int, receipt: Receipt) -> list[Any]:
        """Take an answer into account; its item, if it has one."""
        self.link.succeeded(index)
        self.link.context.ledger.merge(receipt.counters, receipt.records)
        if receipt.done:
            if index not in self.ended:
                self.ended.append(index)
            return []
        if not self.sync:
            self.todo.append(index)
        return [receipt.item]

    def drain(self) -> None:
        wait_for([future for _, future in self._running], f"{self.link.path}: {len(self._running)} workers")

    def stuck(self) -> list[str]:
        asked = sorted({index for index, future in self._running if not future.done()})
        return [f"{self.link.path}: no answer yet from worker {', '.join(map(str, asked))}"] if asked else []

    def save(self) -> dict[str, dict[str, Any]]:
        futures = [worker.submit("save_plan", self.link.path) for worker in self.workers.members]
        wait_for(futures, f"{self.link.path}: the workers' state")
        saved = super().save()
        own = saved[self.link.path]
        for index, future in self._running:
            if future.exception():
                own["todo"].append(index)
            else:
                own["pending"].append((index, copy.deepcopy(future.result())))
        own["@workers"] = [future.result() for future in futures]
        return saved

    def differs(self, entry: Mapping[str, Any]) -> str:
        """What keeps a saved state from being that of these workers, in words; nothing if it is."""
        ours, theirs = len(self.workers.members), len(entry.get("@workers", ()))
        return f"{self.link.path} has {ours} workers, and {theirs} in it" if ours != theirs else ""

    def load(self, saved: Mapping[str, dict[str, Any]]) -> None:
        super().load(saved)
        states = saved.get(self.link.path, {}).get("@workers", [])
        futures = [
            worker.submit("load_plan", self.link.path, copy.deepcopy(state))
            for worker, state in zip(self.workers.members, states)
        ]
        wait_for(futures, f"{self.link.path}: the workers to take their state")
        for future in futures:
            future.result()

    def close(self) -> None:
        futures = [worker.submit("close_plan", self.link.path) for worker in self.workers.members]
        wait_for(futures, f"{self.link.path}: the workers to close their part of the plan")


@operator
class Prefetch(Stage):
    """Keeps up to `n` items ready. With `thread`, its input runs in a thread of its own meanwhile.

    State: the items that are ready.
    """

    one_at_a_time: ClassVar[dict[str, Any]] = {"n": 1, "thread": False}
    provides = ()
    n: int
    thread: bool = False
    ready_items: deque[Any] = state(factory=deque)
    _job: Future[Signal | None] | None = _runtime()
    _pause: bool = _runtime(False)
    _stuck: bool = _runtime(False)  # the thread could not go on
    _worker: ThreadWorker | None = _runtime()

    def step(self) -> Any:
        signal = self._look() if self.thread else self._fill()
        item = self.ready_items.popleft() if self.ready_items else signal
        if self.thread and self._job is None and not self._stuck:
            self._start()
        if item.__class__ is not Signal:
            self.link.items += 1
        return item

    def _look(self) -> Signal:
        """What the thread has come to."""
        if self._job is not None:
            if not self._job.done():
                return WAITING
            job, self._job = self._job, None
            self._stuck = job.result() is not None  # raises what the thread raised
            return WORKED
        if self._stuck:  # since the thread looked things may have changed, so this one looks again
            item = self.inputs[0].step()
            if item.__class__ is not Signal:
                self.ready_items.append(item)
            elif item is not WORKED:
                return item
            self._stuck = False
        return WAITING

    def _start(self) -> None:
        if self._worker is None:
            self._worker = ThreadWorker(self, self.link.path)
        self._job = self._worker.submit("_fill")
        self._job.add_done_callback(self.link.context.bell.ring)

    def _fill(self) -> Signal | None:
        """Pull until there are `n` items; the signal that ended it early, or None."""
        while len(self.ready_items) < self.n and not self._pause:
            item = self.inputs[0].step()
            if item.__class__ is not Signal:
                self.ready_items.append(item)
                self.link.context.bell.ring()
            elif item is not WORKED or not self.thread:
                return item
        return None

    def drain(self) -> None:
        if self._job is not None:
            self._pause = True
            try:
                wait_for([self._job], f"{self.link.path}: its thread")
            finally:
                self._pause = False  # the run may go on although its state was not to be had

    def stuck(self) -> list[str]:
        return super().stuck() or ([f"{self.link.path}: its thread works"] if self._job is not None else [])

    def close(self) -> None:
        self._pause = True
        if self._worker is not None:
            self._worker.close()


def _count(workers: Any) -> int:
    """How many there are, or will be once they are started."""
    return len(workers.members) or getattr(workers, "num_workers", 0) or 1


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
