"""Stages, the running operators: the base class, sources and chains. `step()` returns one item or one signal.

A plan's operators become stages when a run opens. Linear operators are fused into one `Chain`; names,
timings and state stay per operator. Between two steps a stage's state is complete: every item is either
emitted or part of what `save()` returns.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter as clock
from typing import Any, ClassVar, cast

import attrs

from flowrl.engine.held import ITEMS, HeldState, resources, saveable, state_of
from flowrl.engine.meter import Meter
from flowrl.engine.operator import load_operator_state, not_negative, operator, operator_state, runtime, state
from flowrl.engine.protocols import BLOCKED, DONE, WAITING, WORKED, Signal
from flowrl.errors import PlanError


def as_item(value: Any) -> Any:
    """A value that users' code made, as an item.

    Raises:
        PlanError: it is a signal, which the plan would obey.
    """
    if value.__class__ is Signal:
        raise PlanError(
            f"{value} is a signal of the engine and no item: to emit nothing, return [] from a function for combine; "
            "to end a stream, use take(n) or an operator with `done`"
        )
    return value


class Stage:
    """One running primitive. Subclasses are operators: a checkpoint holds their state() fields."""

    #: The configuration without a thread, with at most one request or item ahead.
    one_at_a_time: ClassVar[dict[str, Any]] = {}
    #: Whether it has a separate thread.
    thread: bool = False
    #: Whether its readers accept `Remote` items.
    gives_remote = False
    #: Whether nothing will pull it again.
    released = False
    meter: Meter
    inputs: list[Stage]

    def bind(self, meter: Meter, inputs: list[Stage]) -> None:
        """Join a run."""
        self.meter, self.inputs = meter, inputs

    def step(self) -> Any:
        """One item or one signal. After DONE, every step returns DONE."""
        raise NotImplementedError

    def stuck(self) -> list[str]:
        """What this stage waits for or is blocked by, in words."""
        return [line for stage in self.inputs for line in stage.stuck()]

    def relent(self) -> bool:
        """Called when nothing runs and no branch can go on; returns whether this stage or an input now can."""
        return any(stage.relent() for stage in self.inputs)

    def awaits(self) -> list[str]:
        """The paths of the operators whose future or event wakes a run that sleeps because this stage is WAITING."""
        return [path for stage in self.inputs for path in stage.awaits()]

    def fill(self) -> tuple[int, int]:
        """Items ready, or requests in flight, and how many there may be; (0, 0): it has no such number."""
        return 0, 0

    def release(self) -> None:
        """Called when nothing will pull this stage again, so that forks and queues do not wait; possibly twice."""
        if not self.released:  # once, not once for each way to here and each stage that ends
            self.released = True
            for stage in self.inputs:
                stage.release()

    def drain(self) -> None:
        """Wait for requests in flight, so that the state is complete."""

    def settle(self, now: float) -> None:
        """Add the time of a current wait, up to now, to its operator."""

    @property
    def outdated(self) -> bool:
        """Whether an answer that the saved state is without has arrived since `save`."""
        return False

    def close(self) -> None:
        """End threads and generators of this stage."""

    @property
    def ending(self) -> bool:
        """Whether no more items will come, although the inputs are not released yet."""
        return False

    @property
    def runs_here(self) -> bool:
        """Whether the current thread is this stage's separate one."""
        return False

    def meters(self) -> list[Meter]:
        """The operators that this stage runs, from input to output."""
        return [self.meter]

    def save(self) -> dict[str, dict[str, Any]]:
        """State by operator path; operators without any are left out."""
        saved = operator_state(self.meter.op, self.meter.path)
        return {self.meter.path: saved} if saved else {}

    def load(self, saved: Mapping[str, dict[str, Any]]) -> None:
        """Restore saved state; `saved` has every path of `save()`."""
        if self.meter.path in saved:
            load_operator_state(self.meter.op, saved[self.meter.path])


class Source(Stage):
    """Runs an operator with `pull()`."""

    since: tuple[Signal, float] | None = None  #: the signal that it returns, since when

    def step(self) -> Any:
        meter = self.meter
        start = clock()
        if self.since is not None:
            self.settle(start)
            self.since = None
        try:
            item = meter.op.pull()
        except BaseException as error:
            if meter.judge(error) == "raise":
                raise
            return WORKED
        finally:
            now = clock()
            meter.busy += now - start
        if item.__class__ is not Signal:
            meter.items += 1
        elif item is not WORKED and item is not DONE:
            self.since = item, now
        return item

    def settle(self, now: float) -> None:
        if self.since is not None:
            signal, since = self.since
            if signal is BLOCKED:
                self.meter.blocked += now - since
            else:
                self.meter.starved += now - since
            self.since = signal, now

    def stuck(self) -> list[str]:
        return [_why(self.meter)]

    def awaits(self) -> list[str]:
        return [self.meter.path]

    def drain(self) -> None:
        self.meter.contract.drain()

    def close(self) -> None:
        self.meter.contract.close()


@operator
class Items:
    """Source of the elements of a list."""

    items: Any = attrs.field(metadata={ITEMS: True})
    position: int = state(default=0, check=not_negative)

    def pull(self) -> Any:
        position = self.position
        if position >= len(self.items):
            return DONE
        item = self.items[position]
        if item.__class__ is Signal:
            as_item(item)
        self.position = position + 1
        return item


@operator
class Generated:
    """Source of the items of a callable's iterator. It calls the callable once per run.

    State: the number of items consumed. An iterator cannot be saved: a resume calls the function again and
    discards as many items. Meanwhile random generators that the function holds are as they were when it was first
    called, and then all that it holds is as it was saved.
    """

    function: Callable[[], Any]
    consumed: int = state(default=0, check=not_negative)
    begun: list[Any] = state(factory=list, added=True)
    _iterator: Iterator[Any] | None = runtime()

    def pull(self) -> Any:
        try:
            if self._iterator is None:
                self._iterator = self._begin()
            for item in self._iterator:
                self.consumed += 1
                return as_item(item)
        except BaseException:
            self._iterator = None  # a generator that raised has ended, so a retry needs a new one
            raise
        return DONE

    def _begin(self) -> Iterator[Any]:
        held = [saveable(each) for each in resources(self.function)]
        generators = [each for each in held if isinstance(each, HeldState)]
        if not self.consumed:
            self.begun = [each.state_dict() for each in generators]
            return cast(Iterator[Any], iter(self.function()))
        saved = [state_of(each) for each in held]
        for each, before in zip(generators, self.begun):
            each.load_state_dict(before)
        iterator: Iterator[Any] = iter(self.function())
        for _ in range(self.consumed):
            next(iterator, None)
        for each, after in zip(held, saved):
            each.load_state_dict(after)
        return iterator

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


_MAPS, _FILTERS = "maps", "filters"


class Chain(Stage):
    """Linear operators; one item at a time passes through all of them (the Transform primitive, fused).

    `backlog[i]` holds items in front of operator i, `backlog[-1]` items to be emitted: the further outputs
    of one input, or an item whose operator is not `ready`. The deepest goes first, which keeps the order.
    """

    def __init__(self, meters: list[Meter], source: Stage) -> None:
        self.chain = meters
        self.bind(meters[-1], [source])
        self.upstream = source.step
        self.backlog: list[deque[Any]] = [deque() for _ in range(len(meters) + 1)]
        self.held = 0
        self.flushed = 0  # number of operators whose `finish` was called
        self.since: tuple[str, Meter, float] | None = None  # "blocked" or "starved", which operator, since when
        self.ops = tuple((meter.op, _how(meter), meter) for meter in meters)
        self.position = {id(meter): i for i, meter in enumerate(meters)}
        self.stoppers = [(i, meter.op) for i, meter in enumerate(meters) if meter.contract.done is not None]

    def step(self) -> Any:
        if self.held or self.stoppers or self.flushed:
            ended = 1 + max((i for i, op in self.stoppers if op.done), default=-1)
            for waiting in self.backlog[:ended]:  # items in front of an operator that lets none through
                self.held -= len(waiting)
                waiting.clear()
            if self.held:
                return self._resume()
            if ended or self.flushed:
                return self._finish(ended)
        start = 0.0 if self.since is None else clock()
        item = self.upstream()
        now = clock()
        if self.since is not None:
            self._woken(start)
        if item.__class__ is Signal:
            if item is DONE:
                return self._finish(0)
            if item is not WORKED:
                self.since = ("starved", self.chain[0], now)
            return item
        return self._push(item, 0, now)

    def _push(self, item: Any, index: int, now: float) -> Any:
        """Send an item through the operators from `index` on."""
        meter = self.meter
        try:
            for function, how, meter in self.ops[index:] if index else self.ops:
                if how is _MAPS:
                    item = function(item)
                elif how is _FILTERS:
                    if not function(item):
                        meter.busy += clock() - now
                        meter.items += 1
                        return WORKED
                else:
                    item = self._push_with_care(meter, how, item)
                    if item.__class__ is Signal:
                        return item
                    now = clock()
                    continue
                done = clock()
                meter.busy += done - now
                meter.items += 1
                now = done
        except BaseException as error:
            meter.busy += clock() - now
            verdict = meter.judge(error, item)
            if meter.pure and verdict != "skip":
                self._hold(self.position[id(meter)], item)
            if verdict == "raise":
                raise
            return WORKED
        return self._dropped(item) if item.__class__ is Signal else item

    def _dropped(self, item: Signal) -> Signal:
        """What becomes of a signal that a function returned."""
        try:
            as_item(item)
        except PlanError as error:
            if self.meter.judge(error, item) == "raise":
                raise
        return WORKED

    def _push_with_care(self, meter: Meter, ready: Callable[[Any], Any] | None, item: Any) -> Any:
        """Apply an operator that may hold its item or return several; an item for the next operator, or a signal."""
        start = clock()
        op, verb = meter.op, meter.verb
        if ready is not None and ((verdict := ready(item)) is WAITING or not verdict):
            self._hold(self.position[id(meter)], item)
            if self.since is None:
                self.since = ("blocked", meter, start)
            return WAITING if verdict is WAITING else BLOCKED
        if self.since is not None:
            self._woken(start)
        outputs: deque[Any]
        if verb == "combine":
            outputs = _outputs(op(item))
        elif verb == "filter":
            outputs = deque([item] if op(item) else [])
        else:
            outputs = deque([op(item)])
        meter.busy += clock() - start
        meter.items += 1
        if not outputs:
            return WORKED
        first = as_item(outputs.popleft())
        if outputs:
            self.backlog[self.position[id(meter)] + 1].extend(outputs)
            self.held += len(outputs)
        return first

    def release(self) -> None:
        self._release(len(self.chain))

    def _release(self, count: int) -> None:
        """Release the first `count` operators and the stages before them."""
        for meter in self.chain[:count]:
            meter.contract.release()
        super().release()

    def _hold(self, index: int, item: Any) -> None:
        self.backlog[index].appendleft(item)
        self.held += 1

    def _resume(self) -> Any:
        """Process the deepest held item."""
        index = next(i for i in reversed(range(len(self.backlog))) if self.backlog[i])
        now = clock()
        self.held -= 1
        return self._push(self.backlog[index].popleft(), index, now)

    def _woken(self, now: float) -> None:
        assert self.since is not None
        kind, meter, since = self.since
        if kind == "starved":
            meter.starved += now - since
        else:
            meter.blocked += now - since
        self.since = None

    def settle(self, now: float) -> None:
        if self.since is not None:
            kind, meter, _ = self.since
            self._woken(now)
            self.since = kind, meter, now

    def _finish(self, first: int) -> Any:
        """The input of operator `first` ended: flush the operators from there on, one per step."""
        if not self.flushed:
            self._release(first)
        self.flushed = max(self.flushed, first)
        while self.flushed < len(self.chain):
            meter = self.chain[self.flushed]
            self.flushed += 1
            finish = meter.contract.finish
            if finish is list:  # it has none
                continue
            start = clock()
            try:
                rest = list(finish())
            except BaseException as error:
                verdict = meter.judge(error)
                if meter.pure:
                    self.flushed -= 1
                if verdict == "raise":
                    raise
                return WORKED
            finally:
                meter.busy += clock() - start
            if rest:
                self.backlog[self.flushed].extend(rest)
                self.held += len(rest)
                return self._resume()
        return DONE

    def stuck(self) -> list[str]:
        if self.since is not None and self.since[0] == "blocked":
            return [_why(self.since[1])]
        return super().stuck()

    def awaits(self) -> list[str]:
        if self.since is not None and self.since[0] == "blocked":
            return [self.since[1].path]
        return super().awaits()

    @property
    def ending(self) -> bool:
        return any(op.done for _, op in self.stoppers)

    def meters(self) -> list[Meter]:
        return self.chain

    def save(self) -> dict[str, dict[str, Any]]:
        saved = {}
        for i, meter in enumerate(self.chain):
            entry = operator_state(meter.op, meter.path)
            if i < self.flushed and meter.verb != "tap":
                entry["@finished"] = True
            if entry:
                saved[meter.path] = entry
        for i, waiting in reversed(list(enumerate(self.backlog))):  # the deepest first, as they will be processed
            if waiting:
                path, key = self._keeper(i)
                saved.setdefault(path, {}).setdefault(key, []).extend(copy.deepcopy(list(waiting)))
        return saved

    def load(self, saved: Mapping[str, dict[str, Any]]) -> None:
        for i, meter in enumerate(self.chain):
            entry = saved.get(meter.path, {})
            load_operator_state(meter.op, entry)
            if entry.get("@finished"):
                self.flushed = i + 1
            # Where they were emitted or held, even if operators were inserted in between since.
            for waiting, key in ((self.backlog[i], "@inputs"), (self.backlog[i + 1], "@outputs")):
                items = copy.deepcopy(entry.get(key, []))
                waiting.extend(items)
                self.held += len(items)

    def _keeper(self, index: int) -> tuple[str, str]:
        """The path and key under which the items in front of operator `index` are saved.

        It is the operator that emitted them, so that taps, which have no state, may be added or removed in between.
        """
        for meter in reversed(self.chain[:index]):
            if meter.verb != "tap":
                return meter.path, "@outputs"
        after = [meter for meter in self.chain[index:] if meter.verb != "tap"]
        return (after[0] if after else self.chain[-1]).path, "@inputs"


def _how(meter: Meter) -> Any:
    """How an operator is applied: one of the two cheap ways, or its `ready` function, None if it has none."""
    ready = meter.contract.ready
    if meter.verb == "combine" or ready is not None:
        return ready
    return _FILTERS if meter.verb == "filter" else _MAPS


def _outputs(returned: Any) -> deque[Any]:
    """The items in what an operator of the verb combine returned.

    Raises: PlanError for what is no list of items: a mapping, such as a Batch, iterates over its names.
    """
    if returned.__class__ is not list and (not isinstance(returned, Iterable) or hasattr(returned, "keys")):
        raise PlanError(
            f"combine needs a list of items, got a {type(returned).__name__}: return [item], or [] for none, or use "
            "for_each for one item each"
        )
    return deque(returned)


def _why(meter: Meter) -> str:
    """What an operator waits for, in words."""
    try:
        return f"{meter.path}: {meter.contract.why()}"
    except Exception as error:  # the operator's own, which must not take the place of the Deadlock that asks
        return f"{meter.path}: its why() raised {type(error).__name__}: {error}"
