"""Gather: pulls the part of a plan that runs on workers, which may die, come and go, or be slow.

`GatherSync` and `GatherAsync` differ in which worker's item is next; `Gather` is their base.
"""

from __future__ import annotations

import copy
import heapq
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs

from flowrl.engine.context import Bell
from flowrl.engine.graph import graph
from flowrl.engine.meter import judged
from flowrl.engine.operator import operator, runtime, state
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, WORKED, WorkersContract
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.engine.stages import Stage
from flowrl.engine.workers.calls import Answer, Told
from flowrl.engine.workers.futures import Future, pickling_of, wait
from flowrl.engine.workers.local import InlineWorker, ask, ask_apart
from flowrl.engine.workers.members import LISTED, PartMember, Stragglers, SubplanMembers, died_again, silent_ones
from flowrl.engine.workers.remote import Remote, measured, nbytes_of
from flowrl.errors import WorkerDied

if TYPE_CHECKING:
    from flowrl.engine.plan import ErrorPolicies, Plan

log = logging.getLogger("flowrl")

#: Seconds between two searches for late workers.
LOOK_SECONDS = 1.0
#: Seconds for which closing waits for the workers.
CLOSE_SECONDS = 10.0


@attrs.define(eq=False)
class ItemRequest:
    """A request for one item: which worker was asked, when, and with which version of the weights.

    It is the done-callback of its future, called in whichever thread completes that.
    """

    index: int
    member: PartMember
    version: int
    asked: float
    number: int  # of the gather's requests
    arrived: deque[ItemRequest]
    bell: Bell
    share: float  # of the waits before it
    seconds: float = 0.0

    def __call__(self, _: Future[Any]) -> None:
        self.seconds = clock() - self.asked
        self.arrived.append(self)
        self.bell.ring()


class Arrival(NamedTuple):
    """An answer whose item is not emitted yet. Arrivals sort in the order of emission."""

    version: int
    order: int
    worker: int
    answer: Answer


@operator
class Gather(Stage):
    """Pulls the part of a plan that runs on workers. Subclasses decide when to ask which worker and which item is next.

    It asks a worker again only when the worker's item has been processed (F3). Items stay on their worker if it can
    keep them and the operators that follow take `Remote` items.

    It restarts a worker that died and repeats the request, if `workers` can restart; the others go on meanwhile
    (F10). It asks members that join `workers` too, and no longer asks those that become None.

    State: workers to ask, answers not emitted yet, the rows that each worker holds for later items, and the state of
        the plan's part on each worker.
    Counts: lost_requests, worker_restarts; lost_steps, the steps that were counted and whose rows are lost with the
        worker that held them (F18).
    """

    workers: Any
    todo: deque[int] = state(factory=deque)
    pending: list[Arrival] = state(factory=list)  # a heap
    arrivals: int = state(default=0)  # items received, in `gather_async` only
    ended: set[int] = state(factory=set)
    held: dict[int, int] = state(factory=dict, added=True)  # rows, by worker
    _stragglers: Stragglers = runtime(factory=Stragglers)
    _open: OrderedDict[ItemRequest, Future[Any]] = runtime(factory=OrderedDict)  # oldest first
    _arrived: deque[ItemRequest] = runtime(factory=deque)  # filled by the requests
    _asked: int = runtime(default=0)  # requests so far
    _members: SubplanMembers = runtime()
    _num_joined: int = runtime(default=0)  # members that joined so far, also those removed since
    _late: set[int] = runtime(factory=set)  # workers reported as late in the log
    _next_look: float = runtime(default=0.0)
    _takes_remote: bool = runtime(default=False)
    _unheard: set[int] = runtime(factory=set)  # workers that the state being taken is without
    _digests: dict[int, int] = runtime(factory=dict)  # of the pending items, by `id`, for a journal
    _share: float = runtime(default=0.0)  # of the waits so far that a request would bear which was never answered
    _waited: dict[int, float] = runtime(factory=dict)  # the shares of the answered requests, by worker
    nbytes: dict[int, int] = runtime(factory=dict)  # of the items of each worker elsewhere
    _pickling: dict[int, float] = runtime(factory=dict)  # seconds of the answers of each worker
    accounts: dict[int, Any] = runtime(factory=dict)  # the newest account of each worker, see `accounts`

    def open_part(
        self, plan: Plan, paths: list[str], learners: list[str], on_error: ErrorPolicies, takes_remote: bool
    ) -> None:
        """Open the part of the plan on each worker.

        Args:
            plan, paths, learners: The part; the paths of its operators, and the learners that they train, by name.
            takes_remote: Whether the operators that follow take `Remote` items.
        """
        self._members = SubplanMembers(self.workers, self.meter, plan, paths, learners, on_error, self._lose)
        self._takes_remote = takes_remote
        self._members.each(lambda index: self._members.at(index).opening, "to take their part of the plan")
        for node in graph(plan):
            node.contract.hosted(self.workers)
        self._join()

    def _join(self) -> None:
        """Take in members that were added."""
        added = range(self._num_joined, len(self.workers.members))
        self._num_joined = len(self.workers.members)
        self._stragglers.expect(self._num_joined)
        self._expect(added)

    @property
    def part(self) -> list[str]:
        """Paths of the operators that run on the workers, the source first."""
        return self._members.paths

    # -- decisions of the subclass

    def _expect(self, added: range) -> None:
        """Called when members with these indexes join."""

    def _may_ask(self) -> bool:
        """Whether the first worker of `todo` may be asked now."""
        return bool(self.todo)

    def _next(self) -> Any:
        """The next item that has arrived, or a signal; WORKED with workers in `todo` has `step` ask them and go on."""
        raise NotImplementedError

    def _order(self, index: int) -> int:
        """The rank of a worker's answer among the pending ones."""
        raise NotImplementedError

    def _version(self) -> int:
        """The current version of the weights, if the order of items depends on it, else 0."""
        return 0

    # -- pulling

    def step(self) -> Any:
        if self._num_joined < len(self.workers.members):
            self._join()
        active = self.meter.context.decisions.active
        while True:
            arrived = self._first_arrived()
            if (arrived or active) and (decided := self._decided(self.meter.path, arrived)):
                self._settle(*decided[0])
            elif self._may_ask():
                self._ask(self.todo[0])
                self.todo.popleft()
            elif (item := self._next()) is not WORKED or not self.todo:
                return item

    def _first_arrived(self) -> list[ItemRequest]:
        while self._arrived and self._arrived[0] not in self._open:  # settled, by `drain` or with an error
            self._arrived.popleft()
        return [self._arrived[0]] if self._arrived else []

    def _decided(self, point: str, answered: list[ItemRequest]) -> list[tuple[ItemRequest, bool]]:
        """The requests to settle of those that are answered, each with whether its worker has died.

        The place of a request is how many requests ago it was made.
        """
        seen, decisions = [(each, self._is_death(each)) for each in answered], self.meter.context.decisions
        if not decisions.active:
            return seen
        by_place = {self._asked - request.number: request for request in self._open}
        settles = decisions.settles(point, [(self._asked - each.number, died) for each, died in seen])
        for place, _ in settles:
            if place not in by_place:
                number = self._asked - place + 1
                decisions.depart(self.meter.path, f"has not made its request {number}, which the journal answers")
        return [(by_place[place], died) for place, died in settles]

    def _is_death(self, request: ItemRequest) -> bool:
        error = self._open[request].exception()
        return error is not None and self._members.is_death(error)

    def _emit(self, items: list[Any]) -> Any:
        if not items:
            return WORKED
        self.meter.items += 1
        return items[0]

    def _ask(self, index: int) -> None:
        if self.workers.members[index] is None:
            self._lose(index)
            return
        member = self._members.at(index)
        version, start = self._version(), clock()
        if self._takes_remote and member.stores:
            future = ask_apart(member.worker, "pull_apart", self.meter.path)
        else:
            future = ask(member.worker, "pull_plan", self.meter.path)
        self.meter.busy += clock() - start
        bell = self.meter.context.bell
        request = ItemRequest(index, member, version, start, self._asked, self._arrived, bell, self._share)
        self._asked += 1
        self._open[request] = future  # no field of the request: the future holds the request
        future.add_done_callback(request)

    def _settle(self, request: ItemRequest, died: bool) -> None:
        """Handle the result of a request: an arrival, a death or another error."""
        error = self._failure(request)
        if died and not isinstance(error, WorkerDied):
            error = died_again(request.member.worker)
        if error is not None:
            self.meter.context.decisions.failed(error)
        future = self._open.pop(request)
        self._bear(self._waited, request)
        if error is None:
            self._pickling[request.index] = self._pickling.get(request.index, 0.0) + pickling_of(future)
            self._keep(request, future.result())
            return
        self.todo.append(request.index)  # ask again, also if the run goes on after the error
        if died and isinstance(error, WorkerDied):
            self.meter.context.count("lost_requests")
            self._members.revive(request.index, request.member.worker, error)
        elif judged(error) or self.meter.judge(error, request=request.index) == "raise":
            raise error

    def _lose(self, index: int) -> None:
        """Count what a worker held, which is gone."""
        if lost := self.held.pop(index, 0):
            self.meter.context.count("lost_steps", lost)

    def _failure(self, request: ItemRequest) -> BaseException | None:
        error = self._open[request].exception()
        return None if error is None else self._members.why(request.index, request.member, error)

    def _keep(self, request: ItemRequest, result: Any) -> None:
        """Queue an answer until its turn."""
        answer = Answer(*result) if len(result) == len(Answer._fields) else _apart(request.index, *result)
        told, answer = Told(*answer.told), Answer(*answer[:4])
        item = answer.item
        if told.accounts is not None:
            self.accounts[request.index] = told.accounts
        if told.held is not None:
            self.held[request.index] = told.held
        if told.noted:
            self.meter.context.decisions.heard(request.member.part, told.noted)
            if told.digest is not None and not answer.done and not isinstance(item, Remote):
                self._digests[id(item)] = told.digest
        if not isinstance(request.member.worker, InlineWorker):
            nbytes = item.nbytes if isinstance(item, Remote) else nbytes_of(item)
            self.nbytes[request.index] = self.nbytes.get(request.index, 0) + nbytes
        heapq.heappush(self.pending, Arrival(request.version, self._order(request.index), request.index, answer))
        self._stragglers.answered(request.index, request.seconds)
        when = request.asked + request.seconds
        if (observer := self.meter.context.observer) is not None and not isinstance(
            request.member.worker, InlineWorker
        ):
            version = WorkersContract(self.workers).version
            observer.answered(self.meter.path, request.index, request.asked, when, told.spans, version)
        self._look(when)

    def _receive(self, arrival: Arrival) -> list[Any]:
        """Record an answer's counters; returns its item in a list, [] if it has none."""
        answer = arrival.answer
        self.meter.succeeded(arrival.worker)
        self.meter.context.metrics.merge(answer.counters, answer.records)
        if (digest := self._digests.pop(id(answer.item), None)) is not None:
            self.meter.context.decisions.newest = answer.item, digest
        if answer.done:
            self.ended.add(arrival.worker)
            return []
        return [answer.item]

    # -- reporting

    def _look(self, now: float) -> None:
        """Log workers that are late, each once."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        late = {index: seconds for index, seconds in self._waiting_for(now).items() if index not in self._late}
        if late:
            self._late |= late.keys()
            words = "%s: worker %s has not answered for %.0f s; requests usually take %.2g s"
            log.warning(words, self.meter.path, _listed(late), max(late.values()), self._stragglers.usual)

    def _waiting_for(self, now: float) -> dict[int, float]:
        """Late workers with their seconds without an answer; none if there is only one worker."""
        late: dict[int, float] = {}
        limit = self._stragglers.limit
        for request, future in self._open.items():
            if now - request.asked <= limit:
                break
            waited = now - max(request.asked, request.member.since)
            if waited > limit and not future.done():
                late.setdefault(request.index, waited)
        return late if len(self.workers.members) > 1 else {}

    def _unanswered(self) -> list[ItemRequest]:
        return [request for request, future in self._open.items() if not future.done()]

    def report(self) -> str:
        """Items and requests of each worker, and the late workers, in words."""
        unanswered = Counter(request.index for request in self._unanswered())
        requests = {index: unanswered[index] for index in self._members.present()}
        return self._stragglers.report(requests, self._waiting_for(clock()))

    def fill(self) -> tuple[int, int]:
        return len(self._unanswered()), len(self._members.present())

    def awaits(self) -> list[str]:
        return [self.meter.path]

    def slept(self, seconds: float) -> None:
        """The run has slept, and only an answer would have woken it: the open requests bear even shares (E10)."""
        if self._open:
            self._share += seconds / len(self._open)

    def waited(self) -> dict[int, float]:
        """Seconds that the run has slept for each worker's answers."""
        waited = dict(self._waited)
        for request in self._open:
            self._bear(waited, request)
        return waited

    def _bear(self, waited: dict[int, float], request: ItemRequest) -> None:
        waited[request.index] = waited.get(request.index, 0.0) + self._share - request.share

    def trip(self, index: int) -> float:
        """Mean seconds of a worker's requests, from the question to the answer."""
        return self._stragglers.seconds[index] / max(self._stragglers.items[index], 1)

    def pickling(self, index: int) -> float:
        """Mean seconds in these for which an answer is pickled and unpickled."""
        return self._pickling.get(index, 0.0) / max(self._stragglers.items[index], 1)

    @property
    def inline(self) -> list[InlineWorker]:
        """The members that work in the thread that asks them."""
        return [each for each in self.workers.members if isinstance(each, InlineWorker)]

    def stuck(self) -> list[str]:
        unanswered = self._unanswered()
        if not unanswered:
            return []
        line = f"{self.meter.path}: no answer yet from worker {_listed({each.index for each in unanswered})}"
        if late := self._waiting_for(clock()):
            line += f"; worker {_listed(late)} silent for {max(late.values()):.0f} s"
        return [line]

    # -- state

    def drain(self) -> None:
        """Wait for requests in flight and fetch remote items; errors stay for the next step.

        The state is taken without workers that do not answer; their requests are repeated where it is loaded.
        """
        waited = _listed({request.index for request in self._open})
        requests = [(request.index, future) for request, future in self._open.items()]
        self._unheard = self._members.unheard(requests, f"{self.meter.path}: the answer of worker {waited}")
        answered = [request for request, future in self._open.items() if future.done()]
        decided = self._decided(f"{self.meter.path}/drain", answered)
        heard = {request for request, _ in decided}
        self._unheard |= {request.index for request in self._open if request not in heard}
        for request, died in decided:
            if died or self._open[request].exception() is None:
                self._settle(request, died)
        self.pending = [arrival for arrival in map(self._fetch, self.pending) if arrival is not None]
        heapq.heapify(self.pending)

    def _fetch(self, arrival: Arrival) -> Arrival | None:
        """The arrival with its item fetched; None if the item is lost, as with its machine: asks the worker again."""
        item, lost = arrival.answer.item, ""
        if not isinstance(item, Remote):
            return arrival
        try:
            item = item.fetch()
        except WorkerDied as error:
            lost = str(error)
        if not self.meter.context.decisions.happens(f"{self.meter.path}/lost", bool(lost)):
            return arrival._replace(answer=arrival.answer._replace(item=item))
        log.warning("%s: %s; asking worker %d again", self.meter.path, lost, arrival.worker)
        self.meter.context.count("lost_requests")
        self.todo.append(arrival.worker)
        return None

    def save(self) -> dict[str, dict[str, Any]]:
        states = self._members.each(
            lambda index: ask(self._members.at(index).worker, "save_plan", self.meter.path),
            "to save theirs",
            self._unheard,
        )
        if self._unheard:
            words = "%s: worker %s does not answer, so the state is without it; who loads it begins new episodes there"
            log.warning(words, self.meter.path, _listed(self._unheard))
        saved = super().save()
        own = saved[self.meter.path]
        own["todo"].extend(request.index for request in self._open)  # requests that failed or are unanswered
        own["@workers"] = [states.get(index) for index in range(len(self.workers.members))]
        return saved

    def differs(self, entry: Mapping[str, Any]) -> str:
        """Why a saved state does not fit these workers, in words; "" if it fits."""
        ours, theirs = len(self.workers.members), len(entry.get("@workers", ()))
        return f"{self.meter.path} has {ours} workers, and {theirs} in it" if ours != theirs else ""

    def load(self, saved: Mapping[str, dict[str, Any]]) -> None:
        super().load(saved)
        states = dict(enumerate(saved.get(self.meter.path, {}).get("@workers", [])))

        def request(index: int) -> Future[Any]:
            member = self._members.at(index)
            if states.get(index) is None:  # no member had this index when the state was saved, or it was silent
                return member.opening
            return ask(member.worker, "load_plan", self.meter.path, copy.deepcopy(states[index]))

        held, self.held = self.held, {}  # who dies meanwhile takes its state again
        self._members.each(request, "to take their state")
        self.held = held
        for index in [index for index in held if states.get(index) is None]:
            self._lose(index)

    def close(self) -> None:
        """Close the part on all workers.

        Does not wait for late or silent ones, nor for those that have not opened it yet, nor long for the others.
        """
        members, present = self.workers.members, self._members.present()
        late = self._waiting_for(clock()).keys() | silent_ones(members)
        requests = {index: ask(members[index], "close_plan", self.meter.path) for index in present}
        prompt = [index for index in present if index not in late and not self._members.waits_for_part(index)]
        wait([requests[index] for index in prompt], CLOSE_SECONDS)
        if busy := [index for index in prompt if not requests[index].done()]:
            log.warning("%s: worker %s still works, and closes its part later", self.meter.path, _listed(busy))


@operator
class GatherSync(Gather):
    """Rounds of one item from every worker, in the order of the workers; with `rounds`, emits each round as a list."""

    rounds: bool = attrs.field(default=False, repr=False)

    def schema(self, given: Schema) -> Schema:
        return Schema(of=given, most={"of": _count(self.workers)}) if self.rounds else given

    def _order(self, index: int) -> int:
        return index

    def _next(self) -> Any:
        """The next item of a complete round, or the round as a list."""
        if self._open:
            return WAITING
        if not self.pending:
            self.todo.extend(index for index in self._members.present() if index not in self.ended)
            return WORKED if self.todo else DONE
        count = len(self.pending) if self.rounds else 1
        items = [item for _ in range(count) for item in self._receive(heapq.heappop(self.pending))]
        return self._emit([items] if self.rounds and items else items)


@operator
class GatherAsync(Gather):
    """Items as they are ready, each worker with `in_flight` requests.

    With `max_weight_lag` a request needs a place in the stream, the next one that no other request will take. It is
    made while that place is early enough: at the given `pace`, the weights are then at most `max_weight_lag` versions
    newer than now when the item is trained on (V4). Items leave as they arrive, unless an older request would miss its
    last place by that.

    Where versions come slower than the pace and nobody can go on, the count begins anew (`relent`); where they come
    faster, an item may be too old, and is dropped.

    Counts: discarded_items, those too old, and lost_steps, their rows.
    """

    one_at_a_time: ClassVar[dict[str, Any]] = {"in_flight": 1}
    in_flight: int = 1
    max_weight_lag: int | None = None
    pace: tuple[int, int] = (1, 1)
    emitted: int = state(default=0, added=True)
    #: A place in the stream, and the version of the weights that trains on the item there.
    origin: tuple[int, int] | None = state(default=None, added=True)

    def schema(self, given: Schema) -> Schema:
        return given if given == UNKNOWN else attrs.evolve(given, in_turn=_count(self.workers))

    def _expect(self, added: range) -> None:
        self.todo.extend(index for index in added for _ in range(self.in_flight))

    def _order(self, index: int) -> int:
        self.arrivals += 1
        return self.arrivals - 1

    def _version(self) -> int:
        return 0 if self.max_weight_lag is None else int(self.workers.version)

    def _may_ask(self) -> bool:
        if not self.todo or self.max_weight_lag is None:
            return bool(self.todo)
        self._count_versions()
        return self.emitted + len(self._open) + len(self.pending) <= self._last_place(self._version())

    def _count_versions(self) -> None:
        """Take in versions that the pace did not foresee."""
        version = self._version()
        place, first = self.origin or (self.emitted, version)
        items, versions = self.pace
        unforeseen = version - first - versions * ((self.emitted - place) // items)
        self.origin = place, first + max(unforeseen, 0)

    def _last_place(self, version: int) -> float:
        """The last place in the stream at which an item of this version is not too old when it is trained on."""
        if self.max_weight_lag is None or self.origin is None:
            return inf
        (place, first), (items, versions) = self.origin, self.pace
        return float(place + items * ((version + self.max_weight_lag - first) // versions + 1) - 1)

    def _next(self) -> Any:
        """The item that arrived first or, with `max_weight_lag`, has the oldest weights."""
        if not self.pending:
            return WAITING if self._open else BLOCKED if self.todo else DONE
        if self.max_weight_lag is not None:
            self._count_versions()
        too_old = self._last_place(self.pending[0].version) < self.emitted
        if not too_old and self._urgent(self.pending[0].version):
            return WAITING
        arrival = heapq.heappop(self.pending)
        items = self._receive(arrival)
        self.todo.extend(arrival.worker for _ in items)
        if too_old and items:
            self.meter.context.count("discarded_items")
            if lost := measured(items[0])[0]:
                self.meter.context.count("lost_steps", lost)
            return WORKED
        self.emitted += len(items)
        return self._emit(items)

    def fill(self) -> tuple[int, int]:
        asked, workers = super().fill()
        return asked, workers * self.in_flight

    def _urgent(self, version: float = inf) -> list[int]:
        """The workers of older requests that would be too old if an item of this version left before theirs."""
        if self.max_weight_lag is None:
            return []
        older = [request for request in self._open if request.version < version]
        late = (place for place, each in enumerate(older, self.emitted + 1) if self._last_place(each.version) < place)
        return [] if (last := max(late, default=0)) == 0 else [each.index for each in older[: last - self.emitted]]

    def relent(self) -> bool:
        """Count versions anew, if requests wait for some that will not come; see `Stage.relent`."""
        if self.max_weight_lag is None or not self.todo or self._open or self.pending:
            return False
        # Of the items on their way all but one of a batch may be there already.
        self.origin = self.emitted - self.pace[0] + 1, self._version()
        return True

    def stuck(self) -> list[str]:
        lines = super().stuck()
        if lines and (urgent := self._urgent()):
            lines.append(
                f"{self.meter.path}: nothing leaves before the answer of worker {_listed(set(urgent))}, which would be "
                f"older than max_weight_lag={self.max_weight_lag} else"
            )
        if not lines and self.todo:
            items, versions = self.pace
            lines.append(
                f"{self.meter.path}: no worker is asked before the weights are newer than version {self._version()}: "
                f"max_weight_lag={self.max_weight_lag}, {self.emitted} items were emitted, and {items} make {versions}"
            )
        return lines


def _apart(worker: int, fields: Sequence[Any], item: Remote) -> Answer:
    """The answer with an item that stayed on its worker."""
    return Answer(*fields)._replace(item=attrs.evolve(item, worker=worker))


def _count(workers: Any) -> int:
    """Number of workers, also before they are started."""
    return len(workers.members) or WorkersContract(workers).num_members


def _listed(indexes: Iterable[int]) -> str:
    """The first few numbers, in order.

    >>> _listed({2, 0}), _listed(range(100))
    ('0, 2', '0, 1, 2, 3, 4, 5, 6, 7 and 92 more')
    """
    numbers = sorted(indexes)
    more = f" and {len(numbers) - LISTED} more" if len(numbers) > LISTED else ""
    return ", ".join(map(str, numbers[:LISTED])) + more
