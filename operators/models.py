"""Learned models of the environment: fitting one to a replay buffer, and imagining experience with it.

Snapshots(real, every=250) -> FitModel(model)
ImaginedRollouts(workers, model, real) -> StoreToReplay(imagined)

A world model is part of the policy, which acts in its latent states:

Replay(buffer) -> TrainWorldModel(workers) -> ImagineAhead(workers, horizon=15) -> TrainOneStep(workers)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from flowrl.data import Batch, ReplayBuffer
from flowrl.data.columns import TRANSITION
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import BLOCKED
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.errors import PlanError
from flowrl.policies.protocols import HasMemory, HasWorldModel, OwnsPolicy, check_alone

if TYPE_CHECKING:
    from flowrl.models import Dynamics
    from flowrl.rollout import WorkerSet


def _is_buffer(op: Any, attribute: Any, buffer: Any) -> None:
    if not isinstance(buffer, ReplayBuffer):
        raise PlanError(f"{type(op).__name__} reads rows of a ReplayBuffer, got {buffer!r}")


def _is_dynamics(op: Any, attribute: Any, model: Any) -> None:
    from flowrl.models import Dynamics

    if not isinstance(model, Dynamics):
        raise PlanError(f"{type(op).__name__} needs a model of the dynamics, such as Dynamics(...), got {model!r}")


def _acts_on_rows(op: Any, attribute: Any, workers: Any) -> None:
    check_alone(workers.policy, type(op).__name__)
    if isinstance(workers.policy.collect_mode, HasMemory):
        raise PlanError(f"{type(op).__name__} acts in single states, but {workers.policy!r} is recurrent")


@operator
class AllRows:
    """Source of all rows `[B, ...]` of a buffer, each time that `every` more were added; see `Snapshots`.

    Rows that no sampling has drawn: the buffer's rate limiter does not count them.

    Blocks when: fewer than `first` rows were ever added, or fewer than `every` since the last item.
    State: the rows added before the last item.
    """

    endless: ClassVar[bool] = True
    buffer: ReplayBuffer = attrs.field(validator=_is_buffer)
    every: int = attrs.field(validator=attrs.validators.ge(1))
    first: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    seen: int | None = state(default=None)

    def schema(self, given: Schema) -> Schema:
        return given if given == UNKNOWN else given.rows().without("on_policy")

    @property
    def out_of(self) -> ReplayBuffer:
        return self.buffer

    @property
    def _due(self) -> int:
        return self.first if self.seen is None else self.seen + self.every

    def pull(self) -> Any:
        if self.buffer.inserts < self._due:
            return BLOCKED
        self.seen = self.buffer.inserts
        return self.buffer[:]

    def why(self) -> str:
        return f"waits for rows: {self.buffer.inserts} of {self._due} stored"


def Snapshots(buffer: ReplayBuffer, every: int, first: int = 1) -> Plan:
    """All rows of a buffer, once `first` rows were added, and then each time that `every` more were. See `AllRows`."""
    return Plan(AllRows(buffer, every, first), name="Snapshots")


@operator
class FitModel:
    """Fits a model of the dynamics to each batch of rows `[B, ...]`, all that is known, and passes it on.

    Args:
        model: The model; it learns on from its weights.
        holdout, minibatch_size, patience, epochs: See `Dynamics.fit`.

    Counts: model_updates (optimizer steps of the model). Records: the scalars of `Dynamics.fit`.
    State: in the model. Draws: held-out rows, rows of each member and minibatches, by the run's seed and the
    operator's path (D6).
    Raises: SchemaError if the model misses a column.
    """

    requires = TRANSITION[:-1]
    model: Dynamics = attrs.field(validator=_is_dynamics)
    holdout: float = attrs.field(default=0.2, validator=[attrs.validators.gt(0), attrs.validators.lt(1)])
    minibatch_size: int = attrs.field(default=32, validator=attrs.validators.ge(1))
    patience: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    epochs: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return given

    def __call__(self, batch: Batch) -> Batch:
        steps, scalars = self.model.fit(
            batch,
            self.context.generator("rows"),
            holdout=self.holdout,
            minibatch_size=self.minibatch_size,
            patience=self.patience,
            epochs=self.epochs,
        )
        self.context.count("model_updates", steps)
        for name, value in scalars.items():
            self.context.record(name, value)
        return batch


@operator
class Imagined:
    """Source of rows `[B, ...]` that a model imagines; see `ImaginedRollouts`.

    Blocks when: the model has not been fitted yet. Counts: imagined (rows).
    Draws: states to start from, elites, and noise of actions and of the model, by the run's seed and the operator's
    path (D6).
    """

    endless: ClassVar[bool] = True
    workers: WorkerSet = attrs.field(validator=_acts_on_rows)
    model: Dynamics = attrs.field(validator=_is_dynamics)
    buffer: ReplayBuffer = attrs.field(validator=_is_buffer)
    branches: int = attrs.field(validator=attrs.validators.ge(1))
    horizon: int = attrs.field(validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        if given == UNKNOWN:
            return given
        rows = given.rows()
        columns = {name: column for name, column in rows.columns.items() if name in TRANSITION}
        return Schema(columns, frozenset({"experience", "rows"}), most={"B": self.branches * self.horizon})

    @property
    def out_of(self) -> ReplayBuffer:
        return self.buffer

    def pull(self) -> Any:
        if not self.model.elites:
            return BLOCKED
        rows = self._imagined()
        self.context.count("imagined", len(rows))
        return rows

    def why(self) -> str:
        return f"waits until {self.model!r} is fitted"

    def _imagined(self) -> Batch:
        """Steps of all branches, the first steps first; a branch that has ended takes no more."""
        mode: Any = self.workers.policy.collect_mode
        draw, env_steps = self.context.generator("branches"), self.context.counters.get("env_steps", 0)
        begun = self.buffer.get(draw.integers(len(self.buffer), size=self.branches))
        obs, steps = begun.obs, list[Batch]()
        for _ in range(self.horizon):
            action = mode.act(obs, draw.random((len(obs), mode.draws)), env_steps)["action"]
            normal = draw.standard_normal((len(obs), self.model.width), np.float32)
            elite = draw.integers(len(self.model.elites), size=len(obs))
            reward, next_obs, terminated = self.model.imagine(obs, action, normal, elite)
            next_obs, reward = next_obs.astype(obs.dtype), reward.astype(begun.reward.dtype)
            truncated = np.zeros_like(terminated)
            columns = (obs, action, reward, next_obs, terminated, truncated)
            steps.append(Batch(dict(zip(TRANSITION, columns))))
            obs = next_obs[~terminated]
            if not len(obs):
                break
        return Batch.cat(steps)


def ImaginedRollouts(
    workers: WorkerSet, model: Dynamics, buffer: ReplayBuffer, *, branches: int = 100, horizon: int = 1
) -> Plan:
    """Rows `[B, ...]` of short episodes that a model imagines: the policy acts, the model answers.

    Each item has `branches` that begin in states drawn uniformly from a buffer of real rows, which its rate limiter
    does not count. A branch ends where the model ends it, or after `horizon` steps, from where a policy bootstraps: no
    row says `truncated`, since nothing but the horizon ends it.

    Args:
        workers: Whose policy acts, as it collects.
        model: The model, of which an elite, drawn anew for each row, imagines.
        buffer: Real rows.
        branches: Episodes per item.
        horizon: Most steps of each.

    Counts: imagined. Source: Janner et al. 2019, "When to Trust Your Model", algorithm 2.
    """
    return Plan(Imagined(workers, model, buffer, branches, horizon), name="ImaginedRollouts")


def _has_world_model(op: Any, attribute: Any, workers: Any) -> None:
    check_alone(workers.policy, type(op).__name__)
    if not isinstance(workers.policy, HasWorldModel):
        raise PlanError(f"{type(op).__name__}: {type(workers.policy).__name__} has no world model")


def _made_of(given: Schema, word: str) -> Schema:
    """Other columns, of which the word says enough; statistics of the observations remain known."""
    return given if given == UNKNOWN else Schema(words=frozenset({word, *(given.words & {"statistics"})}))


@operator
class TrainWorldModel:
    """Takes one optimizer step of the policy's world model on sequences `[T, B, ...]`; emits `latent [R, ...]`, the
    latent states that it found at the steps that count.

    Counts: model_updates. Records: the scalars of the world model's loss. State: in the policy.
    Raises: SchemaError if the loss misses a column.
    """

    provides = ("latents",)
    workers: OwnsPolicy = attrs.field(validator=_has_world_model)
    context: Context = context()

    @property
    def requires(self) -> Any:
        return self.workers.policy.world_mode.requires

    @property
    def learns(self) -> Any:
        return self.workers.policy

    def schema(self, given: Schema) -> Schema:
        return _made_of(given, "latents")

    def __call__(self, batch: Batch) -> Batch:
        learn = self.workers.policy.world_mode
        learn.schedule(self.context.counters.get(self.workers.clock, 0))
        scalars = learn.learn_from(batch)
        latent = scalars.pop("latent")
        self.context.count("model_updates", 1)
        for name, value in scalars.items():
            self.context.record(name, float(value))
        return Batch(latent=latent)


@operator
class ImagineAhead:
    """Imagines `horizon` steps from each latent state: the policy acts, its world model answers.

    latent `[R, ...]` -> latent, action, reward and discount `[horizon + 1, R, ...]`, in the order of time. The last
    step is there for the value of its latent state.

    Counts: imagined (steps). State: in the policy, whose stream it draws from (D6).
    Source: Hafner et al. 2020, "Dream to Control: Learning Behaviors by Latent Imagination", algorithm 1.
    """

    requires: ClassVar[dict[str, str]] = {"latents": "it imagines from latent states: put TrainWorldModel before it"}
    provides = ("imagined",)
    workers: OwnsPolicy = attrs.field(validator=_has_world_model)
    horizon: int = attrs.field(validator=attrs.validators.ge(1))
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return _made_of(given, "imagined")

    def __call__(self, batch: Batch) -> Batch:
        policy = self.workers.policy
        imagined: Batch = policy.imagined(batch.to_torch(policy.device)["latent"], self.horizon)
        self.context.count("imagined", imagined.rows)
        return imagined
