"""A short hash of numbers: equal for equal values, to the last bit."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def fingerprint(value: Any) -> str:
    """A hash of every array and number in nested state, whatever the containers' classes are.

    >>> fingerprint({"a": np.zeros(2)}) == fingerprint({"a": np.zeros(2)}), len(fingerprint(1.0))
    (True, 16)
    """
    made = hashlib.sha256()
    for path, content in _leaves(value):
        made.update(path.encode() + b"=" + content + b"\n")
    return made.hexdigest()[:16]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Every array and number, with its path."""
    torch = sys.modules.get("torch")  # loaded already if anyone holds a tensor
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{path}:{value.dtype}{list(value.shape)}", np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from _leaves(each, f"{path}.{at}")
    else:
        yield path, repr(value).encode()
