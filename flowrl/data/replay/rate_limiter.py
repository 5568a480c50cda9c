"""RateLimiter: a bound on the ratio of sampled to inserted rows that always holds."""

from __future__ import annotations

import math
from fractions import Fraction

import attrs

#: The rule for `insert_batch`, in words.
INSERT_BATCH = (
    "rows added at once are steps * environments of a fragment, and (steps + n - 1) * environments after NStep(n), "
    "since an episode's end completes windows of the fragment before"
)


@attrs.define
class RateLimiter:
    """Keeps |samples − ratio · (inserts − min_size)| ≤ slack, all in rows, once inserts ≥ min_size (rule B8).

    Before that, inserting is always allowed and sampling never. The limiter has no state: it judges counts.
    It computes in whole numbers (ratio as a fraction), so that no rounding can block both sides.

    Args:
        ratio: rows sampled per row inserted. min_size: rows inserted before sampling starts.
        sample_batch: the largest number of rows drawn at once.
        insert_batch: the largest number of rows added at once: steps · environments of a fragment, and
            (steps + n − 1) · environments after NStep(n), since an episode's end completes windows of the fragment
            before.
        slack: default max(sample_batch, ratio · insert_batch), the least with which one side can always proceed.

    Raises: ValueError for a smaller slack, and for invalid numbers.
    Source: the rate limiters of Reverb (Cassirer et al. 2021), there counted in items.

    >>> limiter = RateLimiter(ratio=4, min_size=100, sample_batch=32, insert_batch=8)
    >>> [limiter.can_sample(inserts, samples=0, rows=32) for inserts in (99, 100)]
    [False, True]
    >>> limiter.why_insert(inserts=108, samples=0, rows=8)
    'waits for training: adding 8 rows would leave sampling 64 rows behind ratio 4, slack is 32'
    """

    ratio: float
    min_size: int
    sample_batch: int = attrs.field(kw_only=True)
    insert_batch: int = attrs.field(kw_only=True)
    slack: float | None = attrs.field(default=None, kw_only=True)
    _rate: Fraction = attrs.field(init=False, repr=False)
    _bound: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        batches = {"sample_batch": self.sample_batch, "insert_batch": self.insert_batch}
        for name, rows in {"min_size": self.min_size, **batches}.items():
            if rows < 1:
                raise ValueError(f"{name} is {rows}: it must be at least 1 row")
        self._rate = _fraction(self.ratio) if 0 < self.ratio < math.inf else Fraction(0)
        if not self._rate:
            raise ValueError(f"ratio is {self.ratio}: rows sampled per row inserted are a number, more than 0")
        least = max(Fraction(self.sample_batch), self._rate * self.insert_batch)
        if self.slack is None:
            self.slack = float(least)
        elif _fraction(self.slack) < least:
            raise ValueError(
                f"slack is {self.slack} rows, but must be at least {float(least):g} = max(sample_batch, "
                f"ratio * insert_batch): with less, inserting and sampling could wait for each other for ever"
            )
        # Everything is compared in units of 1/denominator rows.
        self._bound = math.floor(max(_fraction(self.slack), least) * self._rate.denominator)

    def can_insert(self, inserts: int, samples: int, rows: int) -> bool:
        """Whether `rows` more may be added. Raises ValueError if they are more than `insert_batch`."""
        self.check_insert(rows)
        # Always so below min_size, also for the insert that crosses it: slack covers one whole insert.
        return self._ahead(inserts + rows, samples) >= -self._bound

    def can_sample(self, inserts: int, samples: int, rows: int) -> bool:
        """Whether `rows` more may be drawn. Raises ValueError if they are more than `sample_batch`."""
        self.check_sample(rows)
        return inserts >= self.min_size and self._ahead(inserts, samples + rows) <= self._bound

    def why_insert(self, inserts: int, samples: int, rows: int) -> str:
        """The reason why inserting must wait, in one sentence; "" if it need not."""
        if self.can_insert(inserts, samples, rows):
            return ""
        behind = -self._ahead(inserts + rows, samples) / self._rate.denominator
        return (
            f"waits for training: adding {rows} rows would leave sampling {behind:g} rows behind "
            f"ratio {self.ratio:g}, slack is {self.slack:g}"
        )

    def why_sample(self, inserts: int, samples: int, rows: int) -> str:
        """The reason why sampling must wait, in one sentence; "" if it need not."""
        if inserts < self.min_size:
            return f"waits for rows: {inserts} of {self.min_size} stored before sampling starts"
        if self.can_sample(inserts, samples, rows):
            return ""
        ahead = self._ahead(inserts, samples + rows) / self._rate.denominator
        return (
            f"waits for rows: drawing {rows} would put sampling {ahead:g} rows ahead of "
            f"ratio {self.ratio:g}, slack is {self.slack:g}"
        )

    def check_insert(self, rows: int) -> None:
        """Raise ValueError if `rows` exceed the declared batch: the bound could not hold."""
        if rows > self.insert_batch:
            raise ValueError(
                f"{rows} rows to add at once, but the rate limiter was told insert_batch={self.insert_batch}; "
                + INSERT_BATCH
            )

    def check_sample(self, rows: int) -> None:
        """Raise ValueError if `rows` exceed the declared batch: the bound could not hold."""
        if rows > self.sample_batch:
            raise ValueError(
                f"{rows} rows to draw at once, but the rate limiter was told sample_batch={self.sample_batch}"
            )

    def _ahead(self, inserts: int, samples: int) -> int:
        """How far sampling is ahead of the ratio, in units of 1/denominator rows."""
        return samples * self._rate.denominator - self._rate.numerator * (inserts - self.min_size)


def _fraction(number: float) -> Fraction:
    """The intended fraction of a float: 0.1 is 1/10."""
    return Fraction(number).limit_denominator(10**9)
