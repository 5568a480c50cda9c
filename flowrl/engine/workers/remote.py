"""A value that stays in its process or object store, and is fetched only on demand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import attrs

from flowrl.engine.protocols import Columns, has_member

_Value = TypeVar("_Value")


def _here(value: _Value) -> _Value:
    return value


@attrs.frozen(repr=False)
class Remote:
    """A reference to a value in another process or in an object store.

    As an argument of a worker's `submit` it arrives there as the value, by the shortest way. A deep copy is the value.

    >>> Remote("a fragment", rows=256, nbytes=12_345)
    Remote(256 rows, 12 kB)

    Args:
        ref: The store's reference; it keeps the value alive.
        rows: Rows of the value, 0 if it has none.
        nbytes: Size of the value, in bytes.
        worker: Index of the worker that produced it, if known.
        get: Maps a `ref` to its value; a value in this process is its own `ref`.
    """

    ref: Any
    rows: int
    nbytes: int
    _get: Callable[[Any], Any] = _here
    worker: int | None = None

    def fetch(self) -> Any:
        """The value.

        Raises:
            WorkerDied: the value is lost with its process or machine.
        """
        return self._get(self.ref)

    def __deepcopy__(self, memo: object) -> Any:
        """The value, so that a state holds no reference, which would not outlive its process."""
        return copy.deepcopy(self.fetch())

    def __repr__(self) -> str:
        return f"Remote({self.rows} rows, {self.nbytes // 1000} kB)"


def measured(value: Any) -> tuple[int, int]:
    """Rows and bytes of a value: of its columns, or of the values in a list.

    >>> measured([b"no rows, no columns"])
    (0, 0)
    """
    if isinstance(value, (list, tuple)):
        both = [measured(each) for each in value]
        return sum(rows for rows, _ in both), sum(nbytes for _, nbytes in both)
    return int(value.rows if has_member(type(value), "rows") else 0), nbytes_of(value)


def nbytes_of(value: Any) -> int:
    """Bytes of a value: of its columns, or of the values in a list; 0 for what does not say."""
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes_of, value))
    of_any: Any = type(value)
    kind = _kind(of_any)
    if kind == "sized":
        return value.nbytes if isinstance(value.nbytes, int) else 0
    return sum(nbytes_of(part) for _, part in value.items()) if kind == "columns" else 0


@lru_cache(maxsize=256)  # asked for each item that a worker sends
def _kind(kind: type) -> str:
    if has_member(kind, "nbytes"):  # a batch would look for a column, and for names like it
        return "sized"
    return "columns" if issubclass(kind, Columns) else ""
