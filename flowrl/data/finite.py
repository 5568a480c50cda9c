"""Numbers that nothing can be learned from: NaN, infinite, or too large for float32, in which networks compute."""

from __future__ import annotations

import numpy as np

from flowrl.data.types import Array

#: The largest number that float32 holds.
LARGEST = float(np.finfo(np.float32).max)

#: What is expected instead, to end a message.
EXPECTED = f"expected a finite number of at most {LARGEST:.2g}, as float32 holds"


def first_unusable(numbers: Array) -> int | None:
    """The flat index of the first number that is NaN, infinite, or too large for float32; None if there is none.

    >>> first_unusable(np.array([[0.0, 3e38], [-np.inf, np.nan]])), first_unusable(np.arange(3))
    (2, None)
    """
    if numbers.dtype.kind != "f" or not numbers.size:
        return None
    flat = numbers.reshape(-1)
    # Both are the index of a NaN if there is one. Two reductions are faster than a test of each number.
    if flat.item(flat.argmin()) >= -LARGEST and flat.item(flat.argmax()) <= LARGEST:
        return None
    return int((np.abs(flat.astype(np.float64)) <= LARGEST).argmin())  # in float16 the limit would be infinite
