"""Gather: pulls the part of a plan that runs on workers, a bounded number of requests in flight to each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.calls import Receipt
from flowrl.link import judged
from flowrl.operator import operator, state
from flowrl.schema import Schema
from flowrl.stages import DONE, WAITING, WORKED, Signal, Stage
from flowrl.workers import ask, wait_for

if TYPE_CHECKING:
    from flowrl.plan import ErrorPolicies, Plan


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
        return Schema(of=given) if self.rounds else given

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
