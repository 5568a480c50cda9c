"""Recording experience to disk, and reading it back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from flowrl.data import Batch, Dataset, DatasetWriter
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.data.datasets.open import Rows, open_dataset
from flowrl.data.datasets.returns_view import ContextView, ReturnsView
from flowrl.data.datasets.writer import check_place
from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import is_fragment
from flowrl.data.types import Array
from flowrl.engine.context import Context
from flowrl.engine.operator import context, not_negative, operator, runtime, state
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import DONE, Signal
from flowrl.engine.schema import ColumnSchema, Schema
from flowrl.errors import ConfigError, DatasetError, SchemaError
from flowrl.operators.normalize import DatasetStatistics, normalizes
from flowrl.policies.protocols import check_alone

if TYPE_CHECKING:
    from flowrl.rollout import Workers


@operator
class Record:
    """Adds each batch `[T, N, ...]` or `[B, ...]` to a dataset on disk and passes it on unchanged.

    The dataset is readable while it grows. A resumed run continues after the last batch of its checkpoint: it records
    later batches again, so none is lost or doubled (F2).

    With `workers` it writes what `flowrl record` writes: a manifest with the environment, its wrappers and its spaces,
    so that learning from it needs no environment; and actions in the environment's scale, without `logp` if that
    differs from the policy's.

    Of a MultiAgentBatch each policy has a dataset of its own, in the folder of its name.

    Args:
        path: The folder; all batches have the columns of the first.
        overwrite: Whether to remove a dataset that exists when a run begins; otherwise it is an error.
        workers: The workers whose rollouts it records.

    State: the number of batches recorded. Counts: recorded (rows, padding included).
    Raises: SchemaError if an item is not a batch or has other columns than the first; DatasetError if the path is taken
        or cannot be written.

    >>> import tempfile
    >>> record = Record(Path(tempfile.mkdtemp()) / "walk")
    >>> for reward in (1.0, 2.0):
    ...     _ = record(Batch(reward=np.full(3, reward)))
    >>> [batch.reward.tolist() for batch in Dataset(record.path)]
    [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """

    provides = ()
    path: str = attrs.field(converter=str)
    overwrite: bool = False
    workers: Workers | None = attrs.field(default=None, repr=False)
    context: Context = context()
    recorded: int | dict[str, int] | None = state(default=None)
    _writers: dict[str, DatasetWriter] = runtime(factory=dict)

    def schema(self, given: Schema) -> Schema:
        try:
            check_place(Path(self.path), several=True)
        except DatasetError as error:
            raise SchemaError(str(error)) from error
        return given

    def __call__(self, batch: Batch | MultiAgentBatch) -> Batch | MultiAgentBatch:
        if isinstance(batch, MultiAgentBatch):
            before = self.recorded if isinstance(self.recorded, dict) else {}
            self.recorded = before | {name: self._add(part, name, before.get(name)) for name, part in batch.items()}
        elif isinstance(batch, Batch):
            self.recorded = self._add(batch, "", self.recorded if isinstance(self.recorded, int) else None)
        else:
            raise SchemaError(f"Record stores batches, got a {type(batch).__name__}")
        self.context.count("recorded", batch.rows)
        return batch

    def finish(self) -> list[Batch]:
        for writer in self._writers.values():
            writer.flush()
        return []

    def _add(self, batch: Batch, name: str, before: int | None) -> int:
        """Add a batch of the policy of this name to its dataset, which has so many; returns how many it has then."""
        of: Any = self.workers
        if name and of is not None:
            of = of.of(name)
        if name not in self._writers:
            about = None if self.workers is None else self.workers.origin() | of.origin()
            self._writers[name] = DatasetWriter(Path(self.path) / name, about)
        writer = self._writers[name]
        if before is None:
            self._begin(writer)
        elif before != len(writer):
            writer.rewind(before)
        writer.add(batch if of is None else _as_sent(batch, of.policy))
        return len(writer)

    def _begin(self, writer: DatasetWriter) -> None:
        if len(writer) and not self.overwrite:
            raise DatasetError(
                f"{writer.path} already has {len(writer)} batches, from before this run (or before its checkpoint, if "
                "it was resumed): take another path, or overwrite=True"
            )
        writer.clear()


def _as_sent(batch: Batch, policy: Any) -> Batch:
    """The batch with actions in the environment's scale; drops `logp` if these differ from the stored ones."""
    if "action" not in batch:
        return batch
    stored = np.asarray(batch["action"])
    drawn = stored.reshape(-1, *stored.shape[1 + is_fragment(batch) :])  # modes act on rows
    sent = policy.for_env(drawn)
    kept = batch if sent is drawn else batch.select([name for name in batch if name != "logp"])
    dtype = sent.dtype if policy.action_space is None else policy.action_space.dtype  # a scripted policy may have none
    return kept.replace(action=sent.astype(dtype, copy=False).reshape(stored.shape))


def _at_least_one(op: Any, attribute: Any, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{attribute.name} is {value}, expected a whole number of at least 1")


@operator
class Recorded:
    """Source of a dataset: its batches as recorded, or batches `[batch_size, ...]` of its rows.

    An epoch covers, once each, the batches or rows that exist when it begins. Padded steps (`mask` 0) are not rows. The
    last batch of an epoch may be shorter.

    State: epoch, batches emitted in it, batches that it reads. Counts: read (rows).
    Raises: DatasetError at the start if the dataset is damaged or empty.
    """

    data: Rows
    batch_size: int | None = attrs.field(default=None, validator=_at_least_one)
    shuffle: bool | None = None
    epochs: int | None = attrs.field(default=1, validator=_at_least_one)
    verify: bool = True
    without: tuple[str, ...] = attrs.field(default=(), repr=False)  # columns to leave out
    at_most: int | None = attrs.field(default=None, repr=False)  # limit: the first batches of the dataset
    context: Context = context()
    epoch: int = state(default=0, check=not_negative)
    given: int = state(default=0, check=not_negative)
    batches: int | None = state(default=None)
    _order: Array | None = runtime()  # of this epoch
    _of: tuple[int, int, int] = runtime(default=(-1, -1, -1))
    _rows: Rows | None = runtime()  # of this epoch
    _verified: int = runtime(default=0)

    @property
    def endless(self) -> bool:
        return self.epochs is None

    def schema(self, given: Schema) -> Schema:
        known = self.data.schema().without(*self.without)
        return known if self.batch_size is None or "sequences" in known.words else known.rows()

    def pull(self) -> Batch | Signal:
        if self.epochs is not None and self.epoch >= self.epochs:
            return DONE
        order = self._of_epoch()
        assert self._rows is not None
        rows, size = self._rows, self.batch_size or 1
        part = order[self.given * size : (self.given + 1) * size]
        # Copies either way: the consumer may write to a batch.
        batch = rows.take(part) if self.batch_size else rows[int(part[0])].map(np.array)
        self.given += 1
        if self.given * size >= len(order):
            self.epoch, self.given, self.batches = self.epoch + 1, 0, None
        self.context.count("read", batch.rows)
        return batch.select([name for name in batch if name not in self.without]) if self.without else batch

    def _of_epoch(self) -> Array:
        """The indices of the batches, or rows, of this epoch in order."""
        if self.batches is None:
            self.batches = len(self.data.refresh())
            self.batches = self.batches if self.at_most is None else min(self.batches, self.at_most)
        of = (self.context.seeds.seed, self.epoch, self.batches)
        if self._order is None or self._of != of:
            self._check(self.batches)
            self._rows = self.data.first(self.batches)
            order = np.arange(self.batches) if self.batch_size is None else self._rows.real_rows(self.batches)
            if not len(order):
                self.batches = None
                raise DatasetError(f"{self.data.path} is empty")
            if self.shuffle or (self.shuffle is None and self.batch_size is not None):
                order = np.random.default_rng([self.context.seed("shuffle"), self.epoch]).permutation(order)
            self._order, self._of = order, of
        return self._order

    def _check(self, batches: int) -> None:
        if len(self.data) < batches and len(self.data.refresh()) < batches:
            raise DatasetError(f"{self.data.path} has {len(self.data)} batches, but this run has read {batches}")
        if self.verify:
            self.data.verify(self._verified)
            self._verified = len(self.data)


def FromDataset(
    dataset: str | Path | Dataset | MinariEpisodes,
    batch_size: int | None = None,
    *,
    shuffle: bool | None = None,
    epochs: int | None = 1,
    verify: bool = True,
) -> Plan:
    """A recorded dataset as a stream. See `Recorded`.

    Args:
        dataset: The folder, which may grow meanwhile, or "minari:" and the id of a Minari dataset; or either, opened.
        batch_size: Rows of each batch; None: batches as recorded.
        shuffle: Whether to shuffle anew in each epoch, by the run's seed; None: shuffle rows, but not batches.
        epochs: Number of passes; None: for ever.
        verify: Whether to compare checksums first, which reads the dataset once.

    Raises:
        DatasetError: the dataset is missing or damaged.
    """
    return Plan(Recorded(open_dataset(dataset), batch_size, shuffle, epochs, verify), name="FromDataset")


def demonstrations_in(source: str | Path | Dataset | MinariEpisodes | None) -> Dataset | MinariEpisodes:
    """The dataset that a configuration's `demonstrations` names.

    Raises:
        ConfigError: `demonstrations` is None. DatasetError: the dataset is missing or damaged.
    """
    if source is None:
        raise ConfigError(
            "demonstrations=None: this plan learns from recorded episodes. Record some from a trained run, with "
            "`flowrl record RUN --episodes 10 --out DIR`, and pass --set demonstrations=DIR, or minari:ID"
        )
    return open_dataset(source)


def Demonstrations(
    source: str | Path | Dataset | MinariEpisodes | None,
    policy: Any,
    batch_size: int | None = None,
    *,
    epochs: int | None = 1,
    needs: Sequence[str] = ("obs", "action"),
) -> Plan:
    """Recorded demonstrations as a stream to learn from, without `policy_version`, which belongs to other weights.

    See `FromDataset`.

    Args:
        source: As for `FromDataset`.
        policy: The policy that learns from it; its spaces must match those of the demonstrations.
        batch_size: Rows of each batch, shuffled; None: batches as recorded, without those that another process
            adds from now on, since buffers are sized for the present ones.
        epochs: Number of passes; None: for ever.
        needs: The columns to learn from.

    Raises:
        ConfigError, DatasetError: the dataset is missing, damaged, or does not fit: see
            `flowrl.envs.dataset_spaces.check_dataset`.
    """
    from flowrl.envs.dataset_spaces import check_bounds, check_dataset

    data = demonstrations_in(source)
    check_dataset(data, policy.observation_space, policy.action_space, needs)
    check_bounds(data, policy.action_space)
    at_most = len(data) if batch_size is None else None
    recorded = Recorded(data, batch_size, epochs=epochs, without=("policy_version",), at_most=at_most)
    return Plan(recorded, name="Demonstrations")


@operator
class PolicyActions:
    """Converts the `action` of rows from the environment's scale to that of the policy that learns from them.

    A policy with critics stores continuous actions in -1 .. 1, from the lower to the upper bound; datasets hold them
    in the environment's scale. Converting twice would make them too small: check() rejects that.
    """

    requires = ("action",)
    provides = ("policy_actions",)
    workers: Workers

    def schema(self, given: Schema) -> Schema:
        if "policy_actions" in given.words:
            raise SchemaError("these actions are in the policy's scale already: leave out one PolicyActions")
        if "action" not in given.columns:
            return given
        policy, column = self.workers.policy, given.columns["action"]
        one = np.zeros((1, *(policy.action_space.shape or ())), policy.action_space.dtype)
        stored = ColumnSchema(str(policy.from_env(one).dtype), column.shape)
        return attrs.evolve(given, columns={**given.columns, "action": stored})

    def __call__(self, batch: Batch) -> Batch:
        return batch.replace(action=self.workers.policy.from_env(batch["action"]))


def OfflineRows(
    workers: Workers,
    source: str | Path | Dataset | MinariEpisodes,
    batch_size: int,
    *,
    epochs: int | None = None,
    needs: Sequence[str] = ("obs", "action"),
    returns: float | None = None,
    context: int | None = None,
) -> Plan:
    """Shuffled rows of a dataset for the policy of `workers`: `Demonstrations` with actions in its scale.

    A policy with `normalize_obs` normalizes by the statistics of this dataset, see `DatasetStatistics`.

    Args:
        workers: Workers of the policy that learns.
        source, batch_size, epochs, needs: See `Demonstrations`.
        returns: Discount per step for rows with the return to the end of their episode, see
            `flowrl.data.datasets.returns_view.ReturnsView`; None: rows are single steps.
        context: Length of sequences that each end with a row, see `flowrl.data.datasets.returns_view.ContextView`.

    Raises: DatasetError, see `Demonstrations`.
    """
    check_alone(workers.policy, "a plan of demonstrations")
    policy, data = workers.policy, open_dataset(source)
    rows = Demonstrations(data, policy, batch_size, epochs=epochs, needs=needs)
    if context is not None:
        rows = attrs.evolve(rows, op=attrs.evolve(rows.op, data=ContextView(data, context)))
    elif returns is not None:
        rows = attrs.evolve(rows, op=attrs.evolve(rows.op, data=ReturnsView(data, returns)))
    rows = rows.for_each(PolicyActions(workers))
    return rows.for_each(DatasetStatistics(workers, data)) if normalizes(policy) else rows


def from_minari(dataset: Any) -> Plan:
    """The episodes of a Minari dataset, as a stream, with the columns of `flowrl.data.datasets.minari.MinariEpisodes`.

    `FromDataset("minari:...", batch_size)` emits shuffled rows instead, which it keeps in memory.

    Args:
        dataset: A MinariDataset, or the id of one on this machine.

    Raises:
        DatasetError: Minari is not installed (the extra `data`), or this machine has no such dataset.
    """
    return Plan(Recorded(MinariEpisodes(dataset)), name="from_minari")
