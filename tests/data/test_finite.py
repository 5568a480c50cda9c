"""Numbers that nothing can be learned from, at the edges of float32."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.data.finite import LARGEST, first_unusable

#: The next numbers beyond the largest that float32 holds, about 3.4e38, which are finite in float64.
BEYOND = np.nextafter(LARGEST, np.inf)


@pytest.mark.parametrize(
    ("numbers", "first"),
    [
        ([-LARGEST, LARGEST], None),
        ([0.0, -BEYOND], 1),
        ([0.0, BEYOND], 1),
        ([LARGEST, -3.41e38, 3.41e38], 1),
        ([-LARGEST, 3.41e38, -3.41e38], 1),
        ([1.0, -np.inf], 1),
        ([1.0, 2.0, np.nan, BEYOND], 2),
        ([[0.0, 1.0], [-BEYOND, np.nan]], 2),
        ([], None),
    ],
)
def test_what_float32_cannot_hold_is_found(numbers: list[float], first: int | None) -> None:
    """The first, by its flat index; what it can hold only just is not."""
    assert first_unusable(np.array(numbers, np.float64)) == first
    if first is None:
        assert np.isfinite(np.array(numbers, np.float32)).all()


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_whole_numbers_are_all_usable(dtype: str) -> None:
    assert first_unusable(np.ones(3, dtype)) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_smaller_floats_become_infinite_first(dtype: type) -> None:
    largest = np.finfo(dtype).max
    assert first_unusable(np.array([-largest, largest])) is None
    assert first_unusable(np.array([largest, -np.inf], dtype)) == 1
