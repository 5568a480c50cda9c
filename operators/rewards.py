"""Learned rewards: training a reward model, applying it, and combining its rewards with the environment's.

    ParallelRollouts -> EstimateReward -> TrainReward -> CombineRewards -> GAE -> TrainOneStep

    ParallelRollouts -> TrainReward -> StoreToReplay
    Replay -> EstimateReward -> CombineRewards -> TrainOneStep

Stored rows keep the environment's reward; the model estimates its reward when they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import like
from flowrl.data.steps import is_fragment
from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.schema import UNKNOWN, ColumnSchema, Schema
from flowrl.errors import PlanError, SchemaError, did_you_mean
from flowrl.policies.protocols import KnowsLikelihoods, Learns, check_alone

if TYPE_CHECKING:
    from flowrl.models import RewardModel
    from flowrl.rollout import WorkerSet

#: Columns computed from rewards, and the operators that compute them.
_MADE_OF_REWARDS = {"advantage": "GAE or VTrace", "target": "GAE or VTrace"}


def _is_model(op: Any, attribute: Any, model: RewardModel) -> None:
    from flowrl.models import RewardModel

    if not isinstance(model, RewardModel):
        raise PlanError(f"{type(op).__name__} needs a RewardModel, such as RND(...), got {model!r}")


def _here(op: Any) -> None:
    if op.context.worker is not None:
        raise PlanError(
            f"{type(op).__name__} needs the learning model, which workers do not have: put it after the gather"
        )


@operator
class TrainReward:
    """Trains a reward model on batches `[T, N, ...]` or `[B, ...]`, which pass unchanged.

    It adds the rows of a batch to the model's running statistics once, then takes optimizer steps on them. Put it where
    each row passes once: on the stream of fresh experience, not after `Replay`, where the statistics would count rows
    as often as they are drawn.

    A model that learns from demonstrations takes pairs, from `agent.zip(Demonstrations(...))`: each minibatch has rows
    of both, and the agent's batch passes on.

    Args:
        model: The model to train.
        num_sgd_iter: Epochs over each batch.
        minibatch_size: Approximate rows per optimizer step: minibatches of a batch differ by at most one row. None:
            all. For pairs it counts the agent's rows, and demonstrations are split into as many parts; if they have
            fewer rows than parts, there are fewer, larger minibatches.

    Counts: reward_updates (optimizer steps of the model). Records: the scalars of the model's loss.
    State: in the model. Draws: minibatches, by the run's seed and the operator's path (D6).
    Raises: SchemaError if the model misses a column; PlanError on a worker.
    """

    model: RewardModel = attrs.field(validator=_is_model)
    num_sgd_iter: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    minibatch_size: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1)))
    context: Context = context()

    @property
    def requires(self) -> Mapping[str, str]:
        return {} if self.model.demonstrations else _needed(self.model)

    def schema(self, given: Schema) -> Schema:
        agent, *shown = (given.each or (UNKNOWN,)) if self.model.demonstrations else (given,)
        if self.model.demonstrations and given != UNKNOWN:
            if len(shown) != 1:
                raise SchemaError(
                    f"{type(self.model).__name__} learns from pairs of the agent's batches and demonstrated ones: put "
                    "rollouts.zip(Demonstrations(...)) before it"
                )
            for what, schema in {"fresh experience": agent, "the demonstrations": shown[0]}.items():
                for word, way_out in _needed(self.model).items():
                    if not schema.has(word):
                        raise SchemaError(f"it needs {word!r}, which is not in {what}{way_out and ': '}{way_out}")
        if "replayed" in agent.words:
            raise SchemaError(
                "replay draws rows several times, but the model's statistics count each once: put it on the "
                "stream of fresh experience, before StoreToReplay"
            )
        return agent

    def __call__(self, item: Any) -> Batch:
        _here(self)
        batches: tuple[Batch, ...] = tuple(item) if self.model.demonstrations else (item,)
        if not any(batch.is_empty for batch in batches):
            self._train(*batches)
        return batches[0]

    def _train(self, *batches: Batch) -> None:
        rows = [self.model.rows(each) for each in batches]
        if not all(map(len, rows)):  # padding alone
            return
        self.model.observe(*batches)
        steps = [self.model.update(*part) for part in self._minibatches(rows)]
        self.context.count("reward_updates", len(steps))
        for name in steps[0]:
            self.context.record(name, sum(float(step[name]) for step in steps) / len(steps))

    def _minibatches(self, parts: list[Batch]) -> Iterator[list[Batch]]:
        """Minibatches with rows of each part; their numbers of rows differ by at most one."""
        rows = [len(part) for part in parts]
        count = min(math.ceil(rows[0] / (self.minibatch_size or rows[0])), *rows)
        draw = self.context.generator("minibatches")
        for _ in range(self.num_sgd_iter):
            if count == 1:
                yield parts
                continue
            orders = [np.array_split(draw.permutation(each), count) for each in rows]
            for order in zip(*orders):
                yield [part[index] for part, index in zip(parts, order)]


@operator
class EstimateReward:
    """Adds a reward model's reward of each step as a column beside the environment's reward; float32.

    Batches `[T, N, ...]` or `[B, ...]` in, new ones out that share all other columns: stored rows do not change.

    Args:
        model: The model; its `column` is filled.

    Records: the mean of that column.
    Raises: SchemaError if the model misses a column, or its own exists already; PlanError on a worker.
    """

    model: RewardModel = attrs.field(validator=_is_model)
    context: Context = context()

    @property
    def requires(self) -> Mapping[str, str]:
        return dict.fromkeys(self.model.requires, "")

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.model.column,)

    @property
    def owes(self) -> Mapping[str, str]:
        column = self.model.column
        return {column: f"no reward includes its {column}: put CombineRewards({column}=...) after it"}

    def schema(self, given: Schema) -> Schema:
        self._check(given.columns)
        if "reward" not in given.columns:
            return given
        estimated = ColumnSchema("float32", given.columns["reward"].shape)
        return attrs.evolve(given, columns={**given.columns, self.model.column: estimated})

    def _check(self, columns: Container[str]) -> None:
        if (column := self.model.column) in columns:
            raise SchemaError(f"the column {column!r} exists already: give one of the models another `column`")

    def __call__(self, batch: Batch) -> Batch:
        _here(self)
        self._check(batch)
        reward = self.model.reward(batch)
        if reward.size:
            self.context.record(self.model.column, float(reward.mean()))
        return batch.replace(**{self.model.column: reward})


@operator
class CombineRewards:
    """reward = extrinsic · reward + Σ weight · column; the old `reward` stays as `extrinsic_reward`.

    Put it before operators that sum rewards over time: advantages and n-step windows after them would hold the
    environment's reward alone. Reported returns stay those of the environment (S1). Batches in, new ones out that share
    all other columns: stored rows do not change.

    Args:
        extrinsic: Weight of the environment's reward.
        weights: Weights of the columns, by name; or as keywords.

    Raises: SchemaError if a column is missing, or rewards are combined or summed already.

    >>> rows = Batch(reward=[1.0, 0.0], intrinsic_reward=[0.5, 2.0])
    >>> combined = CombineRewards(extrinsic=2.0, intrinsic_reward=0.1)(rows)
    >>> combined.reward, combined.extrinsic_reward, rows.reward
    (array([2.05, 0.2 ]), array([1., 0.]), array([1., 0.]))
    """

    provides = ("extrinsic_reward",)
    extrinsic: float
    weights: Mapping[str, float]
    pure = True

    def __init__(self, extrinsic: float = 1.0, weights: Mapping[str, float] | None = None, **more: float) -> None:
        self.__attrs_init__(extrinsic, {**(weights or {}), **more})  # type: ignore[attr-defined]

    def __attrs_post_init__(self) -> None:
        for name, weight in {"extrinsic": self.extrinsic, **self.weights}.items():
            if not math.isfinite(weight):
                raise ValueError(f"CombineRewards: the weight {name}={weight} is not a finite number")
        if not self.weights:
            raise ValueError("CombineRewards needs columns to combine, such as CombineRewards(intrinsic_reward=0.1)")

    @property
    def requires(self) -> Mapping[str, str]:
        return {"reward": "", **dict.fromkeys(self.weights, "put EstimateReward of its model before it")}

    @property
    def consumes(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def schema(self, given: Schema) -> Schema:
        self._check(given.columns)
        if "windows" in given.words:
            raise SchemaError(
                "rewards are summed over several steps already, but the model's are of single steps: combine them "
                "before NStep, or learn from single steps (n_step=1)"
            )
        columns = dict(given.columns)
        if "reward" in columns:
            columns["extrinsic_reward"] = columns["reward"]
        return attrs.evolve(given, columns=columns, words=given.words | {"combined_rewards"})

    def _check(self, columns: Container[str]) -> None:
        for name, maker in _MADE_OF_REWARDS.items():
            if name in columns:
                raise SchemaError(
                    f"the column {name!r} is computed from rewards already: put CombineRewards before {maker}"
                )
        if "extrinsic_reward" in columns:
            raise SchemaError("rewards are combined already: name all columns in one CombineRewards")

    def __call__(self, batch: Batch) -> Batch:
        for name in ("reward", *self.weights):
            if name not in batch:
                raise SchemaError(f"CombineRewards needs the column {name!r}: {did_you_mean(name, batch)}")
        self._check(batch)
        reward = batch["reward"]
        total = self.extrinsic * reward
        for name, weight in self.weights.items():
            total = total + weight * like(reward, batch[name])
        return batch.replace(reward=total, extrinsic_reward=reward)


def _judges(op: Any, attribute: Any, workers: WorkerSet) -> None:
    policy = WorkersContract(workers).policy
    check_alone(policy, type(op).__name__)
    learn = policy.learn_mode if isinstance(policy, Learns) else None
    if not isinstance(learn, KnowsLikelihoods) or learn.recurrent:
        raise PlanError(
            f"EstimateLogp needs the workers of an actor-critic policy that is not recurrent, such as PPO's, got "
            f"{policy or workers!r}"
        )


@operator
class EstimateLogp:
    """Sets `logp` in batches `[T, N, ...]` or `[B, ...]` to the log-probability of actions under the current policy.

    For demonstrations, paired with the agent's recorded `logp`: see `flowrl.models.AIRL`.

    Args:
        workers: Workers of the policy, an actor-critic.

    Raises: SchemaError if there is no observation or action; PlanError on a worker, and for other policies.
    """

    requires = ("obs", "action")
    workers: WorkerSet = attrs.field(validator=_judges)
    context: Context = context()

    def schema(self, given: Schema) -> Schema:
        return given.having("logp") if given.open else given.having(logp=f"float32[{', '.join(map(str, given.axes))}]")

    def __call__(self, batch: Batch) -> Batch:
        _here(self)
        for name in self.requires:
            if name not in batch:
                raise SchemaError(f"EstimateLogp needs the column {name!r}: {did_you_mean(name, batch)}")
        learn: Any = self.workers.policy.learn_mode
        fragment = is_fragment(batch)
        logp = learn.logp_of(batch.flat() if fragment else batch).astype(np.float32)
        return batch.replace(logp=logp.reshape(batch.shape[:2]) if fragment else logp)


def _needed(model: RewardModel) -> dict[str, str]:
    """The words and columns that a model learns from, with the remedy for each."""
    beside = model.learns_from
    named = beside if isinstance(beside, Mapping) else dict.fromkeys(beside, "")
    return {**dict.fromkeys(model.requires, ""), **named}
