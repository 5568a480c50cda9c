"""The file of a journal: a header in one line, then compressed parts, each of which can be read by itself.

    {"journal": 2, ...}\\n     the version of the format, and of what run it is
    PART..                    zlib streams, one after the other

A part ends with each checkpoint, so that a resumed run can cut the file there and append. Within a part, what was
flushed can be read after a kill. `flowrl.engine.recording.journal` has the format of the bytes inside.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from flowrl.errors import ConfigError
from flowrl.saved import shown
from flowrl.storage.files import CHUNK, opened, parse_json, read_file

VERSION = 2
#: Most bytes of a file.
LARGEST = 2**32
#: The most bytes of content: so many, and so many more for each byte of the file.
LEAST, MOST = 2**20, 64


class JournalFile:
    """A journal that is being written.

    Args:
        path: The file.
        about: Further entries of the header of a new file.
        size: Where an earlier run goes on, in bytes; 0: a new file.

    Raises: ConfigError: it cannot be written, or is shorter.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], size: int = 0) -> None:
        try:
            if size:
                self._file: BinaryIO = path.open("r+b")
                if self._file.seek(0, 2) < size:
                    self._file.close()
                    raise ConfigError(f"{path} is shorter than it was at the checkpoint that the run goes on from")
                self._file.truncate(size)
                self._file.seek(size)
            else:
                self._file = path.open("wb")
                self._file.write(json.dumps({"journal": VERSION, **about}).encode() + b"\n")
                self._file.flush()
        except OSError as error:
            raise ConfigError(f"cannot write the journal {path}: {error.strerror or error}") from error
        self._compress = zlib.compressobj(6)

    def write(self, data: bytes) -> None:
        """Append bytes, which can be read from now on if this process is killed."""
        self._file.write(self._compress.compress(data) + self._compress.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def end_part(self) -> int:
        """End the current part; returns the size of the file."""
        self._file.write(self._compress.flush())
        self._file.flush()
        self._compress = zlib.compressobj(6)
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def is_current(path: Path) -> bool:
    """Whether a resumed run can go on with a journal. Raises: ConfigError: it cannot be read, or is none."""
    with _reading(path), opened(path) as file:
        return bool(_about(path, file.readline(CHUNK))["journal"] == VERSION)


def _about(path: Path, header: bytes) -> Mapping[str, Any]:
    """The header of a journal."""
    try:
        about = parse_json(header)
        if about["journal"] is not None:
            return dict(about)
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{path} is no journal of flowrl")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


@attrs.frozen
class StoredJournal:
    """A journal as read: the header, and the bytes of each part, the last of which may be cut off."""

    about: Mapping[str, Any]
    parts: list[bytes] = attrs.field(repr=False)

    @classmethod
    def read(cls, path: Path) -> StoredJournal:
        """Read a file. Raises: ConfigError: there is none, it is no journal, or one of another version."""
        with _reading(path):
            data = read_file(path, LARGEST)
        header, _, rest = data.partition(b"\n")
        about = _about(path, header)
        if (version := about["journal"]) != VERSION:
            raise ConfigError(
                f"{path} has version {shown(version)} of the format, and this flowrl reads {VERSION}: "
                "run it again with the flowrl that wrote it, which run.json names"
            )
        parts, left = [], LEAST + MOST * len(data)
        while rest:
            stream = zlib.decompressobj()
            try:
                parts.append(stream.decompress(rest, left + 1))
            except zlib.error:
                raise ConfigError(f"{path} is damaged in its part {len(parts) + 1}") from None
            if (left := left - len(parts[-1])) < 0:
                raise ConfigError(f"{path} is no journal of flowrl: it unpacks to over {MOST} times its size")
            rest = stream.unused_data
            if not stream.eof:
                break
        return cls(about, parts)
