"""Opens datasets by name: a folder, or a Minari id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from flowrl.data.batch import Batch
from flowrl.data.datasets.dataset import Dataset
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.data.datasets.returns_view import ReturnsView
from flowrl.data.types import Array
from flowrl.errors import DatasetError

#: Objects with the interface of a dataset.
Rows: TypeAlias = Dataset | MinariEpisodes | ReturnsView

#: Rows to read at a time: a dataset may be larger than memory.
ROWS = 16_384

#: Prefix of Minari ids where a folder is allowed too.
MINARI = "minari:"


def open_dataset(source: str | Path | Dataset | MinariEpisodes, agents: str | None = None) -> Dataset | MinariEpisodes:
    """Open the dataset in a folder, or the Minari dataset "minari:ID"; an open dataset is returned unchanged.

    `agents`: see `Dataset`.

    Raises: DatasetError if it is missing or damaged, or has no such agents.
    """
    if isinstance(source, Dataset | MinariEpisodes):
        return source
    if isinstance(source, str) and source.startswith(MINARI):
        if agents is not None:
            raise DatasetError(f"{source} has no agents, so that none can be chosen: leave {agents!r} out")
        return MinariEpisodes(source.removeprefix(MINARI))
    return Dataset(source, agents)


def parts_of(data: Dataset | MinariEpisodes, names: Sequence[str], rows: int = ROWS) -> Iterator[tuple[Array, Batch]]:
    """All rows but padded ones (N6), `rows` at a time: their indices `[B]` and these columns."""
    real = data.real_rows()
    for start in range(0, len(real), rows):
        numbers = real[start : start + rows]
        yield numbers, data.take(numbers, names)
