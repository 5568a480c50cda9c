"""Files that are there whole or not at all, and values as JSON has them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What `replacing` leaves beside a file if the process is killed meanwhile.
LEFT = ".*.tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside the one at `path`, whose place it takes when the block ends well."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    yield partial
    os.replace(partial, path)


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write a value as `json_text` has it."""
    write(path, json_text(value) + "\n")


def checksum(value: Any) -> str:
    """Of a value as JSON has it, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def json_text(value: Any) -> str:
    """A value as JSON for people and programs; see `plain`."""
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """The value as JSON has it: numpy and torch scalars as numbers, NaN and infinities as null.

    >>> plain({"return": float("nan"), "shape": (2, 3)})
    {'return': None, 'shape': [2, 3]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)
