"""The operators behind the verbs batch, flatten, shuffle and take, taps and breakpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import attrs

from flowrl.engine.context import Context
from flowrl.engine.operator import context, declare, not_negative, operator, pure, state, whole
from flowrl.engine.protocols import OperatorContract
from flowrl.engine.schema import UNKNOWN, Schema


@operator
class Batches:
    """Items -> lists of `size` items; the last one is shorter. State: the open list.

    >>> batches = Batches(2)
    >>> [batches(1), batches(2), batches(3), batches.finish()]
    [[], [[1, 2]], [], [[3]]]
    """

    verb = "combine"
    size: int = attrs.field(converter=lambda size: whole("batch", "size", size, 1))
    open: list[Any] = state(factory=list)

    def schema(self, given: Schema) -> Schema:
        return Schema(of=given)

    def __call__(self, item: Any) -> list[Any]:
        self.open.append(item)
        return self.finish() if len(self.open) == self.size else []

    def finish(self) -> list[Any]:
        full, self.open = self.open, []
        return [full] if full else []


@operator
class Shuffle:
    """The items in random order: each leaves from a random place of a buffer of `size` items. State: the buffer.

    It holds `size` items before the first leaves; at the end the rest leaves in random order.
    """

    verb = "combine"
    provides = ()
    size: int = attrs.field(converter=lambda size: whole("shuffle", "buffer_size", size, 1))
    held: list[Any] = state(factory=list)
    context: Context = context()

    def __call__(self, item: Any) -> list[Any]:
        if len(self.held) < self.size:
            self.held.append(item)
            return []
        at = int(self.context.generator().integers(self.size))
        chosen, self.held[at] = self.held[at], item
        return [chosen]

    def finish(self) -> list[Any]:
        rest, self.held = self.held, []
        return [rest[at] for at in self.context.generator().permutation(len(rest))]


@operator
class Take:
    """The first `n` items. State: the number of items taken."""

    provides = ()
    n: int = attrs.field(converter=lambda n: whole("take", "n", n, 0))
    taken: int = state(default=0, check=not_negative)

    @property
    def done(self) -> bool:
        return self.taken >= self.n

    def __call__(self, item: Any) -> Any:
        self.taken += 1
        return item


@pure
@declare(schema=lambda given: given.of or UNKNOWN)
def flatten(item: Any) -> Any:
    """The elements of an item, for `combine`."""
    return item


@operator
class Tap:
    """Calls a function with each item and passes the item on unchanged."""

    function: Callable[[Any], Any] = attrs.field(repr=False)  # the name says it

    @property
    def hidden(self) -> bool:
        return OperatorContract(self.function).hidden

    def __call__(self, item: Any) -> Any:
        self.function(item)
        return item


@operator
class RunHooks:
    """Calls functions with the run: `before` after it opens, `after` before it closes. Passes items on."""

    before: Callable[[Any], Any] | None = attrs.field(repr=False)
    after: Callable[[Any], Any] | None = attrs.field(repr=False)

    def __call__(self, item: Any) -> Any:
        return item


@operator
class Breakpoint:
    """Opens the debugger at an item for which `when` is true, or at every item.

    Called only for Python's debuggers: `flowrl.inspect.debugger` replaces it otherwise.
    """

    where: str
    when: Callable[[Any], bool] | None = None

    def __call__(self, item: Any) -> None:
        if self.when is None or self.when(item):
            sys.breakpointhook()  # `item` has just left the operator `self.where`; `continue` goes on
