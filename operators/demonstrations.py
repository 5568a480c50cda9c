"""Demonstrations beside fresh experience: columns to add before storing, and mixing both in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from flowrl.data import Batch, MixedReplay
from flowrl.data.steps import is_fragment
from flowrl.engine.graph import graph, select
from flowrl.engine.operator import operator
from flowrl.engine.plan import Plan
from flowrl.engine.schema import ColumnSchema, Schema
from flowrl.errors import PlanError, SchemaError
from flowrl.operators.adders import check_rates
from flowrl.operators.concurrency import Sequentially
from flowrl.operators.replay import Replay, StoreToReplay, UpdatePriorities
from flowrl.policies.protocols import HasMemory, check_alone

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet


def MixInDemonstrations(plan: Plan, demonstrate: Plan, fraction: float) -> Plan:
    """Edit a plan that learns from replay so that a fixed fraction of every batch is demonstrations.

    It stores the demonstrations before the plan begins. Then `Replay` draws from a `MixedReplay` of the plan's buffer
    (`fresh`) and theirs (`demonstrations`), and `UpdatePriorities`, if there is one, updates both. The rest of the plan
    stays.

    Args:
        plan: A plan with one `StoreToReplay` and one `Replay`, such as those of DQN, SAC and R2D2. The rate limiter of
            its buffer counts the rows drawn from that buffer, 1 - fraction of all.
        demonstrate: A plan that stores demonstrations: its last operator is a `StoreToReplay`.
        fraction: Fraction of every batch, above 0 and below 1; exact in the long run, see `MixedReplay`.

    Raises: PlanError if these operators are missing; ValueError for buffers that cannot be mixed.
    Source: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", section 4.1.

    >>> from flowrl import from_items
    >>> from flowrl.data import ReplayBuffer
    >>> from flowrl.operators import Concurrently
    >>> fresh, shown = ReplayBuffer(10), ReplayBuffer(10)
    >>> store = from_items([Batch(obs=[1, 2])]).for_each(StoreToReplay(fresh))
    >>> plan = Concurrently({"store": store, "train": Replay(fresh, 4).take(2)}, output_indexes=["train"])
    >>> demonstrate = from_items([Batch(obs=[10, 20])]).for_each(StoreToReplay(shown))
    >>> [batch.part.tolist() for batch in MixInDemonstrations(plan, demonstrate, 0.25)]
    [[0, 0, 0, 1], [0, 0, 0, 1]]
    """
    if not isinstance(demonstrate.op, StoreToReplay):
        raise PlanError(f"MixInDemonstrations: demonstrate ends with {demonstrate.name}: end it with StoreToReplay")
    fresh, replay = select(plan, "StoreToReplay").op.buffer, select(plan, "Replay").op
    mixture = MixedReplay(fresh=(fresh, 1 - fraction), demonstrations=(demonstrate.op.buffer, fraction))
    plan = plan.replace("Replay", Replay(mixture, replay.batch_size, replay.in_flight))
    if any(isinstance(node.op, UpdatePriorities) for node in graph(plan)):
        plan = plan.replace("UpdatePriorities", UpdatePriorities(mixture))
    return Sequentially({"demonstrate": demonstrate, "online": plan}, output_indexes=["online"])


@operator
class FillColumn:
    """Sets one column, new or not, to the same value in every step of a batch `[T, N, ...]` or `[B, ...]`.

    The input batch is not modified (H4).

    >>> FillColumn("reward", 1.0)(Batch(obs=np.zeros((3, 4)), reward=np.zeros(3))).reward
    array([1., 1., 1.])
    """

    column: str
    value: float | bool

    def schema(self, given: Schema) -> Schema:
        if given.open or not given.columns:
            return given
        shape = given.axes or next(iter(given.columns.values())).shape[:1]
        dtype = given.columns[self.column].dtype if self.column in given.columns else str(np.asarray(self.value).dtype)
        return attrs.evolve(given, columns={**given.columns, self.column: ColumnSchema(dtype, shape)})

    def __call__(self, batch: Batch) -> Batch:
        axes = 2 if is_fragment(batch) else 1
        dtype = batch[self.column].dtype if self.column in batch else np.asarray(self.value).dtype
        return batch.replace(**{self.column: np.full(batch.shape[:axes], self.value, dtype)})


@operator
class KeepOneStep:
    """Keeps each single step in a nested column, so that rows of a following `NStep` hold both windows.

    Fragments `[T, N, ...]` in, the same with a nested column `one_step` out: the step's own `reward` and `next_obs`,
    and discount = γ (1 − terminated).

    Raises: SchemaError if a column is missing.

    >>> step = Batch(reward=[[2.0]], next_obs=[[7]], terminated=[[False]], truncated=[[False]])
    >>> kept = KeepOneStep(gamma=0.5)(step).one_step
    >>> kept.reward, kept.next_obs, kept.discount
    (array([[2.]]), array([[7]]), array([[0.5]], dtype=float32))
    """

    requires = ("reward", "next_obs", "terminated")
    provides = ()
    gamma: float

    def __attrs_post_init__(self) -> None:
        check_rates(gamma=self.gamma)

    def schema(self, given: Schema) -> Schema:
        kept = {name: column for name, column in given.columns.items() if _root(name) in ("reward", "next_obs")}
        if "terminated" in given.columns:
            kept["discount"] = ColumnSchema("float32", given.columns["terminated"].shape)
        return attrs.evolve(given, columns={**given.columns, **{f"one_step.{name}": kept[name] for name in kept}})

    def __call__(self, batch: Batch) -> Batch:
        if missing := [name for name in self.requires if name not in batch]:
            raise SchemaError(f"KeepOneStep needs the column {missing[0]!r}: the batch has {', '.join(batch)}")
        discount = np.where(batch["terminated"], 0, self.gamma).astype(np.float32)
        return batch.replace(one_step=Batch(reward=batch["reward"], next_obs=batch["next_obs"], discount=discount))


def _root(name: str) -> str:
    return name.partition(".")[0]


def _remembers(op: Any, attribute: Any, workers: Any) -> None:
    check_alone(workers.policy, type(op).__name__)
    if not isinstance(workers.policy.collect_mode, HasMemory):
        raise PlanError(f"{type(op).__name__} needs a recurrent policy, got {workers.policy!r}")


@operator
class InitialState:
    """Gives every step of fragments `[T, N, ...]` the initial `state [T, N, width]` of the workers' policy.

    For experience without recurrent states of this policy: sequences unroll from the initial state, and burn-in warms
    it up. Kapturowski et al. 2019 compare this "zero state" with the actor's states.
    """

    requires = ("fragments",)
    provides = ()
    workers: WorkerSet = attrs.field(validator=_remembers)

    def _state(self) -> Any:
        mode: Any = self.workers.policy.collect_mode
        return mode.initial_state()

    def schema(self, given: Schema) -> Schema:
        state = self._state()
        return given.having(state=f"{state.dtype}[T, N, {', '.join(map(str, state.shape[1:]))}]")

    def __call__(self, batch: Batch) -> Batch:
        state = self._state()
        return batch.replace(state=np.broadcast_to(state, (*batch.shape[:2], *state.shape[1:])).copy())
