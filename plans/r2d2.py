"""R2D2: Q-learning with a memory, on sequences drawn by priority that begin with the state the actor had."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data import PrioritizedSequenceReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.operators import (
    Concurrently,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
    UpdateTargetNetwork,
)
from flowrl.operators.options import FromReplay, NormalizedReplay
from flowrl.policies import R2D2Policy
from flowrl.policies.dqn import EpsilonGreedy
from flowrl.policies.r2d2 import SequenceSettings
from flowrl.policies.recurrent import Cell, MemorySettings
from flowrl.rollout import WorkerSet
from flowrl.settings import fraction, not_negative, positive
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = R2D2Policy.configured


@attrs.define(kw_only=True)
class Config(SequenceSettings, MemorySettings, EpsilonGreedy, FromReplay, NormalizedReplay, ActingConfig):
    """Defaults that solve CartPole-v1 without velocities within 200 000 env steps. Rows are steps."""

    recurrent: Cell = "lstm"
    hidden: tuple[int, ...] = (64,)
    sequence_length: int = positive(16, "steps of a sequence that count")
    burn_in: int = not_negative(8, "steps before them that warm up the memory")
    overlap: int = not_negative(8, "steps that count in two sequences")
    fragment_steps: int = 8
    batch_size: int = positive(32, "sequences of an update")
    buffer_size: int = 100_000
    replay_ratio: float = 32.0
    priority_alpha: float = fraction(0.9, "0 draws uniformly, 1 in proportion to priorities")
    priority_beta: float = fraction(0.6, "how much of that the weights of the loss make up for")
    priority_eta: float = fraction(0.9, "a priority is so much of the largest TD error, and of the mean the rest")
    epsilon_steps: int = 20_000

    @property
    def steps(self) -> int:
        """Of a sequence, with those that warm up the memory."""
        return self.burn_in + self.sequence_length

    def __attrs_post_init__(self) -> None:
        if (of_each := self.buffer_size // self.num_envs) <= self.steps:
            raise ConfigError(
                f"buffer_size={self.buffer_size} is {of_each} steps of each of {self.num_envs} environments: it must "
                f"be more than the {self.steps} of a sequence (burn_in + sequence_length)"
            )

    def sequences(self, capacity: int, **limited: Any) -> PrioritizedSequenceReplayBuffer:
        """A buffer of so many steps, of which it draws sequences by priority."""
        return PrioritizedSequenceReplayBuffer(
            capacity,
            length=self.sequence_length,
            burn_in=self.burn_in,
            overlap=self.overlap,
            alpha=self.priority_alpha,
            beta=self.priority_beta,
            eta=self.priority_eta,
            **limited,
        )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them."""
    drawn, added = config.batch_size * config.steps, config.fragment_steps * config.num_envs  # steps at once
    buffer = config.sequences(config.buffer_size, limiter=config.limiter(drawn, added))

    # (1) Act, and store steps with the states that they were acted from.
    store = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps).for_each(StoreToReplay(buffer))

    # (2) Unroll sequences from these states, learn, and tell how much there was to learn; the target network follows.
    replay = Replay(buffer, config.batch_size)
    train = replay.for_each(TrainOneStep(workers)).for_each(UpdatePriorities(buffer))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both in turn, each as far as the ratio allows; a result every so many env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class R2D2(Trainer):
    """`R2D2(env="flowrl.envs.cartpole:without_velocities").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
