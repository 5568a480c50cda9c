"""The item at which an operator failed: it travels with the error, also from a worker in another process."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.operator import operator_state

if TYPE_CHECKING:
    from flowrl.engine.meter import Meter

#: Most bytes of an item that another process sends with an error.
MOST_BYTES = 64 * 2**20

#: Replaces the item of an operator without one: a source, or a request to a worker.
NO_ITEM: Any = object()

_NAME = "__flowrl_failure__"


@attrs.define(eq=False)
class Failure:
    """What failed, as it is after the error.

    Args:
        operator: Its path; `worker` is the index of the worker that ran it, None for the driver.
        number: That of the item.
        has_item: Whether there was one: a source has none, nor has an operator whose input has ended. One that could
            not be sent from another process is lost.
        state: The operator's state fields; `seeds`: the state of the random streams of its part of the plan.
    """

    operator: str
    number: int
    has_item: bool
    item: Any = attrs.field(repr=False)
    worker: int | None = None
    meter: Meter | None = attrs.field(default=None, repr=False)  #: in the process where it failed
    sent: tuple[dict[str, Any], dict[str, Any]] | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, meter: Meter, item: Any) -> Failure:
        """That of an operator, before it counts the item as skipped."""
        has_item = item is not NO_ITEM
        on_worker = re.match(r"worker(\d+)/", meter.context.path)
        index = None if on_worker is None else int(on_worker[1])
        number = meter.items + meter.skipped + 1
        return cls(meter.path, number, has_item, item if has_item else None, index, meter)

    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of the state of the operator, and of its random streams."""
        if self.sent is not None:
            return self.sent
        assert self.meter is not None
        return operator_state(self.meter.op, self.operator), self.meter.context.seeds.state_dict()

    def __reduce__(self) -> Any:
        """In another process: without an item that cannot be sent, for the error's sake, which must arrive."""
        try:
            states, item = self.states(), self.item
            pickle.loads(pickle.dumps(states))
            packed = pickle.dumps(item)
            pickle.loads(packed)
            has_item = self.has_item and len(packed) <= MOST_BYTES
        except Exception:  # each type raises its own kind of error
            states, has_item = ({}, {}), False
        item = self.item if has_item else None
        return Failure, (self.operator, self.number, has_item, item, self.worker, None, states)


def note_failure(error: BaseException, meter: Meter, item: Any) -> None:
    """Attach what failed to the error of an operator."""
    vars(error)[_NAME] = Failure.of(meter, item)


def failure_of(error: BaseException | None) -> Failure | None:
    """What failed, where an operator raised the error or one that it comes from."""
    while error is not None:
        if (found := vars(error).get(_NAME)) is not None:
            return found if isinstance(found, Failure) else None
        error = error.__cause__
    return None
