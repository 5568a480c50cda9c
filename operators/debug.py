"""Operators that show the items of a running plan."""

from __future__ import annotations

from typing import TypeVar

from flowrl.engine.operator import declare, pure, summarize

Item = TypeVar("Item")


@pure
@declare(provides=())
def debug_print(item: Item) -> Item:
    """Print the values of an item, of its columns the least, mean and largest, and pass it on.

    >>> debug_print({"loss": 0.5})
    loss=0.5
    {'loss': 0.5}
    """
    print(summarize(item), flush=True)
    return item
