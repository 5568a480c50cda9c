"""DatasetWriter: appends batches to a dataset on disk, each atomically."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowrl.data.batch import Batch
from flowrl.data.datasets.dataset import FORMAT_VERSION, INDEX, Dataset, Entry, digest
from flowrl.data.datasets.layout import Layout, as_bytes
from flowrl.errors import DatasetError
from flowrl.storage import files
from flowrl.storage.files import MANIFEST, checksummed_manifest

log = logging.getLogger("flowrl")


class DatasetWriter:
    """Appends batches to the dataset at a path, which the first batch creates; for the format see `Dataset`.

    All batches have the columns of the first, fragments `[T, N, ...]` of any T and N or rows `[B, ...]`. A batch
    counts once its line is in the index. So whenever the process is killed, exactly the added batches are there; if
    the machine dies, batches since `flush()` may be lost. No file stays open.

    Args:
        path: The folder. An existing dataset is continued, after dropping, with a warning, batches at its end that a
            dying machine left damaged.
        about: Further entries of the manifest, as JSON.

    Raises:
        DatasetError: the path holds something else, cannot be written, or has another writer.
    """

    def __init__(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        self.path, self.about = Path(path), dict(about or {})
        self.layout: Layout | None = None
        self.entries: list[Entry] = []
        self._end = 0  # of the whole lines of the index, in bytes
        self._counted = 0  # batches that the manifest may count
        self._files: list[_File] = []  # those of the columns, then the index
        check_place(self.path)
        if (self.path / MANIFEST).exists():
            self._open()

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True

    @property
    def rows(self) -> int:
        """Rows of all batches, padding included."""
        return self.entries[-1].stop if self.entries else 0

    def add(self, batch: Batch) -> None:
        """Append a batch.

        Raises:
            SchemaError: a dataset cannot hold its columns, or they differ from those of earlier batches.
            DatasetError: it cannot be written; nothing of it remains, and earlier batches are intact.
        """
        layout = self.layout or Layout.of(batch)
        shape, arrays = layout.taken_apart(batch)
        if self.layout is None:
            self._create(layout)
        sha256 = digest(shape, arrays)
        line = json.dumps({"shape": shape, "sha256": sha256}).encode() + b"\n"
        with self._writing(), self._locked():
            rows = self.rows
            starts = [*(rows * each.bytes_per_row for each in layout.columns), self._end]
            parts = [*map(as_bytes, arrays), line]
            try:
                for file, start, part in zip(self._files, starts, parts):
                    file.write(start, part)
            except BaseException:
                for file in self._files:
                    file.undo()
                raise
        for file, start, part in zip(self._files, starts, parts):
            file.keep(start + len(part))
        self._end += len(line)
        self.entries.append(Entry(shape, rows, rows + len(arrays[0]), sha256))

    def rewind(self, batches: int) -> None:
        """Keep only the first `batches` batches.

        Raises:
            DatasetError: the dataset has fewer.
        """
        if batches > len(self):
            raise DatasetError(f"{self.path} has {len(self)} batches, {batches} are expected in it: some were lost")
        if batches == len(self):
            return
        with self._writing(), self._locked():
            if batches < self._counted:
                self._describe(self.path, batches)
            lines = (self.path / INDEX).read_bytes().splitlines(keepends=True)[:batches]
            os.truncate(self.path / INDEX, sum(map(len, lines)))
            self._files[-1].size = sum(map(len, lines))
        # Their rows stay, to be overwritten: the file must not shrink under readers that map it.
        self.entries, self._end = self.entries[:batches], sum(map(len, lines))

    def clear(self) -> None:
        """Remove the dataset; the next batch begins a new one, maybe with other columns."""
        if self.layout is not None:
            with self._writing(), self._locked():
                shutil.rmtree(self.path)
        self.layout, self.entries, self._end = None, [], 0

    def flush(self) -> None:
        """Wait until everything is on disk, and note the number of batches in the manifest: readers miss lost ones."""
        if self.layout is None:
            return
        with self._writing():
            self._sync(*(each.file for each in self.layout.columns), INDEX)
            self._describe(self.path, len(self))
            self._sync(MANIFEST)

    def _sync(self, *names: str) -> None:
        for name in names:
            with (self.path / name).open("rb") as file:
                os.fsync(file.fileno())

    def _describe(self, folder: Path, batches: int) -> None:
        """Write the manifest, with the least number of batches."""
        assert self.layout is not None, "a batch came before"
        body = {"about": files.plain(self.about), "layout": self.layout.to_json(), "batches": batches}
        with files.replacing(folder / MANIFEST) as partial:  # the old one stays until the new one is on disk
            text = files.json_text(checksummed_manifest("dataset", FORMAT_VERSION, body))
            partial.write_text(text + "\n", "utf-8")
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        self._counted = batches

    def _open(self) -> None:
        dataset = Dataset(self.path)
        self.about, self._counted = dataset.about, len(dataset)
        self._begin(dataset.layout)
        self.entries = dataset.entries
        lines = (self.path / INDEX).read_bytes().splitlines(keepends=True)
        self._end = sum(map(len, lines[: len(self)]))
        whole = len(self)
        while whole and not dataset.is_whole(whole - 1):
            whole -= 1
        if whole < len(self):
            log.warning("%s: its last %d batches are damaged and dropped", self.path, len(self) - whole)
            self.rewind(whole)

    def _create(self, layout: Layout) -> None:
        self.layout = layout
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with self._writing():
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir(parents=True)
                for name in (*(each.file for each in layout.columns), INDEX):
                    (partial / name).touch()
                self._describe(partial, 0)
                os.replace(partial, self.path)
            except BaseException:
                self.layout = None
                shutil.rmtree(partial, ignore_errors=True)
                raise
        self._begin(layout)

    def _begin(self, layout: Layout) -> None:
        self.layout = layout
        self._files = [_File(self.path / name) for name in (*(each.file for each in layout.columns), INDEX)]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DatasetError(
                f"{self.path} cannot be written: {error.strerror or error}; its {len(self)} batches before are whole"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other writers, if the system can; raises if another one wrote since the last batch."""
        with open(self._files[-1].path, "rb") as index:
            with suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(index, fcntl.LOCK_EX)
            index.seek(self._end)
            if os.fstat(index.fileno()).st_size < self._end or b"\n" in index.read():
                raise DatasetError(
                    f"{self.path} was changed by somebody else since batch {len(self)}: a dataset has one writer; "
                    "give each a path of its own"
                )
            yield


def check_place(path: Path, *, several: bool = False) -> None:
    """Raise a DatasetError if the path holds something other than a dataset, or `several`, in a folder each."""
    empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if several and any(path.glob(f"*/{MANIFEST}")):
        return
    if not empty and not (path / MANIFEST).is_file():
        raise DatasetError(f"{path} is there and is no dataset; choose another place")


class _File:
    """A file that is written at explicit offsets."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = str(path), path.stat().st_size

    def write(self, start: int, part: Any) -> None:
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(start)
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]

    def keep(self, end: int) -> None:
        """Commit the file up to this offset."""
        self.size = max(self.size, end)

    def undo(self) -> None:
        """Truncate uncommitted bytes; not more, since readers may map the rest."""
        if os.path.getsize(self.path) > self.size:
            os.truncate(self.path, self.size)
