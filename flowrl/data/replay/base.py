"""Store: the interface of buffers to the replay operators."""

from __future__ import annotations

import abc
import copy
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.engine.schema import Schema
from flowrl.engine.workers.futures import Future, completed, failed
from flowrl.engine.workers.local import wait_for
from flowrl.saved import Saved, all_or_nothing, random_generator

SAVED = "the saved buffer"
"""The name of a store's state in errors."""
PADDED = "which would be drawn like any other: put NStep(n=1, gamma=...) before the buffer, it drops them"
"""Why a plain buffer refuses steps with mask 0, and the way out."""


class Seeds(Protocol):
    """The engine's seeds, as a store uses them."""

    def seed(self, name: str = "") -> int: ...


class Store(abc.ABC):
    """The buffer that StoreToReplay adds to and Replay draws from. It counts rows: steps, or objects.

    A subclass defines contents, counts and state; these and the limiter determine when to add and when to draw. It
    draws with its own `_generator` (P7), and changes under `_lock`. No method waits.

    Args:
        limiter: keeps sampled and added rows in a ratio.
        seed: seed of the generator; None: the run that opens the store provides one.
    """

    requires: tuple[str, ...] = ()
    """Words and columns that added items need, for `plan.check()`."""
    tracked: tuple[str, ...] = ()
    """Columns of samples whose means a run reports."""
    in_order = False
    """Whether fragments of a worker must be consecutive, without fragments of other workers in between."""
    takes_padding = True
    """Whether items may have steps with mask 0."""
    streams = 1
    """The number of workers whose fragments are kept apart."""
    by_priority = False
    """Whether it has `update_priorities`."""

    def __init__(self, limiter: RateLimiter | None, seed: int | None) -> None:
        self.limiter = limiter
        self._own_generator = None if seed is None else np.random.default_rng(seed)
        self._lock = threading.RLock()

    # -- what a subclass defines

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """The capacity in rows."""

    @property
    @abc.abstractmethod
    def inserts(self) -> int:
        """Rows ever added."""

    @property
    @abc.abstractmethod
    def samples(self) -> int:
        """Rows ever drawn."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Rows stored."""

    @abc.abstractmethod
    def rows_of(self, item: Any) -> int:
        """The number of rows of an item that is added or was drawn."""

    @abc.abstractmethod
    def add(self, item: Any, /) -> None:
        """Add rows; a full store drops some, usually the oldest."""

    @abc.abstractmethod
    def sample(self, batch_size: int, /) -> Any:
        """Draw `batch_size` rows, or items made of rows."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state that determines all later samples."""

    def _load(self, saved: Saved) -> None:
        """Restore a saved state of which nothing was checked yet: replace attributes, change none in place."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Raises: CheckpointError for the state of a store with other settings, and for one that is malformed or at odds
            with itself; the store is then as it was (D7).
        """
        with self._lock, all_or_nothing(self, SAVED):
            self._load(Saved(state, SAVED))

    parts: tuple[Store, ...] = ()
    """The stores that it draws from, if it combines several."""

    def schema(self, given: Schema) -> Schema:
        """The schema of samples, from the schema of the added items, or of those of each part."""
        return given

    def kept_once(self, given: Schema) -> str:
        """What added items of this schema repeat and the store keeps once, for `explain`; "" if nothing."""
        return ""

    def drawn_from(self, batch_size: int) -> Sequence[tuple[Store, int]]:
        """The stores that `sample(batch_size)` draws from, with the largest share of each."""
        return [(self, batch_size)]

    def declared_rows(self, batch_size: int) -> int:
        """The most rows of `sample(batch_size)`, as far as known before anything is stored."""
        return batch_size

    def most_rows(self, batch_size: int) -> int:
        """The most rows that `sample(batch_size)` can return now, as the limiter counts them."""
        return self.declared_rows(batch_size)

    @property
    def promised(self) -> int:
        """The most rows of outstanding requests."""
        return 0

    @property
    def takes_remote(self) -> bool:
        """Whether items may be `Remote`, and go to the store directly from where they are."""
        return False

    # -- derived

    def __bool__(self) -> bool:
        return True  # an empty store is still a store: `if store` must not depend on its rows

    @property
    def holds_items(self) -> bool:
        """Whether it can be drawn from before a plan adds items."""
        return self._can_draw(1)

    @property
    def fills_up(self) -> bool:
        """Whether adding may block until something is drawn."""
        return self.limiter is not None

    def can_insert(self, rows: int) -> bool:
        """Whether `rows` more may be added now.

        It overrides the limiter if the largest batch cannot be drawn, as before the end of the first episode or when
        most rows are used up: otherwise both sides would wait for ever (B8).
        """
        return self._may_insert(rows)

    def _may_insert(self, rows: int) -> bool:
        """`can_insert` for who only looks: it takes in no answer of a shard, which would be a decision (J1, E4)."""
        if self.limiter is None or self.limiter.can_insert(self.inserts, self.samples, rows):
            return True
        return not self._can_draw(max(1, self.limiter.sample_batch // self.most_rows(1)))

    def can_sample(self, batch_size: int) -> bool:
        """Whether `batch_size` may be drawn now."""
        if self.limiter is not None:
            rows = self.most_rows(batch_size)
            if not self.limiter.can_sample(self.inserts, self.samples + self.promised, rows):
                return False
        return self._can_draw(batch_size)

    def is_full(self, item: Any) -> bool:
        """Whether `item` must wait for items on their way."""
        return False

    def ask(self, batch_size: int) -> Future[Any]:
        """Request a sample, if `can_sample`; pass the future to `answered` and nothing else."""
        try:
            return completed(self.sample(batch_size))
        except Exception as error:
            return failed(error)

    def arrived(self, futures: Sequence[Future[Any]]) -> list[Future[Any]]:
        """Those futures of samples that are completed."""
        return [future for future in futures if future.done()]

    def answered(self, future: Future[Any]) -> Any:
        """The sample of a completed future; None if the store could not provide it."""
        return future.result()

    def drain(self, futures: Iterable[Future[Any]]) -> None:
        """Wait for samples on their way, for a state. Raises Stalled if they do not come."""
        wait_for(futures, f"batches from {self!r}")

    def why_insert(self, rows: int) -> str:
        """The reason why `rows` cannot be added now, in one sentence; "" if they can."""
        if self.limiter is None or self._may_insert(rows):
            return ""
        return self.limiter.why_insert(self.inserts, self.samples, rows)

    def why_sample(self, batch_size: int) -> str:
        """The reason why `batch_size` cannot be drawn now, in one sentence; "" if it can."""
        if self.limiter is not None:
            why = self.limiter.why_sample(self.inserts, self.samples + self.promised, self.most_rows(batch_size))
            if why:
                return why
        return "" if self._can_draw(batch_size) else self._why_not(batch_size)

    def _can_draw(self, batch_size: int) -> bool:
        """Whether the contents allow a draw, regardless of the limiter."""
        return len(self) > 0

    def _why_not(self, batch_size: int) -> str:
        """The reason why `_can_draw` is False, in one sentence."""
        return "waits for rows: nothing is stored yet"

    def start(self, context: Seeds) -> None:
        """The engine's hook at the start of a run: take a generator from its seeds, unless there is one."""
        if self._own_generator is None:
            self._own_generator = np.random.default_rng(context.seed("sample"))

    # -- the generator and the lock

    @property
    def _generator(self) -> np.random.Generator:
        if self._own_generator is None:
            raise ValueError(f"no generator to draw with: give {type(self).__name__} a seed=, or use it in a run")
        return self._own_generator

    def _generator_state(self) -> Any:
        """The generator's state as plain data; None if there is none yet."""
        return None if self._own_generator is None else copy.deepcopy(self._own_generator.bit_generator.state)

    def _load_generator(self, saved: Saved) -> None:
        self._own_generator = random_generator(saved, "generator") or self._own_generator

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
