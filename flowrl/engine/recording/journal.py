"""The journal: what an asynchronous run decided, noted by the run and followed by another one.

An asynchronous run depends on the clock where it looks which of its requests are answered: at gathers, calls, shards
of a memory, and managers of environments. At each of these points it asks its `Decisions`. Those of a usual run answer
with what is there, a `Recording` also notes it, and a `Replay` answers what was noted. Everything else follows from
plan, settings and seed, so the same plan with the same answers is the same run, also in one process (J1).

Beside the answers, a journal has two bytes for each item that leaves an operator. A `Replay` compares them, and names
the first operator whose item differs (J2).

The bytes of a journal are msgpack values, one after the other: numbers of at least 0, but for NAME, a text, and BYTES.
Each of these is an entry:

    NAME KIND               the next point, numbered from 1 on; KIND is that of its entries
    POINT EMPTY COUNT CODE  an answer (KIND 0) of COUNT codes, and how many empty answers of this point were before. A
                            code of 2**63 or more is bytes, the lowest first
    POINT DIGEST            an item that left the operator NAME (KIND 1), a number below 2**16
    POINT BYTES             what a worker noted for an answer (KIND 2): the number of the answer, then entries of its
                            own, whose points are numbered over all its answers; NAME is GATHER/INDEX.LIFE

The codes of requests are twice their places, and one more for a death; that of what has happened is 1, or 2 if it
cannot be repeated. All others mean what they mean where they are taken.

`flowrl.storage.journal` writes the bytes to a file.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]

from flowrl.engine.protocols import Decisions
from flowrl.engine.recording.noted import with_notes
from flowrl.errors import FlowError

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan

#: Kinds of points.
ANSWER, ITEM, PART = range(3)
#: The point of a journal's end, and that of the states that were taken (1) or loaded (2) between two steps.
END, STATE = "@end", "@state"
#: Sleeps in a row, in which a replay takes nothing from its journal, after which it waits for what will not come.
IDLE_SLEEPS = 1_000


class Departed(FlowError):
    """A run does something else than its journal says."""


class JournalEnds(BaseException):
    """The journal has nothing more. No operator can handle it: the run was stopped here."""


class Unanswered(Exception):
    """A request that the journal has no answer to: its worker died, or the run ended before."""


class Recording(Decisions):
    """Notes the decisions of a run, or of a part of one on a worker, which sends them with its answers."""

    active = True

    def __init__(self, name: str = "", loads: int = 0) -> None:
        self.name, self.loads = name, loads
        self._points: dict[tuple[str, int], int] = {}
        self._empty: Counter[str] = Counter()  # answers of each point since its last entry
        self._lives: Counter[str] = Counter()
        self._answers = 0
        self._noted = msgpack.Packer(autoreset=False)
        self._pack: Callable[[int | str | bytes], Any] = self._noted.pack

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker gets it before anything is noted."""
        return type(self), (self.name, self.loads)

    def woven(self, plan: Plan) -> Plan:
        return with_notes(plan)

    def decide(self, point: str, seen: Sequence[int]) -> Sequence[int]:
        if not seen:
            self._empty[point] += 1
            return seen
        self._answer(point, self._empty.pop(point, 0), seen)
        return seen

    def settles(self, point: str, answered: Sequence[tuple[int, bool]]) -> Sequence[tuple[int, bool]]:
        self.decide(point, [2 * place + died for place, died in answered])
        return answered

    def happens(self, point: str, seen: bool, *, lost: bool = False) -> bool:
        self.decide(point, [2 if lost else 1] if seen else ())
        return seen

    def _answer(self, point: str, empty: int, codes: Sequence[int]) -> None:
        pack = self._entry(point, ANSWER)
        pack(empty)
        pack(len(codes))
        for code in codes:
            pack(code if code < 2**63 else code.to_bytes(code.bit_length() // 8 + 1, "little"))

    def settle(self) -> None:
        """Note the empty answers so far, so that another process may go on behind them."""
        for point, count in self._empty.items():
            self._answer(point, count - 1, ())
        self._empty.clear()

    def item(self, path: str, digest: int) -> None:
        self._entry(path, ITEM)(digest & 0xFFFF)

    def part(self, gather: str, index: int) -> Decisions:
        return Recording(_part_name(self, gather, index))

    def heard(self, part: str, noted: bytes) -> None:
        self._entry(part, PART)(noted)

    def answer(self) -> bytes:
        number, self._answers = self._answers, self._answers + 1
        return bytes(msgpack.packb(number)) + self.drain()

    def states(self) -> tuple[bool, bool]:
        self.decide(STATE, ())
        return False, False

    def saved(self) -> None:
        self.decide(STATE, [1])

    def loaded(self) -> None:
        self.decide(STATE, [2])
        self.loads += 1
        self._lives.clear()

    def begin(self, loads: int) -> None:
        """Forget all that was noted, to go on with the journal of a run that has loaded so many states."""
        self.__init__(self.name, loads)  # type: ignore[misc]

    def end(self) -> None:
        """Note that the run ends here, as it should."""
        self.decide(END, [1])

    def renumber(self) -> None:
        """Number the points anew: what follows is read by itself."""
        self._points.clear()

    def drain(self) -> bytes:
        """Remove and return what was noted since the last call."""
        noted = bytes(self._noted.bytes())
        self._noted.reset()
        return noted

    def _entry(self, point: str, kind: int) -> Callable[[int | str | bytes], Any]:
        """Begin an entry of a point; returns what notes the next one of its values."""
        pack = self._pack
        number = self._points.get((point, kind))
        if number is None:
            pack(point)
            pack(kind)
            number = self._points[point, kind] = len(self._points) + 1
        pack(number)
        return pack


def _part_name(decisions: Recording | Replay, gather: str, index: int) -> str:
    """The name of the part that a worker opens now: no two of a run have the same one."""
    place = f"{gather}/{index}"
    life = decisions._lives[place]
    decisions._lives[place] += 1
    return f"{place}.{decisions.loads}.{life}"


class _Values:
    """The values of a journal, each of a kind that is expected. None takes more memory than it has bytes."""

    def __init__(self, data: bytes) -> None:
        size = len(data)
        self._data, self._unpacker = data, msgpack.Unpacker(max_buffer_size=size or 1, **dict.fromkeys(_LISTS, 0))
        self._unpacker.feed(data)

    def next(self, *kinds: type) -> Any:
        """The next one. Raises: EOFError: there is none that is whole; FlowError: it is another one."""
        try:
            value = self._unpacker.unpack()
        except msgpack.OutOfData:
            raise EOFError from None
        except (ValueError, msgpack.UnpackException):  # also of a text that is none
            value = None
        if type(value) not in kinds or (type(value) is int and value < 0):
            raise FlowError(f"the journal is damaged at byte {self._unpacker.tell():,} of what it unpacks to")
        return value

    def number(self) -> int:
        return int(self.next(int))

    def rest(self) -> bytes:
        """What is left."""
        return self._data[self._unpacker.tell() :]


#: What a journal has none of: a length in a few bytes, by which a reader would take memory for what may never come.
_LISTS = "max_array_len", "max_map_len", "max_ext_len"


def entries(data: bytes) -> Iterator[tuple[int, str, Any]]:
    """The whole entries in the bytes of a journal: kind, point, and empty answers with codes, a digest, or bytes.

    Raises: FlowError: it is damaged.
    """
    read, points = _Values(data), list[tuple[int, str]]()
    with suppress(EOFError):  # of a run that was killed
        while True:
            if isinstance(point := read.next(int, str), str):
                points.append((read.number(), point))
                continue
            if not 0 < point <= len(points):
                raise FlowError(f"the journal is damaged: it has an entry of point {point}, and {len(points)} points")
            kind, name = points[point - 1]
            if kind == ANSWER:
                empty, count = read.number(), read.number()
                codes = [read.next(int, bytes) for _ in range(count)]
                yield kind, name, (empty, [int.from_bytes(c, "little") if type(c) is bytes else c for c in codes])
            else:
                yield kind, name, read.number() if kind == ITEM else read.next(bytes)


class Replay(Decisions):
    """Answers what a journal has, and compares the items.

    Args:
        parts: The bytes of the journal, one of each process that wrote it: a resumed run has several.
        name: Of the part of a plan that it is for, "" for a whole run.
        compares: Whether an item with another digest departs. It need not where last bits differ, as on a processor of
            another kind.

    Attributes:
        whole: Whether the run ended as it should, and was not killed.
        departure: Where the run first did something else, in words; "" if it did not.
    """

    active = replays = True

    def __init__(self, parts: Sequence[bytes], name: str = "", *, compares: bool = True) -> None:
        self.name, self.loads, self.whole, self.departure = name, 0, False, ""
        self.compares = compares
        self._order: Sequence[str] = ()
        self.items = Counter[str]()  #: that left each operator so far
        self._lives: Counter[str] = Counter()
        self._answers: dict[str, deque[tuple[int, list[int]]]] = {}
        self._items, self._digests = list[str](), array("H")  # of each item, by whom and which
        self._parts: dict[str, dict[int, bytes]] = {}
        self._at, self._idle = 0, 0
        self._opened: list[Replay] = []
        for data in parts:
            for kind, point, content in entries(data):
                self.whole = point == END
                if kind == ANSWER and not self.whole:
                    self._answers.setdefault(point, deque()).append(content)
                elif kind == ITEM:
                    self._items.append(point)
                    self._digests.append(content & 0xFFFF)
                elif kind == PART:
                    read = _Values(content)
                    with suppress(EOFError):
                        number = read.number()
                        self._parts.setdefault(point, {})[number] = read.rest()
        #: Its decisions and items, without those that workers noted for their answers.
        self.size = self._left = len(self._items) + sum(map(len, self._answers.values()))

    @property
    def num_items(self) -> int:
        """Its items, those on workers included."""
        parts = (Replay(_in_order(noted)) for noted in self._parts.values())
        return len(self._items) + sum(len(part._items) for part in parts)

    def woven(self, plan: Plan) -> Plan:
        return with_notes(plan)

    def opened(self, order: Sequence[str]) -> None:
        self._order = order

    @property
    def taken(self) -> int:
        """How many of them the run has come to so far."""
        return self.size - self._left

    def decide(self, point: str, seen: Sequence[int]) -> Sequence[int]:
        if not self._left:
            self._end()
        if not (waiting := self._answers.get(point)):
            return ()
        empty, codes = waiting[0]
        self._idle = 0
        if empty:
            waiting[0] = empty - 1, codes
            return ()
        waiting.popleft()
        self._left -= 1
        return codes

    def settles(self, point: str, answered: Sequence[tuple[int, bool]]) -> Sequence[tuple[int, bool]]:
        return [(code // 2, bool(code % 2)) for code in self.decide(point, ())]

    def happens(self, point: str, seen: bool, *, lost: bool = False) -> bool:
        codes = self.decide(point, ())
        if 2 in codes:
            self.depart(point, "lost a request by a death, which is not repeated")
        return bool(codes)

    def item(self, path: str, digest: int) -> None:
        if not self._left:
            if self.name:  # nobody heard of it
                return
            self._end()
        self.items[path] += 1
        there = self._at < len(self._items)
        expected, noted = (self._items[self._at], self._digests[self._at]) if there else ("", 0)
        if expected == path and (noted == digest & 0xFFFF or not self.compares):
            self._at += 1
            self._left -= 1
            self._idle = 0
            return
        if expected != path and self._place(expected) > self._place(path):
            self.depart(expected, f"emits nothing where the journal has its item {self.items[expected] + 1}")
        self.depart(path, f"item {self.items[path]} differs" if expected == path else
                    f"emits item {self.items[path]}, and the journal has none there")  # fmt: skip

    def _place(self, path: str) -> int:
        return self._order.index(path) if path in self._order else -1

    def depart(self, path: str, what: str) -> None:
        where = f"{path} on worker {self.name.rpartition('/')[2].partition('.')[0]}" if self.name else path
        self.departure = self.departure or f"{where}: {what}"
        raise Departed(f"the run departs from its journal at {self.departure}")

    def departed(self) -> str:
        """Where the run or a worker's part of it first departed, in words; "" if it did not."""
        return next((each.departure for each in [*self._opened, self] if each.departure), "")

    def failed(self, error: BaseException) -> None:
        if isinstance(error, Unanswered):
            raise JournalEnds from error  # it was cut off between the arrival and what the worker noted

    def _end(self) -> None:
        if self.name:
            raise Unanswered(f"the journal has no answer of {self.name} to this request")
        raise JournalEnds

    def part(self, gather: str, index: int) -> Decisions:
        name = _part_name(self, gather, index)
        self._opened.append(part := Replay(_in_order(self._parts.get(name, {})), name, compares=self.compares))
        return part

    def states(self) -> tuple[bool, bool]:
        codes = self.decide(STATE, ())
        return bool(codes), 2 in codes

    def saved(self) -> None:
        self.decide(STATE, ())

    def loaded(self) -> None:
        self.loads += 1
        self._lives.clear()

    def check_idle(self) -> None:
        self._idle += 1
        if self._idle > IDLE_SLEEPS:
            points = ", ".join(sorted(point for point, waiting in self._answers.items() if waiting))
            self.depart(points or "the plan", "waits, but the journal goes on otherwise")


def _in_order(noted: dict[int, bytes]) -> list[bytes]:
    return [b"".join(noted[number] for number in sorted(noted))]
