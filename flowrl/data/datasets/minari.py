"""Minari datasets as episodes in flowrl's columns. The extra `data` installs Minari; it is imported on use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.data.batch import Batch
from flowrl.data.datasets.hdf5 import check_episodes, check_metadata
from flowrl.data.types import Array
from flowrl.engine.schema import ColumnSchema, Schema, schema_of
from flowrl.errors import DatasetError, FlowError, SchemaError, did_you_mean
from flowrl.frames import one_line


class MinariEpisodes:
    """The episodes of a Minari dataset, each as a fragment `[T, 1, ...]`, with the interface of `Dataset`.

    Columns: obs, action, reward (float64), next_obs (the observation arrived in, so the true last one of an episode),
    terminated, truncated as in the dataset, and the provenance env_id (0), episode_id, t. An episode that was cut has
    neither flag at its end. Dictionary observations and actions are nested batches.

    Args:
        dataset: A MinariDataset, or the id of one on this machine; nothing is downloaded.

    Raises: DatasetError without Minari, or if the id is not on this machine; if its files would take more memory than
        their size justifies (D19), or are damaged. Of Arrow and Parquet that cannot be told: by id they are refused.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = _loaded(dataset) if isinstance(dataset, str) else dataset
        if not all(hasattr(self.dataset, name) for name in ("iterate_episodes", "episode_indices", "id")):
            raise DatasetError(f"expected a Minari dataset or the id of one, got {dataset!r}")
        self.name = str(self.dataset.id)

    def __len__(self) -> int:
        return len(self.dataset.episode_indices)

    def __repr__(self) -> str:
        return f"{self.name}, {len(self)} episodes"

    def __getitem__(self, number: int) -> Batch:
        """An episode by its index in the dataset."""
        indices = [self.dataset.episode_indices[number]]
        with self._reading():
            check_episodes(self.dataset.storage, indices)
            (episode,) = self.dataset.iterate_episodes(indices)
        return episode_batch(episode)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FlowError:
            raise
        except Exception as error:  # whatever Minari, HDF5 and pictures raise about what is damaged
            raise DatasetError(f"{self.name} cannot be read: {one_line(error)}") from error

    @property
    def path(self) -> str:
        """Its name in error messages."""
        return self.name

    @cached_property
    def _table(self) -> Batch:
        """The rows of all episodes, read once."""
        with self._reading():
            check_episodes(self.dataset.storage, self.dataset.episode_indices)
        return Batch.cat([self[number][:, 0] for number in range(len(self))])

    @property
    def rows(self) -> int:
        """Steps of all episodes."""
        return int(self.dataset.total_steps)

    def real_rows(self, batches: int | None = None) -> Array:
        """Indices of the rows of the first `batches` episodes, or of all."""
        whole = batches is None or batches >= len(self)
        return np.arange(self.rows if whole else sum(len(self[number]) for number in range(batches or 0)))

    def take(self, rows: Sequence[int] | Array, names: Sequence[str] | None = None) -> Batch:
        """Copies of rows by index `[B, ...]`, in the order of the episodes; the first call reads all of them."""
        taken: Batch = (self._table if names is None else self._table.select(names))[np.asarray(rows)]
        return taken

    def refresh(self) -> MinariEpisodes:
        """Returns self: it does not grow."""
        return self

    def first(self, batches: int) -> MinariEpisodes:
        """See `Dataset.first`."""
        return self

    def verify(self, start: int = 0) -> MinariEpisodes:
        """Returns self: it has no checksums."""
        return self

    def schema(self) -> Schema:
        """The schema of the episodes, from the first one."""
        found = schema_of(self[0]).columns if len(self) else {}
        columns = {name: ColumnSchema(each.dtype, ("T", "N", *each.shape[2:])) for name, each in found.items()}
        return Schema(columns, frozenset({"experience", "fragments"}))


def episode_batch(episode: Any) -> Batch:
    """An episode of Minari, T steps and T + 1 observations, as a fragment `[T, 1, ...]`.

    Raises: SchemaError for spaces that cannot be columns.
    """
    steps = len(episode.rewards)
    observations = _columns(episode.observations, "obs")
    batch = Batch(
        obs=observations[:-1],
        action=_columns(episode.actions, "action"),
        reward=np.asarray(episode.rewards, np.float64),
        terminated=np.asarray(episode.terminations, bool),
        truncated=np.asarray(episode.truncations, bool),
        next_obs=observations[1:],
        env_id=np.zeros(steps, np.int64),
        episode_id=np.full(steps, episode.id, np.int64),
        t=np.arange(steps),
    )
    fragment: Batch = batch[:, None]
    return fragment


def _columns(values: Any, name: str) -> Any:
    if isinstance(values, Mapping):
        return Batch({key: _columns(inner, f"{name}.{key}") for key, inner in values.items()})
    if not isinstance(values, np.ndarray):
        raise SchemaError(f"{name} of the Minari dataset is a {type(values).__name__} of values, which has no column")
    return values


def _loaded(dataset_id: str) -> Any:
    try:
        import minari
        from minari.storage import get_dataset_path

        check_metadata(Path(get_dataset_path(dataset_id)) / "data")
        return minari.load_dataset(dataset_id)
    except ImportError as error:  # maybe of a package that Minari needs to read files
        raise DatasetError(
            f"to read {dataset_id!r} install Minari: pip install 'flowrl-engine[data]' ({error})"
        ) from error
    except (FileNotFoundError, ValueError) as error:
        here = did_you_mean(dataset_id, minari.list_local_datasets())
        raise DatasetError(f"no Minari dataset {dataset_id!r} on this machine ({error}): {here}") from error
