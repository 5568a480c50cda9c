"""One operator of a running plan: its place, its measurements, and the handling of its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

import attrs

from flowrl.engine.context import Context
from flowrl.engine.failure import NO_ITEM, note_failure
from flowrl.engine.operator import describe
from flowrl.engine.protocols import OperatorContract
from flowrl.errors import notes_of

log = logging.getLogger("flowrl")

#: Number of attempts that `on_error="retry"` makes with one item.
MAX_ATTEMPTS = 3


@attrs.define(eq=False)
class Meter:
    """Measurements of one running operator. Times are in seconds.

    `maker` is the operator whose function returned its items, with the user's line; "" if that is not certain.
    """

    path: str
    site: str
    op: Any
    verb: str
    context: Context
    on_error: str = "stop"
    maker: str = ""
    items: int = 0
    skipped: int = 0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    _attempts: dict[Any, int] = attrs.field(factory=dict)

    @property
    def contract(self) -> OperatorContract:
        return OperatorContract(self.op)

    @property
    def pure(self) -> bool:
        return bool(self.contract.pure) or self.verb in ("source", "call")

    def judge(self, error: BaseException, item: Any = NO_ITEM, request: Any = None) -> str:
        """Decide on an error at this operator: "raise", "skip" the item or "retry" it.

        The error keeps its type and gains one note (F9). `request` identifies the attempt if several run at
        a time; then the caller reports success by `succeeded`.
        """
        number = self.items + self.skipped + 1
        if request is None and number not in self._attempts:
            self._attempts.clear()
        note = self.blamed(error, item)
        verdict = self._verdict(error, item, number if request is None else request)
        if verdict == "skip" or (verdict == "raise" and not self.pure):
            self.skipped += 1  # also if the run goes on after the error
        if verdict == "skip":
            self.context.count("skipped_items")
            log.warning("skipped: %r %s", error, note)
        elif verdict == "retry":
            self.context.count("retried_items")
            log.warning("retried: %r %s", error, note)
        return verdict

    def blamed(self, error: BaseException, item: Any = NO_ITEM) -> str:
        """Note on an error that this operator raised it, unless another operator has done so (F9)."""
        seen = "" if item is NO_ITEM else f", input {describe(item)}"
        if item is None and self.maker:
            seen = f", input None: {self.maker} returned it, does it lack a `return`?"
        note = f"in operator {self.path} ({self.site}), item {self.items + self.skipped + 1}{seen}"
        if not judged(error):
            error.add_note(note)
            note_failure(error, self, item)
        return note

    def succeeded(self, request: Any) -> None:
        """Forget the failed attempts of a request, which was answered now."""
        self._attempts.pop(request, None)

    def _verdict(self, error: BaseException, item: Any, attempt: Any) -> str:
        if not isinstance(error, Exception) or self.on_error == "stop":
            return "raise"
        if self.on_error == "skip" and item is not NO_ITEM:
            return "skip"
        if not self.pure:
            return "raise"
        attempts = self._attempts.pop(attempt, 0) + 1
        if attempts >= MAX_ATTEMPTS:
            return "raise"
        self._attempts[attempt] = attempts
        return "retry"


def telling(tell: Callable[[str, float], None]) -> type[Meter]:
    """A kind of meter that tells each busy span, for runs with an observer: others pay nothing for it."""
    slot = vars(Meter)["busy"]

    def add(meter: Meter, seconds: float) -> None:
        before: float | None = None  # while it is being made
        with suppress(AttributeError):
            before = slot.__get__(meter)
        slot.__set__(meter, seconds)
        if before is not None:
            tell(meter.path, seconds - before)

    return type("TellingMeter", (Meter,), {"__slots__": (), "busy": property(slot.__get__, add)})


@attrs.define(eq=False)
class SecondsByThread:
    """Busy seconds of operators by the thread that pulled them, where threads take turns in pulling a stage."""

    meters: list[Meter]
    busy: dict[int, dict[str, float]] = attrs.field(factory=dict)  #: by identifier of the thread and by path

    def pull(self, step: Callable[[], Any]) -> Any:
        """The result of a step, whose busy seconds count for the current thread."""
        before = [meter.busy for meter in self.meters]
        try:
            return step()
        finally:
            mine = self.busy.setdefault(get_ident(), {})
            for meter, earlier in zip(self.meters, before):
                mine[meter.path] = mine.get(meter.path, 0.0) + meter.busy - earlier


def judged(error: BaseException) -> bool:
    """Whether an operator, possibly on a worker, has judged this error already."""
    return any(note.startswith("in operator ") for note in notes_of(error))
