"""Atomic writes of files, and values as JSON."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import os
import re
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
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


def swapped(one: Path, other: Path) -> bool:
    """Give each of two absolute paths what the other names, in one step; False: this system cannot, nothing is done."""
    if sys.platform != "linux":
        return False
    try:
        exchange = ctypes.CDLL(None).renameat2
    except AttributeError:  # not in every libc
        return False
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(exchange(here, os.fsencode(one), here, os.fsencode(other), flag) == 0)


@contextmanager
def new_file(path: Path) -> Iterator[Any]:
    """A new file, on the disk when the block ends."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


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
#: Bytes that are read at a time: a reader that asks for more takes that memory, whatever the file has.
CHUNK = 2**22


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file to read. Raises: OSError, also for a pipe or a device, which could block or never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | vars(os).get("O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """The content of a file, in no more memory than it has bytes.

    Raises: OSError, also for one of more than `most` bytes.
    """
    data = bytearray()
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size <= most:
            while len(data) <= most and (chunk := file.read(min(CHUNK, most + 1 - len(data)))):
                data += chunk
            if len(data) <= most:
                return bytes(data)
    raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises: OSError; ValueError for content that is malformed or nested too deeply."""
    return parse_json(read_file(path))


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, without a last one that is still being written.

    Raises: OSError, also for a line of more than `LARGEST` bytes.
    """
    with opened(path) as file:
        while (line := file.readline(LARGEST + 1)).endswith(b"\n"):
            yield line
        if len(line) > LARGEST:
            raise OSError(errno.EFBIG, f"it has a line of more than {LARGEST:,} bytes", str(path))


def parse_json(text: str | bytes) -> Any:
    """The value in JSON that somebody else may have written. Raises: ValueError: see `read_json`."""
    return _shallow(text, lambda text: json.loads(text, parse_int=_whole))


def _whole(digits: str) -> int:
    """A number that fits into 64 bits, as all that are written, so that every reader can count with it."""
    if len(digits) > 21 or abs(number := int(digits)) >= 2**64:
        raise ValueError(f"it has a whole number of {len(digits)} digits")
    return number


def read_yaml(path: Path) -> Any:
    """The value in a YAML file of plain data: numbers, texts, lists and tables. Numbers are those of JSON, as 1e-4.

    Raises: OSError; ValueError for content that is malformed, nested too deeply, or uses anchors or objects.
    """
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML without anchors, by which a short file may stand for a huge value."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError(f"it refers to an anchor, *{self.peek_event().anchor}: write the value out")
            return super().compose_node(parent, index)

    # YAML 1.1 reads 1e-4 as a text.
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
    )
    try:
        return _shallow(read_file(path), lambda data: yaml.load(data, Loader))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _shallow(text: str | bytes, read: Callable[[str | bytes], Any]) -> Any:
    """The value of a text, unless it is nested too deeply."""
    try:
        value = read(text)
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
    """An archive that is whole, of members that are not compressed, so that they take no more memory than the file.

    Every member has its checksum, and nothing is before, after or between them that a reader of another kind could take
    for something else.

    Raises: OSError; ValueError for another archive, or a damaged one.
    """
    with opened(path) as file:
        try:
            archive = zipfile.ZipFile(file)
            if wrong := _wrong_with(archive, file):
                raise ValueError(wrong)
        except (OSError, ValueError):
            raise
        except Exception as error:  # zipfile raises whatever it stumbles over
            raise ValueError(f"it is no whole archive: {error}") from error
        file.seek(0)
        with archive:
            yield archive


def _wrong_with(archive: zipfile.ZipFile, file: BufferedReader) -> str:
    """What keeps an archive from being used, "" for nothing."""
    members, size = archive.infolist(), os.fstat(file.fileno()).st_size
    if any(each.compress_type != zipfile.ZIP_STORED for each in members):
        return "it has compressed members, which flowrl does not write"
    if sum(each.file_size for each in members) > size:
        return "its members overlap"
    # torch believes these, and would read what happens to be in memory.
    if any(each.compress_size != each.file_size or each.external_attr & 0x10 for each in members):
        return "it is damaged: a member has two sizes, or is a folder"
    if len({each.filename for each in members}) < len(members):
        return "it has two members of one name"
    file.seek(-22, os.SEEK_END)
    end = file.read()  # the record that ends an archive, without a comment
    if end[:4] != b"PK\5\6" or end[-2:] != b"\0\0" or any(each.header_offset == 0 for each in members) != bool(members):
        return "it is no whole archive: something is before or after it"
    damaged = archive.testzip()
    return "" if damaged is None else f"it is damaged: the checksum of its member {shown(damaged)} differs"


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
