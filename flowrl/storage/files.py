"""Atomic writes of files, and values as JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl._version import __version__

#: What `replacing` leaves beside a file if the process is killed meanwhile.
LEFT = ".*.tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that replaces it if the block succeeds."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    yield partial
    os.replace(partial, path)


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write a value as `json_text` has it."""
    write(path, json_text(value) + "\n")


def checksum(value: Any) -> str:
    """The checksum of a value as JSON, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def json_text(value: Any) -> str:
    """A value as JSON for people and programs; see `plain`."""
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """The value as plain JSON data: numpy and torch scalars as numbers, NaN and infinities as null.

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


MANIFEST = "manifest.json"


def checksummed_manifest(what: str, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """What to write of a "checkpoint" or a "dataset" in this version of its format; `body` is as JSON has it."""
    manifest = {"format": f"flowrl {what}", "version": version, "flowrl": __version__, **body}
    return {**manifest, "sha256": checksum(manifest)}


def read_manifest(path: Path, what: str, version: int, error: type[Exception]) -> dict[str, Any]:
    """The manifest in a folder, without its checksum; what it holds beyond that is yet to be looked at.

    Raises: `error` for what is something else, newer than `version`, or damaged.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise error(f"{path} is no {what} of flowrl: it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as why:
        raise error(f"{path} is damaged: its {MANIFEST} cannot be read: {why}") from why
    if not isinstance(manifest, dict) or manifest.get("format") != f"flowrl {what}":
        raise error(f"{path} is no {what} of flowrl: its {MANIFEST} is that of something else")
    if not isinstance(manifest.get("version"), int) or manifest["version"] > version:
        raise error(
            f"{path} has format {manifest.get('version')}, written by flowrl {manifest.get('flowrl')}; "
            f"this is flowrl {__version__}, which reads formats up to {version}: upgrade flowrl"
        )
    if manifest.pop("sha256", None) != checksum(manifest):
        raise error(f"{path} is damaged: its {MANIFEST} is not what was written (its checksum differs)")
    return manifest
