"""A profile: where the time of a run went, in a table; what bounds its pace, in a sentence; what a change would give.

The model of the pace has one number for each thread and process: its seconds of work for what the run did meanwhile.
The run takes as long as the slowest chain of work that cannot overlap:

- A thread's own work, with its waits for those who work only while it waits: the workers of a `gather_sync`, the worker
  of a call with one request in flight.
- The work of a thread of a `prefetch`, or of the worker of a call with several requests in flight.
- The work of the workers of a `gather_async`: with Z seconds for an item, S of the reader and f requests in flight, one
  gives min(1 / Z, f / (Z + S + L)) items per second; L is the latency: pickling, transport, scheduling.

These are the asymptotic bounds of closed queueing networks (Denning and Buzen, The Operational Analysis of Queueing
Network Models, 1978). A what-if is the ratio of two such times, so what the model leaves out of both cancels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from flowrl.engine.recording.ledger import Ledger
from flowrl.engine.workers.accounts import DRIVER, FULL, NO_INPUT, NO_REQUEST, OPENING, OUTSIDE, SAVING, Account
from flowrl.errors import ConfigError
from flowrl.saved import fits

#: The layout of a profile in a file.
LAYOUT = 1
#: Waits that end with the work of others, which may overlap with everything else.
IDLE = (FULL, NO_INPUT, NO_REQUEST)
#: Where the seconds of the engine are listed, beside operators.
ENGINE = "engine"
#: Share of its time below which a thread counts as never waiting.
NEVER = 0.05
#: Share of the time below which a wait is listed with the engine.
LEAST = 5e-4
#: Share of the time that the model must explain, else the report says so.
EXPLAINED = 0.8
#: A worker is named if the wait for it is longer than an even share by so much of the wait for all.
UNEVEN = 0.1
#: Share of the time below which an operator is neither busy nor starved nor blocked.
LEAST_SHOWN = 0.01
#: What-ifs in a report, and the gain below which one is left out.
MOST_CHANGES, LEAST_GAIN = 5, 0.01


@attrs.frozen
class Change:
    """A change of a run: an operator `times` as fast, or `workers` more behind a gather.

    >>> print(Change("TrainOneStep"), "|", Change("gather_async", workers=1))
    TrainOneStep twice as fast | one more worker of gather_async
    """

    path: str
    times: float = 2.0
    workers: int = 0

    def __str__(self) -> str:
        if self.workers:
            count = "one more worker" if self.workers == 1 else f"{self.workers} more workers"
            return f"{count} of {self.path}"
        pace = "twice" if self.times == 2 else f"{self.times:g} times"
        return f"{self.path} {pace} as fast"

    def left(self, account: Account) -> float:
        """Seconds of work that a thread or process has left."""
        if self.workers:
            return account.worked
        seconds = account.engine if self.path == ENGINE else account.busy.get(self.path, 0.0)
        return account.worked - seconds * (1 - 1 / self.times)


NO_CHANGE = Change("", times=1.0)


@attrs.frozen
class Activity:
    """What an operator did in some seconds: those of all threads and processes that it ran in.

    Attributes:
        rate: Items per second.
        busy, starved, blocked: Of these seconds, see `flowrl.engine.workers.accounts.Account`.
        fill: What its store, or it itself, holds, and the most that may be; None: it has no such number.

    >>> found = Activity(10.0, 2.0, busy=2.5, starved=5.0) + Activity(10.0, 4.0, busy=5.0)
    >>> found.rate, found.shares["busy"], found.state
    (6.0, 0.375, 'busy')
    """

    seconds: float = 0.0
    rate: float = 0.0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    fill: tuple[int, int] | None = None

    def __add__(self, other: Activity) -> Activity:
        return Activity(
            self.seconds + other.seconds,
            self.rate + other.rate,
            self.busy + other.busy,
            self.starved + other.starved,
            self.blocked + other.blocked,
        )

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the time that it was busy, starved and blocked."""
        times = {"busy": self.busy, "starved": self.starved, "blocked": self.blocked}
        return {state: min(1.0, seconds / max(self.seconds, 1e-9)) for state, seconds in times.items()}

    @property
    def state(self) -> str:
        """What it was most of its time: "busy", "starved", "blocked", or "idle": less than 1 % of each."""
        most, share = max(self.shares.items(), key=lambda each: each[1])
        return most if share >= LEAST_SHOWN else "idle"


@attrs.frozen
class Profile:
    """What a run did in some time.

    Attributes:
        ledger: Of that time.
        before: Seconds of the run before that time, which are left out: of opening it and up to its first result.
        counter: The counter that its pace is given in.
        recent: The ledger of its last seconds; None: not known.
        stalls: What operators wait for that have done nothing for some seconds, in words.
    """

    ledger: Ledger
    before: float = 0.0
    counter: str = "env_steps"
    recent: Ledger | None = None
    stalls: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.ledger.driver.wall

    def activity(self) -> dict[str, Activity]:
        """What each operator did lately, by path; since the first result if it is not known what it did lately."""
        ledger, found = self.recent or self.ledger, dict[str, Activity]()
        for account in ledger.accounts:
            for path, items in account.items.items():
                busy, starved, blocked = (
                    max(0.0, seconds.get(path, 0.0)) for seconds in (account.busy, account.starved, account.blocked)
                )
                there = Activity(account.wall, items / max(account.wall, 1e-9), busy, starved, blocked)
                found[path] = found.get(path, Activity()) + there
        for account in ledger.accounts:  # what works for a call has its seconds, and none of its items
            if account.kind == "callee" and account.stage in found:
                found[account.stage] += Activity(busy=account.busy.get(account.stage, 0.0))
        return {path: attrs.evolve(each, fill=ledger.fill.get(path)) for path, each in found.items()}

    # -- the model

    def gain(self, change: Change) -> float:
        """How much faster the run is after a change: 0.41 for 41 %."""
        return self.modeled(NO_CHANGE) / max(self.modeled(change), 1e-9) - 1

    def modeled(self, change: Change) -> float:
        """Seconds for the same work after a change, by the model."""
        return max(seconds for _, seconds in self.bounds(change))

    def bounds(self, change: Change) -> Iterator[tuple[str, float]]:
        """What the run takes at least, by the account or stage that makes it so."""
        for account in self.ledger.accounts:
            if account.kind in ("driver", "thread"):
                yield account.name, self._serial(account, change)
            elif account.kind == "callee" and self.ledger.stages[account.stage]["in_flight"] > 1:
                yield account.name, change.left(account)
        for path, about in self.ledger.stages.items():
            if about["kind"] == "gather_async" and self._of(path):
                yield path, self._async(path, about, change)
        for path in self._sources():
            yield path, self.seconds  # the pace of others

    def resized(
        self, path: str, workers: int, latency: float = 0.0, costs: Mapping[str, float] | None = None
    ) -> Profile:
        """The same work behind a gather with other workers, each of which has a core: 0 are in the reader's thread.

        Args:
            path: The gather.
            workers: Processes that share its part of the plan evenly.
            latency: Seconds of a request beside work, if none was measured.
            costs: Seconds per item of operators, by path, instead of those measured.
        """
        about, old, seconds = dict(self.ledger.stages[path]), self._of(path), self.seconds
        reader = old[0].by if old else self._reader(path).name
        kept = {each.name: copy.deepcopy(each) for each in self.ledger.accounts if each not in old}
        mine, busy, items = kept[reader], dict[str, float](), dict[str, float]()
        if old:
            for each in old:
                times = seconds / max(each.wall, 1e-9)  # its account may be half a second old
                for operator, spent in [*each.busy.items(), (ENGINE, each.engine)]:
                    busy[operator] = busy.get(operator, 0.0) + spent * times
                    items[operator] = items.get(operator, 0.0) + each.items.get(operator, 0) * times
            calls = sum(each.calls * seconds / max(each.wall, 1e-9) for each in old)
            latency = sum(self._latency(each, about["in_flight"]) for each in old) / len(old)
            mine.wall -= mine.waits.pop(path, 0.0)
            mine.by_worker.pop(path, None)
        else:
            busy = {each: mine.busy.pop(each) for each in about["part"] if each in mine.busy}
            items, calls = dict(mine.items), mine.items.get(path, 0)
            mine.wall -= sum(busy.values())
        for operator, cost in (costs or {}).items():
            if operator in busy:
                busy[operator] = items[operator] * cost
            for each in kept.values():
                if operator in each.busy:
                    spent = each.items.get(operator, each.calls) * cost
                    each.wall += spent - each.busy[operator]
                    each.busy[operator] = spent
        total, about["workers"] = sum(busy.values()), workers
        if workers == 0:
            mine.add({each: spent for each, spent in busy.items() if each != ENGINE})
            mine.wall += total
        elif about["kind"] == "gather_sync":
            waited = (total + latency * calls) / workers
            mine.add(waits={path: waited})
            mine.wall += waited
        made = [
            Account(
                f"worker {number} of {path}",
                "worker",
                total / workers,
                busy={operator: spent / workers for operator, spent in busy.items() if operator != ENGINE},
                stage=path,
                by=reader,
                calls=calls / workers,
            )
            for number in range(workers)
        ]
        stages = {**self.ledger.stages, path: about}
        found = attrs.evolve(self, ledger=attrs.evolve(self.ledger, accounts=[*kept.values(), *made], stages=stages))
        found._take(kept[DRIVER].wall, path, latency)
        found._take(found.modeled(NO_CHANGE), path, latency)
        return found

    def _take(self, wall: float, path: str, latency: float) -> None:
        """Let all of it take so many seconds, in which everybody is idle where it does not work."""
        for each in self.ledger.accounts:
            worked = each.worked
            if each.kind == "driver":
                kinds = {what: self.ledger.stages.get(what, {}) for what in each.waits}
                beside = [what for what, about in kinds.items() if about.get("in_flight", 1) > 1 or what == path]
                in_turn = {what: s for what, s in each.waits.items() if what not in beside}
                each.waits = {**in_turn, path: wall - worked - sum(in_turn.values())}
            else:
                each.waits = {FULL if each.kind == "thread" else NO_REQUEST: wall - worked}
            if each.stage == path:
                flight = self.ledger.stages[path]["in_flight"]
                each.trips = worked * (1 + (flight - 1) * worked / max(wall, 1e-9)) + latency * each.calls
            each.wall = wall

    def _reader(self, path: str) -> Account:
        """The account of the thread that pulls an operator."""
        return next((each for each in self.ledger.accounts if path in each.items), self.ledger.driver)

    def _serial(self, account: Account, change: Change) -> float:
        """Seconds of a thread's work and of the waits that it cannot overlap with."""
        seconds = change.left(account)
        if account.kind == "driver":
            seconds += sum(account.waits.get(each, 0.0) for each in (OPENING, OUTSIDE, SAVING))
        for path, waited in self._waits().items():
            about, workers = self.ledger.stages.get(path), self._of(path)
            if about is None:  # an operator that waits for a future of its own
                seconds += waited if account.kind == "driver" else 0.0
            elif not workers or workers[0].by != account.name:
                continue
            elif about["kind"] == "gather_sync":
                slowest = max(map(self._work, workers))
                spared = slowest - max(self._work(each, change) for each in workers)
                if change.path == latency_of(path):
                    spared += max(0.0, waited - slowest) * (1 - 1 / change.times)
                added = change.workers if change.path == path else 0
                seconds += max(0.0, waited - spared) * len(workers) / (len(workers) + added)
            elif about["kind"] == "call" and about["in_flight"] == 1:
                seconds += max(0.0, waited - workers[0].worked + change.left(workers[0]))
        return seconds

    def _async(self, path: str, about: Mapping[str, Any], change: Change) -> float:
        """Seconds that the workers of a `gather_async` need for the items of this time."""
        workers = self._of(path)
        reader = next(each for each in self.ledger.accounts if each.name == workers[0].by)
        counts = [each.calls * self.seconds / max(each.wall, 1e-9) for each in workers]
        total = max(sum(counts), 1e-9)
        cycle = self._serial(reader, change) / total
        in_flight = about["in_flight"] * max(about["workers"], 1) / len(workers)
        paces = []
        for worker, count in zip(workers, counts):
            item = self._work(worker, change) / max(count, 1e-9)
            latency = self._latency(worker, in_flight) / (change.times if change.path == latency_of(path) else 1)
            paces.append(min(1 / max(item, 1e-9), in_flight / max(item + cycle + latency, 1e-9)))
        added = change.workers if change.path == path else 0
        return float(total / (sum(paces) * (1 + added / len(paces))))

    def _latency(self, worker: Account, in_flight: float) -> float:
        """Seconds of a request that are not work: on the way, without those behind earlier requests of the same worker.

        A request finds the worker at another one as often as the worker works.
        """
        calls = max(worker.calls, 1)
        queued = (in_flight - 1) * worker.worked / max(worker.wall, 1e-9)
        return max(0.0, worker.trips / calls - worker.worked / calls * (1 + queued))

    def _of(self, path: str) -> list[Account]:
        """The accounts of the workers of a stage."""
        return [each for each in self.ledger.accounts if each.stage == path and each.kind in ("worker", "callee")]

    def _work(self, worker: Account, change: Change = NO_CHANGE) -> float:
        """Seconds of a worker's work in this time; its account may be half a second old."""
        return change.left(worker) * self.seconds / max(worker.wall, 1e-9)

    def _sources(self) -> dict[str, float]:
        """Seconds for which threads waited for a source that others fill, by path, of those that matter."""
        kinds = {path: about["kind"] for path, about in self.ledger.stages.items()}
        return {
            path: s for path, s in self._waits().items() if kinds.get(path) == "source" and s > NEVER * self.seconds
        }

    def _waits(self) -> dict[str, float]:
        """Seconds of threads' waits by the stage or source that they wait for."""
        waits: dict[str, float] = {}
        for account in self.ledger.accounts:
            for what, seconds in account.waits.items():
                if what not in (*IDLE, OPENING, OUTSIDE, SAVING):
                    first, *others = what.split(" or ")
                    if not others or account.kind != "driver":  # what waits for any of several overlaps with each
                        waits[first] = waits.get(first, 0.0) + seconds
        return waits

    # -- the report

    def changes(self) -> list[tuple[Change, float]]:
        """What to change, with the gain of each, the largest first."""
        paths = dict.fromkeys(path for account in self.ledger.accounts for path in account.busy)
        changes = [Change(path) for path in paths]
        changes += [Change(path, workers=1) for path, about in self.ledger.stages.items() if "gather" in about["kind"]]
        gains = [(change, self.gain(change)) for change in changes if not change.workers or self._of(change.path)]
        return sorted(gains, key=lambda each: -each[1])

    def cause(self) -> tuple[str, Account]:
        """The operator that bounds the pace, or `ENGINE` or `OUTSIDE`, and the account with most of its seconds."""
        paths = dict.fromkeys([*(path for each in self.ledger.accounts for path in each.busy), ENGINE])
        latencies = [latency_of(path) for path, about in self.ledger.stages.items() if "gather" in about["kind"]]
        by_gain = {path: self.gain(Change(path)) for path in [*paths, *latencies]}
        outside = self.ledger.driver.waits.get(OUTSIDE, 0.0)
        by_gain[OUTSIDE] = outside / 2 / max(self.seconds - outside / 2, 1e-9)
        path, sources = max(by_gain, key=by_gain.__getitem__), self._sources()
        if sources and by_gain[path] < LEAST_GAIN:
            path = max(sources, key=sources.__getitem__)
        if path in (OUTSIDE, *latencies):
            return path, self.ledger.driver
        if path == ENGINE:
            return path, max(self.ledger.accounts, key=lambda each: each.engine)
        return path, max(self.ledger.accounts, key=lambda each: each.busy.get(path, 0.0) / max(each.wall, 1e-9))

    def sentence(self) -> str:
        """What bounds the pace of the run."""
        path, account = self.cause()
        if path == OUTSIDE:
            share = account.waits[OUTSIDE] / self.seconds
            return f"Bottleneck: none in the plan, {share:.0%} of the time passes between its items ({OUTSIDE})."
        if path in self._sources():
            share = self._sources()[path] / self.seconds
            return f"Bottleneck: {path}. Others fill it, and the run waits for it {share:.0%} of the time."
        if path not in (ENGINE, *account.busy):
            workers = self._of(path.removeprefix(latency_of("")))
            calls = max(sum(each.calls for each in workers), 1)
            all_three = zip(*((each.trips, each.worked, each.pickling) for each in workers))
            trip, work, pickling = (sum(each) / calls for each in all_three)
            rest = f"{_span(pickling)} are pickling, and the rest is" if pickling else "the rest is pickling,"
            return (
                f"Bottleneck: {path}. Of the {_span(trip)} from a request to its answer the worker works "
                f"{_span(work)}; {rest} transport and waiting for a processor."
                + self._most(path.removeprefix(latency_of("")), " {} of the waits are for {}.")
            )
        seconds = account.engine if path == ENGINE else account.busy[path]
        share, idle = seconds / account.wall, _asleep(account) / account.wall
        where = "the run's own thread" if account.kind == "driver" else f"the {account.name}"
        words = f"Bottleneck: {path}. It takes {share:.0%} of the time of {where}, "
        if idle < NEVER:
            return words + f"which is never idle ({idle:.0%})."
        driver = self.ledger.driver
        turns = f"the run's own thread waits {_asleep(driver) / driver.wall:.0%} of the time"
        turns += self._most(account.stage, ", {} of that for {}")
        return (
            words
            + f"which is idle {idle:.0%}"
            + (f", and {turns}" if account is not driver else "")
            + ": they take turns."
        )

    def _most(self, path: str, words: str) -> str:
        """Words with the share of the worker of a gather that is waited for most; "" if the waits are even."""
        shares = [share for account in self.ledger.accounts for share in _uneven(account, path)]
        return words.format(f"{shares[0][1]:.0%}", shares[0][0]) if shares else ""

    def lines(self) -> list[str]:
        """The table, the sentence and the what-ifs."""
        ledger, lines = self.ledger, list[str]()
        pace = ledger.counters.get(self.counter, 0) / max(self.seconds, 1e-9)
        left_out = f", without the first {self.before:.1f} s" if self.before else ""
        lines += [f"{self.seconds:.1f} s, {pace:,.0f} {self.counter} per second{left_out}", ""]
        shown = [(account, _rows(account, ledger.stores)) for account in ledger.accounts]
        width = max(len(row[0]) for _, rows in shown for row in rows) + 2
        for account, rows in shown:
            lines.append(f"{f'{account.name}, {account.wall:.1f} s':<{width}}   share    items  starved  blocked")
            parts = {_waiting(what): _uneven(account, what) for what in account.by_worker}
            for name, share, more in rows:
                lines.append(f"  {name:<{width}} {share:>6.1%}{more}")
                lines += [f"    {f'of which {one}':<{width - 2}} {of * share:>6.1%}" for one, of in parts.get(name, ())]
            lines.append(f"  {'sum':<{width}} {sum(share for _, share, _ in rows):>6.1%}")
            if account.kind in ("worker", "callee") and account.calls:
                work, trip, pickling = (
                    each / account.calls for each in (account.worked, account.trips, account.pickling)
                )
                size = f", {account.nbytes / 1e6:,.1f} MB" if account.nbytes else ""
                latency = f"of work each, {_span(trip)} with latency" if trip else "each, with latency"
                latency += f", {_span(pickling)} of it pickling" if pickling else ""
                lines.append(f"  {account.calls:,} answers{size}: {_span(work)} {latency}")
            lines.append("")
        lines.append(self.sentence())
        told = [f"{change}: {gain:+.0%}" for change, gain in self.changes()[:MOST_CHANGES] if gain >= LEAST_GAIN]
        lines += [f"What if: {'; '.join(told)}."] if told else []
        explained = self.modeled(NO_CHANGE) / max(self.seconds, 1e-9)
        rough = f"The model explains {explained:.0%} of the time only, so these are rough." if told else ""
        return lines + ([rough] if rough and explained < EXPLAINED else [])

    # -- the file

    def summary(self) -> dict[str, Any]:
        """The report as values for JSON: shares of the time of each thread and process, cause and gains."""
        return {
            "seconds": self.seconds,
            "accounts": {
                each.name: {
                    "seconds": each.wall,
                    "busy": {path: seconds / max(each.wall, 1e-9) for path, seconds in each.busy.items()},
                    "waits": {what: seconds / max(each.wall, 1e-9) for what, seconds in each.waits.items()},
                    "waits_by_worker": {
                        path: {worker: seconds / max(each.wall, 1e-9) for worker, seconds in of_each.items()}
                        for path, of_each in each.by_worker.items()
                    },
                    "engine": each.engine / max(each.wall, 1e-9),
                }
                for each in self.ledger.accounts
            },
            "edges": {path: self._edge(workers) for path in self.ledger.stages if (workers := self._of(path))},
            "cause": self.cause()[0],
            "sentence": self.sentence(),
            "gains": {str(change): gain for change, gain in self.changes()},
        }

    def _edge(self, workers: list[Account]) -> dict[str, float]:
        """What passes between a thread and those who work for it: remote calls, and the seconds of their parts."""
        path = workers[0].stage
        return {
            "items": self._reader(path).items.get(path, 0),
            "calls": sum(each.calls for each in workers),
            "bytes": sum(each.nbytes for each in workers),
            "seconds": sum(each.trips or each.worked for each in workers),
            "work": sum(each.worked for each in workers),
            "pickling": sum(each.pickling for each in workers),
        }

    def values(self) -> dict[str, Any]:
        """As values for JSON."""
        return {
            "layout": LAYOUT,
            "before": self.before,
            "counter": self.counter,
            "stalls": self.stalls,
            "ledger": self.ledger.values(),
            "recent": None if self.recent is None else self.recent.values(),
        }

    @classmethod
    def of(cls, values: Any) -> Profile:
        """From the values for JSON. Raises: ConfigError: they are no profile."""
        try:
            if values["layout"] != LAYOUT:
                raise ConfigError(f"the profile has layout {values['layout']!r}, this flowrl reads {LAYOUT}")
            recent = None if values.get("recent") is None else Ledger.of(values["recent"])
            stalls = tuple(map(str, values.get("stalls", ())))
            before, counter = float(values["before"]), str(values["counter"])
            made = cls(Ledger.of(values["ledger"]), before, counter, recent, stalls)
            for each in filter(None, (made.ledger, recent)):
                stages = [
                    (*map(about.get, ("kind", "in_flight", "workers", "part")),) for about in each.stages.values()
                ]
                if not fits(each, Ledger) or not fits(stages, list[tuple[str, int, int, list[str] | None]]):
                    raise ValueError("its ledger has values of other types")
            made.lines()  # fails for values of other types
            made.activity()
            return made
        except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"it is no profile: {type(error).__name__}: {error}") from error


def latency_of(path: str) -> str:
    """The name, beside operators, of what is between a gather and its workers."""
    return f"the way to the workers of {path}"


def _rows(account: Account, stores: Mapping[str, str]) -> list[tuple[str, float, str]]:
    """Name and share of the time of each entry of an account, and what else is known of an operator."""
    rows, wall = list[tuple[str, float, str]](), max(account.wall, 1e-9)
    for path, seconds in account.busy.items():
        waits = [each.get(path, 0.0) / wall for each in (account.starved, account.blocked)]
        more = f"  {account.items.get(path, 0):>7,}" + "".join(f"  {each:>7.1%}" for each in waits)
        more += f" by {stores[path]}" if path in stores and waits[1] >= LEAST else ""
        rows.append((path, seconds / wall, more if path in account.items else ""))
    rows += [(_waiting(what), seconds / wall, "") for what, seconds in account.waits.items() if seconds >= LEAST * wall]
    rest = sum(seconds for seconds in account.waits.values() if seconds < LEAST * wall)
    return [*rows, (f"({ENGINE})", (account.engine + rest) / wall, "")]


def _uneven(account: Account, path: str) -> list[tuple[str, float]]:
    """The workers that a thread waits for longer than for the others, with the share of each in that wait."""
    of_each = account.by_worker.get(path, {})
    total = max(sum(of_each.values()), 1e-9)
    shares = [(worker, seconds / total) for worker, seconds in of_each.items()]
    uneven = [(worker, share) for worker, share in shares if share > 1 / len(shares) + UNEVEN]
    return sorted(uneven, key=lambda each: -each[1])


def _asleep(account: Account) -> float:
    """Seconds for which a thread or process had nothing to do."""
    return sum(seconds for what, seconds in account.waits.items() if what not in (OPENING, OUTSIDE, SAVING))


def _waiting(what: str) -> str:
    """The name of a wait in a table."""
    return f"({what})" if what in (OUTSIDE, OPENING, SAVING, NO_REQUEST) else f"(waits for {what})"


def _span(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
