"""The Merge primitive, several branches into one stream, and the Fork primitive, one stream for several readers."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sized
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, Literal

import attrs

from flowrl.engine.operator import not_negative, operator, runtime, state
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, WORKED, Signal
from flowrl.engine.schema import Schema, common
from flowrl.engine.stages import Stage

if TYPE_CHECKING:
    from flowrl.engine.meter import SecondsByThread

#: Most items that a branch with weight "*" emits per turn.
STAR = 100


def one_each(values: Sized, count: int) -> str:
    """A check of a `state()` field: a list with a value for each of `count`."""
    return "" if len(values) == count else f"{count} values"


def _branches(merge: Any, numbers: Iterable[int]) -> str:
    count = len(merge.names)
    right = all(type(number) is int and 0 <= number < count for number in numbers)
    return "" if right else f"numbers of branches, 0 .. {count - 1}"


class FromBranch(dict[str, Any]):
    """A dict of a branch, as it leaves a merge before an operator that takes branches apart."""

    def __init__(self, item: dict[str, Any], branch: str) -> None:
        super().__init__(item)
        self.branch = branch


class Merge(Stage):
    """Base of the merges; `names` has the names of the branches, in order."""

    #: Whether each item needs all branches, so that the merge begins with the last one and ends with the first.
    needs_all = False
    names: tuple[str, ...]
    #: For each branch the learner whose name its scalars get, and the name that its dicts say that they come from, see
    #: `flowrl.engine.labels`; () if no branch has either.
    labels: tuple[tuple[str, str], ...] = ()

    def stuck(self) -> list[str]:
        return [f"branch {name}: {line}" for i, name in enumerate(self.names) for line in self.reasons(i)]

    def reasons(self, branch: int) -> list[str]:
        """What one branch waits for or is blocked by, in words."""
        return self.inputs[branch].stuck()

    def awaits(self) -> list[str]:
        return [path for i in self.waiting() for path in self.inputs[i].awaits()]

    def waiting(self) -> Iterable[int]:
        """The branches for which it waits."""
        return range(len(self.inputs))

    def emitted(self, item: Any, branch: int) -> Any:
        """An item of a branch as it leaves the merge."""
        self.meter.items += 1
        if self.labels and isinstance(item, dict):
            learner, voice = self.labels[branch]
            if learner:
                return {f"{name}/{learner}": value for name, value in item.items()}
            if voice and not isinstance(item, FromBranch):
                return FromBranch(item, voice)
        return item


def _whole_share(weight: float | str) -> int:
    if isinstance(weight, str):
        return STAR
    return int(weight) if float(weight).is_integer() else 0


@operator
class Concurrent(Merge):
    """One item per turn from each branch (`round_robin`), or from each branch that is ready (`async`).

    In a round robin, n turns of a branch with weight w emit floor(n * w) items: weights [1, 0.5] give
    a a b. It waits for a WAITING branch and skips a BLOCKED one, so the order depends on nothing but the
    plan. In async mode, and for the weight "*" (all ready items, at most 100), it skips a WAITING branch.

    State: the current turn and its remaining items, the turns begun by fractional weights, which branches have ended.
    """

    names: tuple[str, ...]
    mode: Literal["round_robin", "async"]
    weights: tuple[float | str, ...]
    output_indexes: tuple[int, ...]
    turn: int = state(default=0, check=lambda self, turn: _branches(self, [turn]))
    left: int = state(default=-1)  # items the branch may still emit in this turn, -1 before the turn begins
    turns: list[int] = state(
        default=attrs.Factory(lambda self: [0 for _ in self.names], takes_self=True),
        check=lambda self, turns: one_each(turns, len(self.names)),
    )
    ended: list[bool] = state(
        default=attrs.Factory(lambda self: [False for _ in self.names], takes_self=True),
        check=lambda self, ended: one_each(ended, len(self.names)),
    )

    def schema(self, *given: Schema) -> Schema:
        return common(given[i] for i in self.output_indexes)

    # Items per turn of integer weights and "*"; 0 for a fraction, whose number depends on the turn.
    _whole: tuple[int, ...] = attrs.field(
        default=attrs.Factory(lambda self: tuple(map(_whole_share, self.weights)), takes_self=True), init=False
    )

    _waiting: list[int] = runtime(factory=list)  # the branches because of which it returned WAITING
    _emits: tuple[bool, ...] = attrs.field(
        default=attrs.Factory(
            lambda self: tuple(map(set(self.output_indexes).__contains__, range(len(self.names)))), takes_self=True
        ),
        init=False,
    )

    def step(self) -> Any:
        idle: dict[int, Signal] = {}  # branches that have had no item since the last change
        looked, live = False, 0
        while True:
            i = self.turn
            if self.ended[i]:
                if not looked and all(self.ended[k] for k in self.output_indexes):
                    return DONE
                looked = True
                self._next()
                continue
            if self.left < 0:
                self.left = self._whole[i] or self._share(i)
            if self.left == 0:
                self._next()
                continue
            item = self.inputs[i].step()
            if item.__class__ is not Signal:
                self.left -= 1
                if self.left == 0:
                    self._next()
                if not self._emits[i]:
                    return WORKED
                return self.emitted(item, i)
            if item is WORKED:
                if self.mode == "async":
                    self._next()
                return WORKED
            if item is WAITING and self.mode == "round_robin" and self.weights[i] != "*":
                self._waiting = [i]
                return WAITING
            if item is DONE:
                self.ended[i] = True
                self.inputs[i].release()
                if all(self.ended[k] for k in self.output_indexes):
                    self.release()  # the other branches end with the output branches
                    return DONE
                idle.clear()  # the end of a branch may unblock another one
                live = 0
            else:
                idle[i] = item
                live = live or self.ended.count(False)
            self._next()  # an unused turn is not made up for later
            if idle and len(idle) == live:
                self._waiting = [k for k, signal in idle.items() if signal is WAITING]
                return WAITING if self._waiting else BLOCKED

    def _share(self, branch: int) -> int:
        """Number of items in the next turn of a branch with a fractional weight."""
        weight = float(self.weights[branch])
        # From the number of turns, so that rounding errors do not add up.
        begun = self.turns[branch]
        self.turns[branch] += 1
        return math.floor((begun + 1) * weight) - math.floor(begun * weight)

    def _next(self) -> None:
        self.turn = (self.turn + 1) % len(self.names)
        self.left = -1

    def reasons(self, branch: int) -> list[str]:
        return ["has ended"] if self.ended[branch] else self.inputs[branch].stuck()

    def waiting(self) -> Iterable[int]:
        return self._waiting


@operator
class Sequential(Merge):
    """Each branch to its end, then the next one. State: the number of the current branch."""

    names: tuple[str, ...]
    output_indexes: tuple[int, ...]
    turn: int = state(default=0, check=not_negative)

    def schema(self, *given: Schema) -> Schema:
        return common(given[i] for i in self.output_indexes)

    def step(self) -> Any:
        while self.turn < len(self.inputs):
            item = self.inputs[self.turn].step()
            if item.__class__ is not Signal:
                if self.turn not in self.output_indexes:
                    return WORKED
                return self.emitted(item, self.turn)
            if item is not DONE:
                return item
            self.inputs[self.turn].release()
            self.turn += 1
        return DONE

    def reasons(self, branch: int) -> list[str]:
        if branch == self.turn:
            return self.inputs[branch].stuck()
        return ["has ended" if branch < self.turn else f"begins after {self.names[branch - 1]}"]

    def waiting(self) -> Iterable[int]:
        return range(self.turn, self.turn + 1)


@operator
class Zip(Merge):
    """Tuples of one item from each branch; ends with the shortest. State: the items of the open tuple."""

    needs_all = True
    names: tuple[str, ...]
    parts: dict[int, Any] = state(factory=dict, check=lambda self, parts: _branches(self, parts))
    ended: bool = state(default=False)

    def schema(self, *given: Schema) -> Schema:
        return Schema(open=True, each=given)  # open: an operator on tuples may find any word in their elements

    def step(self) -> Any:
        if self.ended:
            return DONE
        if len(self.parts) == len(self.inputs):
            item = tuple(self.parts[i] for i in range(len(self.inputs)))
            self.parts.clear()
            self.meter.items += 1
            return item
        signals = set()
        for i, stage in enumerate(self.inputs):
            if i not in self.parts:
                item = stage.step()
                if item.__class__ is Signal:
                    signals.add(item)
                else:
                    self.parts[i] = item
                    signals.add(WORKED)
        if DONE in signals:
            self.ended = True
            self.release()
            return DONE
        return next(signal for signal in (WORKED, WAITING, BLOCKED) if signal in signals)

    def waiting(self) -> Iterable[int]:
        return [i for i in range(len(self.inputs)) if i not in self.parts]


@operator
class Fork(Stage):
    """One stream for several readers, the fastest at most `max_lag` items ahead of the slowest.

    Those that learn on-policy are at most one item behind the fastest (D15): what waits for them becomes old.

    State: the items that each reader has not read yet.
    """

    provides = ()
    readers: int
    max_lag: int
    queues: list[deque[Any]] = state(
        default=attrs.Factory(lambda self: [deque() for _ in range(self.readers)], takes_self=True),
        check=lambda self, queues: one_each(queues, self.readers),
    )
    # Readers outside the plan, and released ones, do not hold up the others.
    reading: list[bool] = state(
        default=attrs.Factory(lambda self: [False] * self.readers, takes_self=True),
        check=lambda self, reading: one_each(reading, self.readers),
    )
    # A prefetch may pull one reader in its thread.
    _lock: threading.Lock = runtime(factory=threading.Lock)
    on_policy: frozenset[int] = runtime(default=frozenset())  #: the readers that learn on-policy, by index
    visits: SecondsByThread | None = runtime()  #: if several threads pull the readers
    queued: dict[int, float] = runtime(factory=dict)  #: seconds that threads waited for their turn, by identifier

    def read(self, reader: int) -> Any:
        if not self._lock.acquire(blocking=False):
            start, ident = clock(), threading.get_ident()
            self._lock.acquire()
            self.queued[ident] = self.queued.get(ident, 0.0) + clock() - start
        try:
            if self.queues[reader]:
                return self.queues[reader].popleft()
            others = [i for i in range(self.readers) if i != reader and self.reading[i]]
            if any(len(self.queues[i]) >= self._limit(i) for i in others):
                return BLOCKED
            item = self.inputs[0].step() if self.visits is None else self.visits.pull(self.inputs[0].step)
            if item.__class__ is not Signal:
                self.meter.items += 1
                for i in others:
                    self.queues[i].append(item)
            return item
        finally:
            self._lock.release()

    def _limit(self, reader: int) -> int:
        return 1 if reader in self.on_policy else self.max_lag

    def leave(self, reader: int) -> None:
        with self._lock:
            self.reading[reader] = False
            self.queues[reader].clear()
            if not any(self.reading):
                self.release()

    def fill(self) -> tuple[int, int]:
        return max(map(len, self.queues)), self.max_lag

    def stuck(self) -> list[str]:
        for i, queue in enumerate(self.queues):
            if len(queue) >= (limit := self._limit(i)):
                why = "it learns on-policy, so no more may wait for it (D15)" if limit < self.max_lag else "max_lag"
                return [f"{self.meter.path}: reader {i} has {limit} item{'s' * (limit > 1)} to read first ({why})"]
        return super().stuck()


@operator
class Reader(Stage):
    """One reader of a fork."""

    provides = ()
    index: int
    fork: Fork = attrs.field(init=False, repr=False)

    def bind(self, meter: Any, inputs: list[Stage]) -> None:
        super().bind(meter, inputs)
        assert isinstance(inputs[0], Fork)
        self.fork = inputs[0]
        self.fork.reading[self.index] = True

    def step(self) -> Any:
        item = self.fork.read(self.index)
        if item.__class__ is not Signal:
            self.meter.items += 1
        elif item is DONE:
            self.release()
        return item

    def release(self) -> None:
        self.fork.leave(self.index)
