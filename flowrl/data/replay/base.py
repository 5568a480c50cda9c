"""Store: what the replay operators ask of a buffer, whatever it holds."""

from __future__ import annotations

import abc
import copy
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from flowrl.data.replay.rate_limiter import RateLimiter
from flowrl.engine.futures import Future
from flowrl.engine.schema import Schema
from flowrl.engine.workers import InlineWorker


class Seeds(Protocol):
    """The engine's seeds, as a store sees them."""

    def seed(self, name: str = "") -> int: ...


class Store(abc.ABC):
    """What StoreToReplay adds to and Replay draws from. Rows are what it counts: steps, or objects.

    A subclass has what it holds, its counts and its state; when to add and when to draw follows from these and the
    limiter. It draws with `_generator`, its own (P7), and changes under `_lock`. Nothing here waits.

    Args:
        limiter: keeps sampled and added rows in a ratio.
        seed: of the generator; without it, the run that opens the store gives one.
    """

    requires: tuple[str, ...] = ()
    """Words and columns of what is added, for `plan.check()`."""
    tracked: tuple[str, ...] = ()
    """Columns of what is drawn whose means a run reports."""
    in_order = False
    """Whether the fragments of a worker must follow one another, without another worker's between them."""
    streams = 1
    """Of how many workers the fragments are kept apart."""
    by_priority = False
    """Whether it has `update_priorities`."""

    def __init__(self, limiter: RateLimiter | None, seed: int | None) -> None:
        self.limiter = limiter
        self._own_generator = None if seed is None else np.random.default_rng(seed)
        self._lock = threading.RLock()

    # -- what a subclass has

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """Rows that there is room for."""

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
        """How many rows an item is that is added or was drawn."""

    @abc.abstractmethod
    def add(self, item: Any, /) -> None:
        """Add rows, overwriting the oldest."""

    @abc.abstractmethod
    def sample(self, batch_size: int, /) -> Any:
        """Draw so many rows, or things made of rows."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that decides what comes next."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the store that was saved."""

    parts: tuple[Store, ...] = ()
    """Stores that it is made of: what goes into them comes out of it."""

    def schema(self, given: Schema) -> Schema:
        """What `sample` gives, from the schema of what is added; where there are parts, from one for each of them."""
        return given

    def drawn_from(self, batch_size: int) -> Sequence[tuple[Store, int]]:
        """Which stores `sample(batch_size)` draws from, and at most how much from each."""
        return [(self, batch_size)]

    def declared_rows(self, batch_size: int) -> int:
        """The rows that `sample(batch_size)` may give, as far as that is known before anything is stored."""
        return batch_size

    def most_rows(self, batch_size: int) -> int:
        """The most rows that `sample(batch_size)` can give now, as the limiter counts them."""
        return self.declared_rows(batch_size)

    @property
    def promised(self) -> int:
        """Rows, at most, that were asked for and have not arrived."""
        return 0

    @property
    def takes_remote(self) -> bool:
        """Whether items may be `Remote`: they are added from where they were made."""
        return False

    # -- what follows

    def __bool__(self) -> bool:
        return True  # an empty store is still a store: `if store` must not depend on its rows

    @property
    def holds_items(self) -> bool:
        """Can something be drawn before a plan adds something?"""
        return self._can_draw(1)

    @property
    def fills_up(self) -> bool:
        """Must something be drawn before more can be added?"""
        return self.limiter is not None

    def can_insert(self, rows: int) -> bool:
        """Whether `rows` more may be added now.

        Also against the limiter where its largest batch cannot be drawn, as before the first episode is over or when
        most rows are used up: both sides would wait for ever (B8).
        """
        if self.limiter is None or self.limiter.can_insert(self.inserts, self.samples, rows):
            return True
        return not self._can_draw(max(1, self.limiter.sample_batch // self.most_rows(1)))

    def can_sample(self, batch_size: int) -> bool:
        """Whether so much may be drawn now."""
        if self.limiter is not None:
            rows = self.most_rows(batch_size)
            if not self.limiter.can_sample(self.inserts, self.samples + self.promised, rows):
                return False
        return self._can_draw(batch_size)

    def is_full(self, item: Any) -> bool:
        """Whether `item` has to wait for what is on its way, which is being worked on."""
        return False

    def ask(self, batch_size: int) -> Future[Any]:
        """Ask for so much, where `can_sample`; the future is for `answered`, and nothing else."""
        return InlineWorker(self).submit("sample", batch_size)

    def answered(self, future: Future[Any]) -> Any:
        """What was asked for, of a future that is done; None where it could not be given."""
        return future.result()

    def why_insert(self, rows: int) -> str:
        """What adding `rows` waits for, in one sentence; "" if nothing."""
        if self.limiter is None or self.can_insert(rows):
            return ""
        return self.limiter.why_insert(self.inserts, self.samples, rows)

    def why_sample(self, batch_size: int) -> str:
        """What drawing so much waits for, in one sentence; "" if nothing."""
        if self.limiter is not None:
            why = self.limiter.why_sample(self.inserts, self.samples + self.promised, self.most_rows(batch_size))
            if why:
                return why
        return "" if self._can_draw(batch_size) else self._why_not(batch_size)

    def _can_draw(self, batch_size: int) -> bool:
        """Is there what could be drawn, the limiter aside?"""
        return len(self) > 0

    def _why_not(self, batch_size: int) -> str:
        """In one sentence, where `_can_draw` says no."""
        return "waits for rows: nothing is stored yet"

    def start(self, context: Seeds) -> None:
        """The engine's hook, when a run opens: take a generator from its seeds, unless there is one."""
        if self._own_generator is None:
            self._own_generator = np.random.default_rng(context.seed("sample"))

    # -- the generator and the lock

    @property
    def _generator(self) -> np.random.Generator:
        if self._own_generator is None:
            raise ValueError(f"no generator to draw with: give {type(self).__name__} a seed=, or use it in a run")
        return self._own_generator

    def _generator_state(self) -> Any:
        """Plain data, None where there is no generator yet."""
        return None if self._own_generator is None else copy.deepcopy(self._own_generator.bit_generator.state)

    def _load_generator(self, state: Any) -> None:
        if state is not None:
            self._own_generator = self._own_generator or np.random.default_rng(0)
            self._own_generator.bit_generator.state = copy.deepcopy(state)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
