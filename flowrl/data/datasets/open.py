"""Datasets by name: a folder, or an id of Minari."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from flowrl.data.batch import Batch
from flowrl.data.datasets.dataset import Dataset
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.data.datasets.returns_view import ReturnsView
from flowrl.data.types import Array

#: What is read as a dataset.
Rows: TypeAlias = Dataset | MinariEpisodes | ReturnsView

#: Rows that are looked at together: a dataset may be larger than memory.
ROWS = 16_384

#: Before the id of a dataset of Minari, where a folder could stand too.
MINARI = "minari:"


def open_dataset(source: str | Path | Dataset | MinariEpisodes) -> Dataset | MinariEpisodes:
    """The dataset itself, or the one in a folder, or that of Minari whose id follows "minari:".

    Raises: DatasetError where there is none, or it is damaged.
    """
    if isinstance(source, Dataset | MinariEpisodes):
        return source
    if isinstance(source, str) and source.startswith(MINARI):
        return MinariEpisodes(source.removeprefix(MINARI))
    return Dataset(source)


def parts_of(data: Dataset | MinariEpisodes, names: Sequence[str], rows: int = ROWS) -> Iterator[tuple[Array, Batch]]:
    """All rows but padded ones (N6), so many at a time: their numbers `[B]`, and these columns of them."""
    real = data.real_rows()
    for start in range(0, len(real), rows):
        numbers = real[start : start + rows]
        yield numbers, data.take(numbers, names)
