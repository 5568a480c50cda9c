"""Routes: which of several stores is given what."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowrl.data.arrays import Array
from flowrl.data.steps import is_fragment
from flowrl.remote import Remote

log = logging.getLogger("flowrl")


class Routes:
    """Items go to stores in turn; fragments `[T, N, ...]` that must follow one another to the store of their worker.

    That is store `worker % count`. A fragment of several workers side by side is parted. What is padded (`mask`) is
    complete, so that nothing need follow it.

    >>> from flowrl.data.batch import Batch
    >>> routes = Routes(2, in_order=True)
    >>> [(store, part.obs.tolist()) for store, part in routes.parts(Batch(obs=[[5, 6, 7]], worker=[[0, 1, 2]]))]
    [(0, [[5, 7]]), (1, [[6]])]

    Args:
        count: Of the stores.
        in_order: Whether fragments must follow one another.

    Attributes:
        turn: The store that the next item goes to, if it may go to any.
    """

    def __init__(self, count: int, *, in_order: bool) -> None:
        self.count, self.in_order = count, in_order
        self.turn = 0
        self._owners: dict[int, tuple[int, ...]] = {}  # whose fragments a store was given first
        self._said = False

    def parts(self, item: Any) -> Iterator[tuple[int, Any]]:
        """What goes to which store."""
        if self.count > 1 and self.in_order and (workers := _workers(item)) is not None:
            stores = workers % self.count
            for store in np.unique(stores).tolist():
                mine = np.flatnonzero(stores == store)
                self._note(store, tuple(np.unique(workers[mine]).tolist()))
                yield store, item if len(mine) == len(stores) else item[:, mine]
            return
        yield self.turn, item
        self.turn = (self.turn + 1) % self.count

    def _note(self, store: int, workers: tuple[int, ...]) -> None:
        """Say once where `plan.check()` could not foresee it: workers were added, say."""
        first = self._owners.setdefault(store, workers)
        if first != workers and not self._said:
            self._said = True
            log.warning(
                "fragments of the workers %s and %s go to replay shard %d in turn, so that none is followed by the "
                "next one of its worker; take as many shards as workers",
                *(", ".join(map(str, each)) for each in (first, workers)),
                store,
            )


def _workers(item: Any) -> Array | None:
    """The worker of each environment `[N]` of a fragment that others should follow; None for anything else."""
    if isinstance(item, Remote):
        return np.array([item.worker or 0])
    if "mask" in item or not is_fragment(item):
        return None
    return np.asarray(item["worker"][0]) if "worker" in item else np.zeros(item.shape[1], np.int64)
