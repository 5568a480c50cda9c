"""ReplayActors: several stores as one, each in this process or in a separate actor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.replay.base import Store
from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.data.replay.shard import Shard, ShardCounts, ShardRecord, ShardRequest
from flowrl.data.steps import is_fragment
from flowrl.data.trajectories import of_seats
from flowrl.data.types import Array, Floats, Index
from flowrl.engine.context import Context
from flowrl.engine.schema import Schema
from flowrl.engine.workers.futures import Future, wait
from flowrl.engine.workers.local import DRAIN_SECONDS, WORKER_TIMEOUT, ask, wait_for
from flowrl.engine.workers.members import silent_ones
from flowrl.engine.workers.remote import Remote, measured
from flowrl.errors import CheckpointError, SchemaError, Stalled, WorkerDied
from flowrl.saved import Saved, load_whole

if TYPE_CHECKING:
    from flowrl.actors.resources import Resources


log = logging.getLogger("flowrl")

_COUNTS = ("inserts", "samples", "outdated", "numbers")


class ReplayActors(Store):
    """Several stores, the shards, with the interface of one.

    Items go to the shards in turn; fragments `[T, N, ...]` whose rows must be consecutive go to the shard of their
    worker, `worker % num_shards`. Each batch comes from one shard, in turn, with a column `shard` (int64), by which
    `update_priorities` finds the shard. Priorities and weights are relative to the shard. A shard that cannot provide a
    batch is asked again after the next addition to it.

    A shard that dies is replaced by an empty one; its rows are lost, the other shards and all counts stay.

    Args:
        make: Factory of a shard's store, called where the shard lives. The store has no limiter, and the capacity of
            one shard.
        num_shards: Number of shards.
        remote: True makes each shard a Ray actor, which works in parallel to the run; False keeps all in this process,
            with exact results.
        limiter: Keeps drawn and added rows of all shards in a ratio.
        max_items, max_bytes: Limits of the items on their way to the shards; a larger item goes alone.
        max_restarts, address, resources, worker_timeout: See `flowrl.actors.actors.Actors`.

    Counts: lost_rows (rows of a dead shard, or on their way to it), lost_requests (requests that it did not answer),
        replay_restarts.
    State: the shards. Taking it waits for outstanding requests.
    Raises: ValueError for an invalid setting; WorkerDied if a shard dies more than `max_restarts` times.

    >>> from flowrl.data import ReplayBuffer
    >>> shards = ReplayActors(lambda: ReplayBuffer(100, seed=0), num_shards=2)
    >>> for obs in ([1, 2], [3, 4], [5, 6]):
    ...     shards.add(Batch(obs=obs))
    >>> shards
    2 shards of ReplayBuffer, 6 of 200 rows
    >>> [(drawn.shard.tolist(), drawn.obs.tolist()) for drawn in (shards.sample(2), shards.sample(2))]
    [([0, 0], [6, 5]), ([1, 1], [4, 4])]
    """

    def __init__(
        self,
        make: Callable[[], Store],
        num_shards: int,
        *,
        remote: bool = False,
        limiter: RateLimiter | None = None,
        max_items: int = 16,
        max_bytes: int = 64 * 2**20,
        max_restarts: int = 10,
        address: str | None = None,
        resources: Resources | None = None,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        for name, value in (("num_shards", num_shards), ("max_items", max_items), ("max_bytes", max_bytes)):
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        super().__init__(limiter, None)
        like = make()
        if like.limiter is not None:
            raise ValueError(
                "a shard's store has a limiter of its own, which knows nothing of the other shards: give it to "
                "ReplayActors(..., limiter=...), which counts the rows of all"
            )
        from flowrl.actors.actors import Actors

        self._like, self.num_shards, self.remote = like, num_shards, remote
        self.max_items, self.max_bytes = max_items, max_bytes
        self._actors = Actors(
            [partial(Shard, make)] * num_shards,
            kind="replay",
            remote=remote,
            address=address,
            resources=resources,
            max_restarts=max_restarts,
            worker_timeout=worker_timeout,
        )
        self.requires, self.tracked, self.takes_padding = like.requires, like.tracked, like.takes_padding
        self.in_order, self.by_priority, self.streams = like.in_order, like.by_priority, num_shards
        self._records = [ShardRecord(number) for number in range(num_shards)]
        self._numbers = num_shards  # numbers used so far
        self._adds: list[ShardRequest] = []
        self._draws: list[ShardRequest] = []
        self._updates: list[ShardRequest] = []
        self._routes = ShardRouting(num_shards, in_order=like.in_order)
        self._draw_turn = 0
        self._inserts = self._samples = self._outdated = 0
        self._context = Context()

    def kept_once(self, given: Schema) -> str:
        return self._like.kept_once(given)

    def __repr__(self) -> str:
        where = " on Ray" if self.remote else ""
        kind = type(self._like).__name__
        return f"{self.num_shards} shards{where} of {kind}, {len(self)} of {self.capacity} rows"

    # -- counts, kept here

    @property
    def capacity(self) -> int:
        """The capacity of all shards, in rows."""
        return self.num_shards * self._like.capacity

    @property
    def inserts(self) -> int:
        """Rows ever added, those on their way included."""
        return self._inserts

    @property
    def samples(self) -> int:
        """Rows ever drawn that have arrived."""
        return self._samples

    @property
    def promised(self) -> int:
        """See `Store.promised`."""
        return sum(request.rows for request in self._draws)

    @property
    def rows_of_shards(self) -> list[int]:
        """Rows stored in each shard, when it last reported them."""
        return [record.counts.rows for record in self._records]

    def __len__(self) -> int:
        return sum(self.rows_of_shards)

    def rows_of(self, item: Any) -> int:
        """See `Store.rows_of`."""
        return item.rows if isinstance(item, Remote) else self._like.rows_of(item)

    # -- what can be said before

    @property
    def takes_remote(self) -> bool:
        """See `Store.takes_remote`."""
        return self.remote

    def schema(self, given: Schema) -> Schema:
        """See `Store.schema`."""
        drawn = self._like.schema(given)
        if (place := drawn.columns.get("index")) is None:
            return drawn
        return drawn.having(shard=str(place))

    def declared_rows(self, batch_size: int) -> int:
        """See `Store.declared_rows`."""
        return self._like.declared_rows(batch_size)

    def most_rows(self, batch_size: int) -> int:
        """See `Store.most_rows`."""
        return max(self.declared_rows(batch_size), batch_size * max(record.counts.most for record in self._records))

    # -- when

    def can_insert(self, rows: int) -> bool:
        """See `Store.can_insert`."""
        self._settle()
        return self._may_insert(rows)

    def can_sample(self, batch_size: int) -> bool:
        """See `Store.can_sample`."""
        self._settle()
        return super().can_sample(batch_size)

    def is_full(self, item: Any) -> bool:
        """See `Store.is_full`."""
        self._settle()
        if not self._adds:
            return False
        under_way = sum(request.nbytes for request in self._adds)
        return len(self._adds) >= self.max_items or under_way + _nbytes(item) > self.max_bytes

    def why_insert(self, rows: int) -> str:
        """See `Store.why_insert`."""
        if why := super().why_insert(rows):
            return why
        if not self._adds:
            return ""
        shards = sorted({request.index for request in self._adds})
        size = sum(request.nbytes for request in self._adds) / 1e6
        return (
            f"waits for shard {', '.join(map(str, shards))}: {len(self._adds)} items ({size:.1f} MB) are on their way; "
            f"max_items is {self.max_items}, max_bytes {self.max_bytes / 1e6:.1f} MB"
        )

    def _can_draw(self, batch_size: int) -> bool:
        return any(record.may_give(batch_size) for record in self._records)

    def _why_not(self, batch_size: int) -> str:
        return super()._why_not(batch_size) if not len(self) else "waits for rows: no shard has enough to draw from"

    # -- in

    def add(self, item: Any) -> None:
        """Send rows to their shard, without waiting: ask `is_full` first.

        Raises: like the stores, if the shards are here. The next call raises the error of a remote one.
        """
        with self._lock:
            rows = self.rows_of(item)
            if self.limiter is not None:
                self.limiter.check_insert(rows)
            for index, part in self._routes.parts(item):
                request = self._ask(index, "add", part, rows=self.rows_of(part), nbytes=_nbytes(part))
                self._inserts += request.rows
                request.record.added()
                request.remote = isinstance(part, Remote)
                self._adds.append(request)
            self._settle()

    # -- out

    def ask(self, batch_size: int) -> Future[Any]:
        """Request a batch from the next shard that may provide it; check `can_sample` first."""
        with self._lock:
            if self.limiter is not None:
                self.limiter.check_sample(self.most_rows(batch_size))
            turns = [(self._draw_turn + step) % self.num_shards for step in range(self.num_shards)]
            index = next((turn for turn in turns if self._records[turn].may_give(batch_size)), None)
            if index is None:
                raise ValueError(f"sample({batch_size}) {self._why_not(batch_size)}; ask can_sample() before")
            self._draw_turn = (index + 1) % self.num_shards
            request = self._ask(index, "draw", batch_size, rows=self.most_rows(batch_size))
            request.batch_size = batch_size
            self._draws.append(request)
            return request.future

    def arrived(self, futures: Sequence[Future[Any]]) -> list[Future[Any]]:
        """See `Store.arrived`."""
        requests = [request for request in self._draws if request.future in futures]
        return [request.future for request in self._taken("draws", requests)]

    def answered(self, future: Future[Any]) -> Any:
        """The sample, with the column `shard`; None if the shard had not enough or died."""
        with self._lock:
            request = next(each for each in self._draws if each.future is future)
            self._draws.remove(request)
            if (answer := self._answer(request)) is None:
                request.record.refused(request.batch_size, request.adds)
                return None
            drawn, rows = answer
            self._samples += rows
            if isinstance(drawn, Batch):
                drawn["shard"] = np.full(drawn.shape, request.record.number)
            return drawn

    def sample(self, batch_size: int) -> Any:
        """Draw from the next shard that has enough, and wait for it. In a plan `Replay` does not wait.

        Raises: ValueError if nothing may be drawn, and like the stores; Stalled if a shard does not answer.
        """
        while self.can_sample(batch_size):
            future = self.ask(batch_size)
            wait_for([future], f"{self!r}: a batch")
            if (drawn := self.answered(future)) is not None:
                return drawn
        raise ValueError(f"sample({batch_size}) {self.why_sample(batch_size)}; ask can_sample() before")

    def update_priorities(self, index: Index, generation: Index, priority: Floats, shard: Index | None = None) -> int:
        """Send priorities to the shards `[B]` that the rows came from.

        Returns: the number of dropped priorities known so far, because a row was overwritten or a shard died.

        Raises: SchemaError without `shard`; ValueError like `PrioritizedReplayBuffer.update_priorities`.
        """
        if shard is None:
            raise SchemaError("priorities came without the column 'shard' of the rows that ReplayActors gave")
        with self._lock:
            for number, record in enumerate(list(self._records)):
                mine = np.flatnonzero(shard == record.number)
                if len(mine):
                    of = (np.asarray(column)[mine] for column in (index, generation, priority))
                    self._updates.append(self._ask(number, "update_priorities", *of, rows=len(mine)))
            self._outdated += int(np.isin(shard, [record.number for record in self._records], invert=True).sum())
            self._settle()
            outdated, self._outdated = self._outdated, 0
            return outdated

    # -- requests

    def _ask(self, index: int, method: str, *args: Any, rows: int = 0, nbytes: int = 0) -> ShardRequest:
        record = self._records[index]
        future = ask(self._members[index], method, *args)
        future.add_done_callback(self._ring)
        return ShardRequest(index, record, future, rows, nbytes, record.adds)

    def _ring(self, future: Future[Any]) -> None:
        self._context.bell.ring(future)

    def _settle(self) -> None:
        """Process the answers that have arrived."""
        with self._lock:
            for request in self._taken("adds", self._adds):
                self._adds.remove(request)
                try:
                    counts = self._answer(request)
                except Exception:
                    self._inserts -= request.rows
                    raise
                if counts is None:
                    self._context.count("lost_rows", request.rows)
                else:
                    request.record.counts = ShardCounts(*counts)
            for request in self._taken("updates", self._updates):
                self._updates.remove(request)
                dropped = self._answer(request)
                self._outdated += request.rows if dropped is None else dropped

    def _taken(self, what: str, requests: list[ShardRequest]) -> list[ShardRequest]:
        """The requests that are answered, as far as the run decides so."""
        answered = [(at, each) for at, each in enumerate(requests) if each.future.done()]
        if not self.remote:  # all are, at once
            return [each for _, each in answered]
        seen = [(at, isinstance(each.future.exception(), WorkerDied)) for at, each in answered]
        decisions, point = self._context.decisions, f"{self._context.path}/{what}"
        settled = decisions.settles(point, seen)
        if any(at >= len(requests) for at, _ in settled):
            decisions.depart(point, "has not made a request that the journal answers")
        for at, lost in settled:
            requests[at].lost = lost
        return [requests[at] for at, _ in settled]

    def _answer(self, request: ShardRequest) -> Any:
        """The answer of a shard; None if it died."""
        try:
            answer = request.future.result()
            if request.lost:
                raise WorkerDied(self._actors.name(request.index), "as the journal says")
            return answer
        except WorkerDied as died:
            self._context.count("lost_requests")
            if self._records[request.index] is not request.record:
                pass  # replaced already
            elif request.remote:
                self._adds.append(self._ask(request.index, "counts"))  # did the shard die, or was only the item lost?
            else:
                self._replace(request.index, died)
            return None

    def _replace(self, index: int, died: WorkerDied) -> None:
        """Replace a dead shard by an empty one."""
        record = self._records[index]
        mine = [request for request in self._adds if request.record is record]
        for request in self._taken("answered before", mine):  # it may have answered before its death was noticed
            if not request.lost:
                record.counts = ShardCounts(*request.future.result())
        lost = record.counts.rows
        self._actors.restart(index, died)
        log.warning("%s; it goes on as an empty one, without its %d rows", died, lost)
        self._context.count("lost_rows", lost)
        self._context.count("replay_restarts")
        self._records[index] = ShardRecord(self._numbers)
        self._numbers += 1
        self._start(index)

    def _start(self, index: int) -> ShardRequest:
        record = self._records[index]
        seed = self._context.seed(f"shard {record.number}")
        return ShardRequest(index, record, ask(self._members[index], "start", seed))

    @property
    def _members(self) -> list[Any]:
        """The workers, created on first use."""
        self._actors.start()
        return self._actors.members

    # -- a run

    def start(self, context: Context) -> None:  # type: ignore[override]
        """The engine's hook: create the shards, unless they exist, and give them generators."""
        self._context = context
        started = [self._start(index) for index in range(self.num_shards)]
        wait_for([request.future for request in started], f"{self!r} to start")
        for request in started:
            self._answer(request)  # replaces a shard that died since the last run

    def stop(self) -> None:
        """The engine's hook: drop the requests of the run."""
        with self._lock:
            self._draws.clear()

    def close(self) -> None:
        """End the shards, with all their rows."""
        self._actors.close()
        self._forget([ShardRecord(number) for number in range(self.num_shards)])
        self._inserts = self._samples = self._outdated = 0

    def __enter__(self) -> ReplayActors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """See `Store.state_dict`. Raises Stalled if a shard does not answer."""
        with self._lock:
            self._await([*self._adds, *self._updates], "what is on its way")
            self._settle()
            return {
                "shards": self._from_all("state_dict"),
                "books": [record.state_dict() for record in self._records],
                "turns": [self._routes.turn, self._draw_turn],
                **{name: vars(self)[f"_{name}"] for name in _COUNTS},
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Store.load_state_dict`. Raises CheckpointError for another number of shards, and like the stores."""
        saved = Saved(state, "the saved replay")
        if len(shards := saved.get("shards", list)) != self.num_shards:
            raise CheckpointError(
                f"the saved replay has {len(shards)} shards, this one {self.num_shards}; it must be equal"
            )
        records = [ShardRecord.of(Saved(each, "the saved replay, books")) for each in saved.get("books", list)]
        turns, counts = saved.get("turns", list[int]), {name: saved.count(name) for name in _COUNTS}
        if len({each.number for each in records}) < self.num_shards or len(records) != self.num_shards:
            saved.refuse("books", f"those of {self.num_shards} shards")
        if len(turns) != 2 or not all(0 <= turn < self.num_shards for turn in turns):
            saved.refuse("turns", f"two numbers of shards, 0 .. {self.num_shards - 1}")
        with self._lock:
            before = self._from_all("state_dict")
            load_whole(lambda states: self._from_all("load_state_dict", states), shards, before, saved.what)
            self._forget(records)
            self._routes.turn, self._draw_turn = turns
            vars(self).update({f"_{name}": count for name, count in counts.items()})

    def drain(self, futures: Iterable[Future[Any]]) -> None:
        """See `Store.drain`."""
        known = set(futures)
        self._await([request for request in self._draws if request.future in known], "a batch")

    def _await(self, requests: list[ShardRequest], what: str) -> None:
        """Wait for answers that a state needs, but not again and again for a shard that hangs.

        Raises: Stalled: names the shards that do not answer.
        """
        if not (silent := silent_ones(self._members)):
            late = set(wait([request.future for request in requests], DRAIN_SECONDS))
            silent = {request.index for request in requests if request.future in late}
        if silent:
            names = ", ".join(self._actors.name(index) for index in sorted(silent))
            seconds, limit = max(self._actors.silent, DRAIN_SECONDS), self._actors.worker_timeout
            raise Stalled(
                f"{self!r}: {names} has not answered for {seconds:.0f} s ({what}), and no state is complete without "
                f"its rows; it counts as dead after worker_timeout={limit:g} s"
            )

    def _from_all(self, method: str, args: list[Any] | None = None) -> list[Any]:
        """The answers of all shards. A dead shard is replaced by an empty one, which answers instead."""
        requests = [self._ask(i, method, *([] if args is None else [args[i]])) for i in range(self.num_shards)]
        self._await(requests, method)
        answers = []
        for request in requests:
            try:
                answers.append(request.future.result())
            except WorkerDied:
                self._answer(request)
                again = self._ask(request.index, method, *([] if args is None else [args[request.index]]))
                wait_for([again.future], f"{self!r}: {method}")
                answers.append(again.future.result())
        return answers

    def _forget(self, records: list[ShardRecord]) -> None:
        self._records, self._adds, self._draws, self._updates = records, [], [], []


def _nbytes(item: Any) -> int:
    return item.nbytes if isinstance(item, Remote) else measured(item)[1]


class ShardRouting:
    """Sends items to stores in turn, and fragments `[T, N, ...]` that must be consecutive to the store of their worker.

    That is store `worker % count`. A fragment of several workers side by side is split. Padded batches (`mask`) are
    complete, so nothing need follow them, but for fragments of games.

    >>> from flowrl.data.batch import Batch
    >>> routes = ShardRouting(2, in_order=True)
    >>> [(store, part.obs.tolist()) for store, part in routes.parts(Batch(obs=[[5, 6, 7]], worker=[[0, 1, 2]]))]
    [(0, [[5, 7]]), (1, [[6]])]

    Args:
        count: Number of stores.
        in_order: Whether fragments must be consecutive.

    Attributes:
        turn: The store of the next item that may go to any.
    """

    def __init__(self, count: int, *, in_order: bool) -> None:
        self.count, self.in_order = count, in_order
        self.turn = 0
        self._owners: dict[int, tuple[int, ...]] = {}  # the workers of a store's first fragment
        self._said = False

    def parts(self, item: Any) -> Iterator[tuple[int, Any]]:
        """Stores with their parts of an item."""
        if self.count > 1 and self.in_order and (workers := _workers(item)) is not None:
            stores = workers % self.count
            for store in np.unique(stores).tolist():
                mine = np.flatnonzero(stores == store)
                if isinstance(item, Remote) or "mask" not in item:  # seats of games find what they follow
                    self._note(store, tuple(np.unique(workers[mine]).tolist()))
                yield store, item if len(mine) == len(stores) else item[:, mine]
            return
        yield self.turn, item
        self.turn = (self.turn + 1) % self.count

    def _note(self, store: int, workers: tuple[int, ...]) -> None:
        """Warn once of mixed workers that `plan.check()` could not foresee, such as workers added later."""
        first = self._owners.setdefault(store, workers)
        if first != workers and not self._said:
            self._said = True
            log.warning(
                "fragments of the workers %s and %s go to replay shard %d in turn, so that none is followed by the "
                "next one of its worker; take as many shards as workers",
                *(", ".join(map(str, each)) for each in (first, workers)),
                store,
            )


def _workers(item: Any) -> Array | None:
    """The worker of each environment `[N]` of a fragment that must be continued; None for anything else."""
    if isinstance(item, Remote):
        return np.array([item.worker or 0])
    if not is_fragment(item) or ("mask" in item and not of_seats(item)):
        return None
    return np.asarray(item["worker"][0]) if "worker" in item else np.zeros(item.shape[1], np.int64)
