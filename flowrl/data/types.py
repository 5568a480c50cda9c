"""Names for the kinds of arrays in this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Index: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Indices of slots, rows or steps."""
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
New: TypeAlias = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]
"""Allocates an array of a shape and dtype."""
