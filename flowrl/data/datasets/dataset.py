"""Dataset: recorded batches on disk, read through memory maps, even while they grow.

A dataset is a folder: manifest.json (format, version, columns), a file for each column with the rows of all batches
one after another, and batches.jsonl, to which every batch adds one line after its rows: the leading shape and a
checksum. A batch without a complete line does not count, so readers find whole batches only, whenever the writer dies.
It contains no pickle: reading a stranger's dataset runs no code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.datasets.layout import Layout, as_bytes
from flowrl.data.types import Array
from flowrl.engine.schema import Schema
from flowrl.errors import CheckpointError, DatasetError, did_you_mean
from flowrl.saved import MOST, Saved, shown
from flowrl.storage.files import MANIFEST, opened, read_manifest

#: The format that this version writes; it reads all earlier ones too.
FORMAT_VERSION = 1
INDEX = "batches.jsonl"
#: The most bytes of one of its lines.
LONGEST = 1000


class Entry(NamedTuple):
    """A batch in the index: its leading shape, where its rows begin and end, and their checksum."""

    shape: tuple[int, ...]
    start: int
    stop: int
    sha256: str


class Dataset:
    """Recorded batches: `len(dataset)` of them, `dataset[i]` as it was recorded, `dataset.take(rows)` of any rows.

    Returned batches are memory-mapped and read-only; tensor columns become arrays. `refresh()` shows batches recorded
    since it was opened.

    Args:
        path: The folder.
        agents: Of a game: `real_rows` are those of these agents alone, by name or pattern (`prey_*`).

    Raises: DatasetError, naming the file, if it is not a dataset, damaged, of a newer format, or has no such agents.

    >>> import tempfile
    >>> from flowrl.data import DatasetWriter
    >>> path = Path(tempfile.mkdtemp()) / "walk"
    >>> writer = DatasetWriter(path)
    >>> for t in range(3):
    ...     writer.add(Batch(obs={"x": np.full((2, 1, 4), t, np.float32)}, reward=np.full((2, 1), float(t))))
    >>> dataset = Dataset(path)
    >>> len(dataset), dataset.rows, dataset[1]
    (3, 6, Batch[2, 1](obs=Batch[2, 1, 4](x=float32[2, 1, 4]), reward=float64[2, 1]))
    >>> dataset.take([5, 0]).reward
    array([2., 0.])
    """

    def __init__(self, path: str | Path, agents: str | None = None) -> None:
        self.path, self._agents = Path(path), agents
        self.about: dict[str, Any]
        self.layout: Layout
        self.about, self.layout, batches = _described(self.path)
        self._numbers = None if agents is None else _numbers_of(self, agents)
        self.refresh()
        if len(self) < batches:
            raise DatasetError(
                f"{self.path} is damaged: its {INDEX} has {len(self)} batches, its {MANIFEST} counts {batches}: some "
                f"were lost; restore {INDEX} from a copy"
            )

    def __reduce__(self) -> tuple[type[Dataset], tuple[Path, str | None]]:
        return type(self), (self.path, self._agents)

    def __repr__(self) -> str:
        path = str(self.path)
        short = path if len(path) <= 20 else f"...{path[-17:]}"
        return f"Dataset({short!r}, rows={self.rows}, columns={len(self.layout.columns)})"

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True  # `if dataset` must not depend on how much has been recorded

    @property
    def rows(self) -> int:
        """Rows of all batches, padding included."""
        return self.entries[-1].stop if self.entries else 0

    def schema(self) -> Schema:
        """The schema of its batches."""
        return self.layout.schema()

    def refresh(self) -> Dataset:
        """Include batches recorded since; returns self."""
        self.entries = read_index(self.path, self.layout.axes)
        self.columns = [self._mapped(i) for i in range(len(self.layout.columns))]
        return self

    def __getitem__(self, number: int) -> Batch:
        """Batch `number` as recorded. Raises IndexError if there is none; TypeError unless it is an int."""
        if not isinstance(number, int | np.integer):
            raise TypeError(f"dataset[i] is batch i, got {number!r}; rows of any batches are dataset.take(rows)")
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.path} has {len(self)} batches and no batch {number}")
        entry = self.entries[number]
        parts = [
            column[entry.start : entry.stop].reshape(*entry.shape, *stored.shape)
            for column, stored in zip(self.columns, self.layout.columns)
        ]
        return self.layout.put_together(parts)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def take(self, rows: Sequence[int] | Array, names: Sequence[str] | None = None) -> Batch:
        """Copies of rows by index `[B, ...]`, of these columns or all; the steps of a fragment count time-major."""
        numbers = np.asarray(rows)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise IndexError(f"rows are taken by number, got {numbers.dtype}; of a mask give np.flatnonzero(mask)")
        table = self.layout.put_together(self.columns)  # as memory maps
        taken: Batch = (table if names is None else table.select(names))[numbers.astype(np.int64)]
        return taken

    def real_rows(self, batches: int | None = None) -> Array:
        """Indices of the rows of the first `batches` batches, or of all, without padding (`mask` 0, N6).

        If the dataset was opened for some agents, those of others are left out too.
        """
        count = self.rows if batches is None else self.entries[batches - 1].stop if batches else 0
        real = np.ones(count, np.bool_)
        for column, stored in zip(self.columns, self.layout.columns):
            if stored.name == "mask" and not stored.shape:
                real &= column[:count] != 0
            elif stored.name == "agent" and self._numbers is not None:
                real &= np.isin(column[:count], self._numbers)
        return np.flatnonzero(real)

    def first(self, batches: int) -> Dataset:
        """The view of the first `batches` batches; self, since the number of batches does not change its rows."""
        return self

    def verify(self, start: int = 0) -> Dataset:
        """Compare the batches from `start` on with their checksums, which reads them all; returns self.

        Raises:
            DatasetError: naming the first batch whose checksum differs.
        """
        for i in range(start, len(self)):
            if not self.is_whole(i):
                raise DatasetError(
                    f"{self.path} is damaged: batch {i} of {len(self)} is not what was recorded (its checksum differs)"
                )
        return self

    def is_whole(self, number: int) -> bool:
        """Whether the rows of a batch match its checksum."""
        entry = self.entries[number]
        return digest(entry.shape, [column[entry.start : entry.stop] for column in self.columns]) == entry.sha256

    def _mapped(self, number: int) -> Array:
        stored = self.layout.columns[number]
        shape, size = (self.rows, *stored.shape), self.rows * stored.bytes_per_row
        file = self.path / stored.file
        try:
            there = file.stat().st_size
            if there < size:
                raise DatasetError(f"{self.path} is truncated: {stored.file} has {there} bytes of {size}")
            if not size:
                return np.empty(shape, stored.dtype)
            return np.asarray(np.memmap(file, stored.dtype, "r", shape=shape))
        except (OSError, ValueError) as error:  # numpy has no such shape
            raise DatasetError(f"{self.path} is damaged: {stored.file} cannot be read: {error}") from error


def digest(shape: tuple[int, ...], arrays: Sequence[Array]) -> str:
    """The checksum of a batch: of its leading shape, and of its columns' bytes."""
    found = hashlib.sha256(json.dumps(shape).encode())
    for array in arrays:
        found.update(as_bytes(array))
    return found.hexdigest()


def _numbers_of(data: Dataset, pattern: str) -> list[int]:
    """The numbers of the agents whose names fit. Raises DatasetError."""
    names = data.about.get("agents")
    if not isinstance(names, list) or all(stored.name != "agent" for stored in data.layout.columns):
        raise DatasetError(f"{data.path} names no agents, so that none can be chosen: leave {pattern!r} out")
    found = [number for number, name in enumerate(names) if fnmatchcase(str(name), pattern)]
    if not found:
        raise DatasetError(f"{data.path}: no agent {pattern!r}: {did_you_mean(pattern, map(str, names))}")
    return found


def _described(path: Path) -> tuple[dict[str, Any], Layout, int]:
    """What a manifest says of a dataset: about it, the layout, the least number of batches. Raises DatasetError."""
    if not (path / MANIFEST).exists():
        if parts := sorted(each.parent.name for each in path.glob(f"*/{MANIFEST}")):
            raise DatasetError(
                f"{path} has a dataset for each of the policies {', '.join(parts)}: give one, {path / parts[0]}"
            )
        what = "has no " + MANIFEST if path.is_dir() else "is a file" if path.exists() else "is not there"
        raise DatasetError(f"{path} {what}: a dataset is a folder that Record or `flowrl record` wrote")
    found = read_manifest(path, "dataset", FORMAT_VERSION, DatasetError)
    try:
        batches = Saved(found, f"its {MANIFEST}").count("batches", otherwise=0)  # of older ones
        return dict(found["about"]), Layout.from_json(found["layout"]), batches
    except CheckpointError as error:
        raise DatasetError(f"{path} is damaged: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise DatasetError(f"{path} is damaged: its {MANIFEST} is malformed: {error!r}") from error


def read_index(path: Path, axes: int) -> list[Entry]:
    """The whole batches. Raises DatasetError."""
    entries, row = list[Entry](), 0
    try:
        with opened(path / INDEX) as file:
            while (line := file.readline(LONGEST + 1)).endswith(b"\n") or len(line) > LONGEST:
                found = json.loads(line)
                shape = tuple(found["shape"])
                if len(shape) != axes or not all(type(size) is int and 0 <= size <= MOST for size in shape):
                    raise ValueError(f"a batch of shape {shown(shape)}")
                entries.append(Entry(shape, row, row := row + math.prod(shape), str(found["sha256"])))
    except OSError as error:
        raise DatasetError(f"{path} is damaged: its {INDEX} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"{path} is damaged: line {len(entries) + 1} of its {INDEX} is malformed: {error!r}"
        ) from error
    return entries  # a last line without an end is incomplete
