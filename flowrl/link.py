"""One operator of a running plan: where it stands, what was measured of it, and what its errors lead to."""

from __future__ import annotations

import logging
from typing import Any, Literal

import attrs

from flowrl.context import Context
from flowrl.operator import describe

log = logging.getLogger("flowrl")

#: How often `on_error="retry"` tries one item before it gives up.
MAX_ATTEMPTS = 3

ErrorPolicy = Literal["stop", "skip", "retry"]


@attrs.define(eq=False)
class Link:
    """What the engine knows of one running operator. Times are in seconds."""

    path: str
    site: str
    op: Any
    verb: str
    context: Context
    on_error: ErrorPolicy = "stop"
    items: int = 0
    skipped: int = 0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    _failed_item: int = -1
    _attempts: int = 0

    @property
    def pure(self) -> bool:
        return bool(getattr(self.op, "pure", False)) or self.verb in ("source", "call")

    def judge(self, error: BaseException, item: Any) -> str:
        """What becomes of an error at this operator: "raise", "skip" the item or "retry" it.

        The error keeps its type and gains one note (F9).
        """
        number = self.items + self.skipped + 1
        seen = "" if self.verb == "source" else f", input {describe(item)}"
        note = f"in operator {self.path} ({self.site}), item {number}{seen}"
        if not any(n.startswith("in operator ") for n in getattr(error, "__notes__", ())):
            error.add_note(note)
        if not isinstance(error, Exception) or self.on_error == "stop":
            return "raise"
        if self.on_error == "skip":
            self.skipped += 1
            self.context.count("skipped_items")
            log.warning("skipped: %r %s", error, note)
            return "skip"
        self._attempts = self._attempts + 1 if self._failed_item == number else 1
        self._failed_item = number
        if not self.pure or self._attempts >= MAX_ATTEMPTS:
            return "raise"
        self.context.count("retried_items")
        log.warning("retried: %r %s", error, note)
        return "retry"
