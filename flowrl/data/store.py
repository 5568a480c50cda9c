"""Store: what the replay operators ask of a buffer, whatever it holds."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from flowrl.data.limiter import RateLimiter


class Seeds(Protocol):
    """The engine's seeds, as a store sees them."""

    def seed(self, name: str = "") -> int: ...


@runtime_checkable
class Store(Protocol):
    """What StoreToReplay adds to and Replay draws from. Rows are what it counts: steps, or objects.

    A class that inherits from it has `add`, `sample`, `inserts`, `samples`, `capacity`, `__len__` and the state to
    write; when to add and when to draw follows from the counts and the limiter.
    """

    limiter: RateLimiter | None
    _generator: np.random.Generator | None

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        ...

    @property
    def inserts(self) -> int:
        """Rows ever added."""
        ...

    @property
    def samples(self) -> int:
        """Rows ever drawn."""
        ...

    def add(self, batch: Any, /) -> None:
        """Add rows, overwriting the oldest."""
        ...

    def sample(self, batch_size: int, /) -> Any:
        """Draw rows, uniform with replacement."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def __len__(self) -> int: ...

    def __bool__(self) -> bool:
        return True  # an empty store is still a store: `if store` must not depend on its rows

    @property
    def holds_items(self) -> bool:
        """Can something be drawn before a plan adds something?"""
        return len(self) > 0

    @property
    def fills_up(self) -> bool:
        """Must something be drawn before more can be added?"""
        return self.limiter is not None

    def can_insert(self, rows: int) -> bool:
        """Whether `rows` more may be added now."""
        return self.limiter is None or self.limiter.can_insert(self.inserts, self.samples, rows)

    def can_sample(self, rows: int) -> bool:
        """Whether `rows` may be drawn now."""
        if self.limiter is not None and not self.limiter.can_sample(self.inserts, self.samples, rows):
            return False
        return len(self) > 0

    def why_insert(self, rows: int) -> str:
        """What adding `rows` waits for, in one sentence; "" if nothing."""
        return "" if self.limiter is None else self.limiter.why_insert(self.inserts, self.samples, rows)

    def why_sample(self, rows: int) -> str:
        """What drawing `rows` waits for, in one sentence; "" if nothing."""
        if self.limiter is not None:
            return self.limiter.why_sample(self.inserts, self.samples, rows)
        return "" if len(self) else "waits for rows: nothing is stored yet"

    def start(self, context: Seeds) -> None:
        """The engine's hook, when a run opens: take a generator from its seeds, unless there is one."""
        if self._generator is None:
            self._generator = np.random.default_rng(context.seed("sample"))
