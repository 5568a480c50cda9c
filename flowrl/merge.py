"""The Merge primitive: several branches into one stream, and the Fork primitive: one stream into several."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import attrs

from flowrl.operator import operator, state
from flowrl.stages import BLOCKED, DONE, WAITING, WORKED, Signal, Stage

#: What the weight "*" takes from a branch at most before the next one has its turn.
STAR = 100


class Merge(Stage):
    """Base of the merges: `names` are those of the branches, in order."""

    names: tuple[str, ...]

    def stuck(self) -> list[str]:
        lines = []
        for name, stage in zip(self.names, self.inputs):
            lines += [f"branch {name}: {line}" for line in stage.stuck()] or [f"branch {name}: has ended"]
        return lines


def _zeros(merge: Any) -> list[Any]:
    return [0] * len(merge.names)


@operator
class Concurrent(Merge):
    """One item a turn from each branch (`round_robin`), or from each branch that is ready (`async`).

    In a round robin a branch gets `credit += weight` a turn and emits its whole part. A WAITING branch is
    waited for and a BLOCKED one skipped, so the order depends on nothing but the plan. In async mode, and
    for the weight "*" (what is ready, at most 100), a WAITING branch is passed over.

    State: whose turn it is, the credits, which branches have ended.
    """

    names: tuple[str, ...]
    mode: Literal["round_robin", "async"]
    weights: tuple[float | str, ...]
    output_indexes: tuple[int, ...]
    turn: int = state(default=0)
    begun: bool = state(default=False)
    credit: list[float] = state(default=attrs.Factory(_zeros, takes_self=True))
    ended: list[bool] = state(default=attrs.Factory(_zeros, takes_self=True))
    _idle: dict[int, Signal] = attrs.field(factory=dict, init=False, repr=False)

    def step(self) -> Any:
        while True:
            i = self.turn
            if self.ended[i]:
                if all(self.ended[i] for i in self.output_indexes):
                    return DONE
                self._next()
                continue
            if not self.begun:
                self.begun = True
                self.credit[i] = STAR if self.weights[i] == "*" else self.credit[i] + float(self.weights[i])
            if self.credit[i] < 1:
                self._next()
                continue
            item = self.inputs[i].step()
            if item.__class__ is not Signal:
                self.credit[i] -= 1
                if self._idle:
                    self._idle.clear()
                if self.mode == "async" or self.credit[i] < 1:
                    self._next()
                if i not in self.output_indexes:
                    return WORKED
                self.link.items += 1
                return item
            if item is WORKED:
                self._idle.clear()
                if self.mode == "async":
                    self._next()
                return WORKED
            if item is WAITING and self.mode == "round_robin" and self.weights[i] != "*":
                return WAITING
            if item is DONE:
                self.ended[i] = True
                self.inputs[i].release()
                if all(self.ended[i] for i in self.output_indexes):
                    return DONE
            else:
                self._idle[i] = item
            self.credit[i] %= 1  # a turn that could not be used is not made up for later
            self._next()
            if self._idle and all(i in self._idle or ended for i, ended in enumerate(self.ended)):
                waiting = WAITING in self._idle.values()
                self._idle.clear()
                return WAITING if waiting else BLOCKED

    def _next(self) -> None:
        self.turn = (self.turn + 1) % len(self.names)
        self.begun = False


@operator
class Zip(Merge):
    """Tuples of one item from each branch; ends with the shortest. State: the items of the open tuple."""

    names: tuple[str, ...]
    parts: dict[int, Any] = state(factory=dict)
    ended: bool = state(default=False)

    def step(self) -> Any:
        if self.ended:
            return DONE
        if len(self.parts) == len(self.inputs):
            item = tuple(self.parts[i] for i in range(len(self.inputs)))
            self.parts.clear()
            self.link.items += 1
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


@operator
class Fork(Stage):
    """One stream for several readers, the fastest at most `max_lag` items before the slowest.

    State: the items that some reader has not read yet.
    """

    readers: int
    max_lag: int
    queues: list[deque[Any]] = state(
        default=attrs.Factory(lambda self: [deque() for _ in range(self.readers)], takes_self=True)
    )
    # Readers that are not part of the plan, or that nobody pulls any more, hold up nobody.
    reading: list[bool] = state(default=attrs.Factory(lambda self: [False] * self.readers, takes_self=True))

    def read(self, reader: int) -> Any:
        if self.queues[reader]:
            return self.queues[reader].popleft()
        others = [queue for i, queue in enumerate(self.queues) if i != reader and self.reading[i]]
        if any(len(queue) >= self.max_lag for queue in others):
            return BLOCKED
        item = self.inputs[0].step()
        if item.__class__ is not Signal:
            self.link.items += 1
            for queue in others:
                queue.append(item)
        return item

    def leave(self, reader: int) -> None:
        self.reading[reader] = False
        self.queues[reader].clear()
        if not any(self.reading):
            self.release()

    def stuck(self) -> list[str]:
        full = [i for i, queue in enumerate(self.queues) if len(queue) >= self.max_lag]
        if full:
            return [f"{self.link.path}: reader {full[0]} has {self.max_lag} items to read first (max_lag)"]
        return super().stuck()


@operator
class Reader(Stage):
    """One reader of a fork."""

    index: int
    fork: Fork = attrs.field(init=False, repr=False)

    def bind(self, link: Any, inputs: list[Stage]) -> None:
        super().bind(link, inputs)
        assert isinstance(inputs[0], Fork)
        self.fork = inputs[0]
        self.fork.reading[self.index] = True

    def step(self) -> Any:
        item = self.fork.read(self.index)
        if item.__class__ is not Signal:
            self.link.items += 1
        return item

    def release(self) -> None:
        self.fork.leave(self.index)
