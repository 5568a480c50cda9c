"""Operators that show the items of a running plan."""

from __future__ import annotations

from typing import TypeVar

from flowrl.engine.operator import declare, describe, pure

Item = TypeVar("Item")


@pure
@declare(provides=())
def debug_print(item: Item) -> Item:
    """Print a summary of an item, and pass it on.

    >>> debug_print({"loss": 0.5})
    dict(loss: float)
    {'loss': 0.5}
    """
    print(describe(item), flush=True)
    return item
