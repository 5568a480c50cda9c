"""Accounts: where the seconds of one thread or process went, as its stages measured them.

Each second of a thread is in one place: an operator was busy, or the thread waited, or else the engine worked. An
operator's seconds are its own, without those of the operators that it pulls and without the time asleep. A worker sends
its account with its answers; `flowrl.engine.recording.ledger` has those of a whole run.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.merge import Fork
from flowrl.engine.meter import Meter, SecondsByThread
from flowrl.engine.protocols import PartHost
from flowrl.engine.stages import Stage
from flowrl.engine.workers.calls import Call, Prefetch
from flowrl.engine.workers.gather import Gather

if TYPE_CHECKING:
    from flowrl.engine.run import Run

#: What a thread waits for, beside operators.
OPENING, OUTSIDE, SAVING = "opening the run", "outside the run", "taking the state"
NO_REQUEST, FULL, NO_INPUT = "no request", "its reader", "its input"
#: The name of the account of the thread that pulls the run.
DRIVER = "driver"


@attrs.define
class Account:
    """The seconds of one thread or process: those in `busy` and `waits`, and the rest of `wall`, which is the engine's.

    Attributes:
        name: `DRIVER`, or what it is and of which operator.
        kind: "driver", "thread" (of a prefetch), "callee" (of a call) or "worker" (of a gather).
        wall: Seconds since it began.
        busy: Seconds by the path of the operator.
        waits: Seconds by what it waited for.
        items, starved, blocked: Of its operators, by path: items, and seconds for which one waited for an item that was
            not there, or held one; the thread may have worked meanwhile.
        by_worker: Its seconds in `waits` for workers alone, by operator: those of each worker (E10).
        stage: Path of the operator that it works for; "" for the driver.
        by: Name of the account whose thread pulls that operator.
        calls: Requests that it has answered, or items that it has made.
        trips: Seconds of these requests from the question to the answer, as the one who asked measured them.
        pickling: Seconds in these for which the answers were pickled and unpickled, as far as that is known.
        nbytes: Bytes of the columns of its items, also of those that stay where they are; of a callee's input.
        where: Host, process and thread.
    """

    name: str
    kind: str
    wall: float = 0.0
    busy: dict[str, float] = attrs.field(factory=dict)
    waits: dict[str, float] = attrs.field(factory=dict)
    stage: str = ""
    by: str = ""
    calls: float = 0
    trips: float = 0.0
    pickling: float = 0.0
    nbytes: int = 0
    where: tuple[str, int, int] = ("", 0, 0)
    items: dict[str, int] = attrs.field(factory=dict)
    starved: dict[str, float] = attrs.field(factory=dict)
    blocked: dict[str, float] = attrs.field(factory=dict)
    by_worker: dict[str, dict[str, float]] = attrs.field(factory=dict)

    @property
    def worked(self) -> float:
        """Seconds in which it did not wait."""
        return self.wall - sum(self.waits.values())

    @property
    def engine(self) -> float:
        """Seconds of the engine itself: of pulling, merging, asking and counting."""
        return self.worked - sum(self.busy.values())

    def add(self, busy: Mapping[str, float] | None = None, waits: Mapping[str, float] | None = None) -> None:
        """Add seconds of operators and of waits."""
        _more(self.busy, busy or {})
        _more(self.waits, waits or {})

    def add_operators(self, other: Account) -> None:
        """Add what another account has of operators."""
        for mine, others in zip(self._of_operators, other._of_operators):
            _more(mine, others)

    def add_meters(self, meters: Iterable[Meter]) -> None:
        """Add what meters have."""
        for meter in meters:
            measured = meter.busy, meter.items, meter.starved, meter.blocked
            for mine, value in zip(self._of_operators, measured):
                _more(mine, {meter.path: value})

    @property
    def _of_operators(self) -> tuple[dict[str, Any], ...]:
        return self.busy, self.items, self.starved, self.blocked

    def since(self, earlier: Account) -> Account:
        """The part of it after an earlier one."""
        return attrs.evolve(
            self,
            wall=self.wall - earlier.wall,
            busy=less(self.busy, earlier.busy),
            waits=less(self.waits, earlier.waits),
            items=less(self.items, earlier.items),
            starved=less(self.starved, earlier.starved),
            blocked=less(self.blocked, earlier.blocked),
            by_worker={path: less(each, earlier.by_worker.get(path, {})) for path, each in self.by_worker.items()},
            calls=self.calls - earlier.calls,
            trips=self.trips - earlier.trips,
            pickling=self.pickling - earlier.pickling,
            nbytes=self.nbytes - earlier.nbytes,
        )


def _more(sums: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0) + value


def less(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The later numbers without the earlier ones, by name."""
    return {name: value - earlier.get(name, 0) for name, value in later.items()}


def accounts(run: Run) -> list[Account]:
    """The accounts of a run, of a whole plan or of a worker's part; first that of the thread that pulls it."""
    now = clock()
    driver = Account(DRIVER, "driver", now - run.started, where=_here())
    driver.waits = {" or ".join(paths): seconds for paths, seconds in run.asleep.items()}
    driver.waits[OPENING] = run.opened - run.started
    driver.waits[SAVING] = run.saving
    driver.waits[OUTSIDE] = now - run.opened - run.inside - run.saving
    homes = home_of_each(run.root)
    threads = {id(stage): _thread(stage, now) for stage in run.stages if isinstance(stage, Prefetch) and stage.thread}
    others: list[Account] = []

    def of(stage: Stage) -> Account:
        home = homes.get(id(stage))
        return driver if home is None else threads[id(home)]

    for stage in run.stages:
        mine = of(stage)
        stage.settle(now)
        mine.add_meters(stage.meters())
        if id(stage) in threads:
            threads[id(stage)].by = mine.name
        elif isinstance(stage, Call) and stage.calls:
            others.append(_callee(stage, mine, now - run.opened))
        elif isinstance(stage, Gather):
            others += _of_parts(stage, mine) + _workers(stage, mine)
    by_thread = {stage.ident: threads[id(stage)] for stage in run.stages if isinstance(stage, Prefetch) and stage.ident}
    for stage in run.stages:
        if isinstance(stage, Fork):
            for ident, seconds in stage.queued.items():
                by_thread.get(ident, driver).add(waits={stage.meter.path: seconds})
        if isinstance(stage, Fork | Prefetch) and stage.visits is not None:
            home = of(stage) if isinstance(stage, Fork) else threads[id(stage)]
            for ident, busy in stage.visits.busy.items():
                if (visitor := by_thread.get(ident, driver)) is not home:
                    visitor.add(busy)
                    home.add({path: -seconds for path, seconds in busy.items()})
    return [driver, *threads.values(), *others]


def home_of_each(root: Stage) -> dict[int, Prefetch | None]:
    """The prefetch in whose thread a stage is usually pulled, None for the run's own thread, by `id` of the stage."""
    homes: dict[int, Prefetch | None] = {}
    ahead: list[tuple[Stage, Prefetch | None]] = [(root, None)]
    while ahead:
        stage, home = ahead.pop()
        if id(stage) not in homes:
            homes[id(stage)] = home
            inner = stage if isinstance(stage, Prefetch) and stage.thread else home
            ahead += [(upstream, inner) for upstream in stage.inputs]
        elif home is not homes[id(stage)] and isinstance(stage, Fork) and stage.visits is None:
            stage.visits = SecondsByThread(_pulled_by(stage))
    return homes


def watch_visits(stages: Iterable[Stage], root: Stage) -> None:
    """Prepare the stages that several threads may pull to tell whose the seconds are."""
    if any(stage.thread for stage in stages):
        home_of_each(root)
        for stage in stages:
            if isinstance(stage, Prefetch) and stage.thread:
                stage.visits = SecondsByThread(_pulled_by(stage))


def _pulled_by(stage: Stage) -> list[Meter]:
    """The operators that a step of a stage's input runs in the same thread."""
    meters: dict[int, Meter] = {}
    ahead, seen = list(stage.inputs), set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            meters |= {id(meter): meter for meter in each.meters()}
            ahead += [] if isinstance(each, Prefetch) and each.thread else each.inputs
    return list(meters.values())


def _thread(stage: Prefetch, now: float) -> Account:
    """The account of the thread of a prefetch, without its operators."""
    account = Account(f"thread of {stage.meter.path}", "thread", stage=stage.meter.path, calls=stage.meter.items)
    worked, full, without = stage.times(now)
    account.waits, account.wall = {FULL: full, NO_INPUT: without}, worked + full + without
    account.where = (*_here()[:2], stage.ident)
    return account


def _callee(stage: Call, by: Account, wall: float) -> Account:
    path = stage.meter.path
    waits = {NO_REQUEST: wall - stage.served}
    account = Account(f"worker of {path}", "callee", wall, {path: stage.served}, waits, path, by.name, stage.calls)
    return attrs.evolve(account, pickling=stage.pickling, nbytes=stage.nbytes)


def _of_parts(stage: Gather, mine: Account) -> list[Account]:
    """Move the seconds of parts that run in the thread that asks for them from the gather to their operators."""
    others = []
    for part in inline_parts(stage):
        here, *apart = accounts(part)
        waits = {what: s for what, s in here.waits.items() if what not in (OPENING, OUTSIDE, SAVING)}
        mine.add_operators(here)
        mine.add(waits=waits)
        mine.add({stage.meter.path: -part.inside})
        others += [attrs.evolve(each, name=f"{each.name} of {part.context.path}") for each in apart]
    return others


def _workers(stage: Gather, by: Account) -> list[Account]:
    """The accounts of the processes of a gather's workers; several may share one, which is named after the first."""
    path, processes = stage.meter.path, dict[Any, list[tuple[int, list[Account]]]]()
    if path in by.waits:
        by.by_worker[path] = {f"worker {index}": seconds for index, seconds in sorted(stage.waited().items())}
    inline = {id(each) for each in stage.inline}
    for index, sent in sorted(stage.accounts.items()):
        if id(stage.workers.members[index]) not in inline:
            processes.setdefault(sent[0].where, []).append((index, sent))
    found = []
    for where, members in processes.items():
        mains = [sent[0] for _, sent in members]
        whole = Account(f"worker {members[0][0]} of {path}", "worker", stage=path, by=by.name, where=where)
        whole.wall = max(main.wall for main in mains)
        worked = 0.0
        for index, (main, *apart) in members:
            waits = {what: s for what, s in main.waits.items() if what not in (OPENING, OUTSIDE, SAVING)}
            whole.add_operators(main)
            whole.add(waits=waits)
            whole.calls += main.calls
            whole.trips += main.calls * stage.trip(index)  # of the same requests, though the account may be older
            whole.pickling += main.calls * stage.pickling(index)
            whole.nbytes += stage.nbytes.get(index, 0)
            worked += main.worked + sum(waits.values())
            found += [attrs.evolve(each, name=f"{each.name}, worker {index} of {path}") for each in apart]
        whole.waits[NO_REQUEST] = whole.wall - worked
        found.append(whole)
    return found


def inline_parts(stage: Gather) -> Sequence[Run]:
    """The parts of a plan that run in the thread that asks for them."""
    hosts = [member.target for member in stage.inline if isinstance(member.target, PartHost)]
    parts = [host.parts.get(stage.meter.path) for host in hosts]
    return [part for part in parts if part is not None]


def _here() -> tuple[str, int, int]:
    return socket.gethostname(), os.getpid(), threading.get_ident()
