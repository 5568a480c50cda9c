"""Atomic writes of files, and values as JSON."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from flowrl._version import __version__
from flowrl.saved import shown

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

#: The most bytes, and levels, of a JSON file that is read whole.
LARGEST, DEEPEST = 2**26, 100


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file to read. Raises: OSError, also for a pipe or a device, which could block or never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | vars(os).get("O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """The content of a file. Raises: OSError, also for one of more than `most` bytes."""
    with opened(path) as file:
        data = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if data is None or len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises: OSError; ValueError for content that is malformed or nested too deeply."""
    try:
        value = json.loads(read_file(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return value
        level = [each for held in level for each in (held.values() if isinstance(held, dict) else held)]
    raise ValueError(f"it is nested too deeply, over {DEEPEST} levels")


@contextmanager
def opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive whose members are not compressed, so that they take no more memory than the file has bytes.

    Raises: OSError; ValueError for another archive; zipfile.BadZipFile.
    """
    with opened(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(each.compress_type != zipfile.ZIP_STORED for each in members):
            raise ValueError("it has compressed members, which flowrl does not write")
        if sum(each.file_size for each in members) > os.fstat(file.fileno()).st_size:
            raise ValueError("its members overlap")
        yield archive


def checksummed_manifest(what: str, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """What to write of a "checkpoint" or a "dataset" in this version of its format; `body` is as JSON has it."""
    manifest = {"format": f"flowrl {what}", "version": version, "flowrl": __version__, **body}
    return {**manifest, "sha256": checksum(manifest)}


def read_manifest(path: Path, what: str, version: int, error: type[Exception]) -> dict[str, Any]:
    """The manifest in a folder, without its checksum; what it holds beyond that is yet to be looked at.

    Raises: `error` for what is something else, newer than `version`, or damaged.
    """
    try:
        manifest = read_json(path / MANIFEST)
    except FileNotFoundError:
        raise error(f"{path} is no {what} of flowrl: it has no {MANIFEST}") from None
    except (OSError, ValueError) as why:
        raise error(f"{path} is damaged: its {MANIFEST} cannot be read: {why}") from why
    if not isinstance(manifest, dict) or manifest.get("format") != f"flowrl {what}":
        raise error(f"{path} is no {what} of flowrl: its {MANIFEST} is that of something else")
    written = manifest.get("version")
    if type(written) is not int or written < 1:
        raise error(f"{path} is damaged: its format is {shown(written)}, expected a whole number of at least 1")
    if written > version:
        raise error(
            f"{path} has format {shown(written)}, written by flowrl {str(manifest.get('flowrl'))[:20]}; "
            f"this is flowrl {__version__}, which reads formats up to {version}: upgrade flowrl"
        )
    if manifest.pop("sha256", None) != checksum(manifest):
        raise error(f"{path} is damaged: its {MANIFEST} is not what was written (its checksum differs)")
    return manifest
