"""R2D2: recurrent Q-learning on prioritized sequences that start from the actor's recurrent state."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data import PrioritizedSequenceReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.networks.recurrent import Cell, MemorySettings
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
from flowrl.operators.options import NormalizedReplay, ReplaySettings, SequenceBufferSettings
from flowrl.policies import R2D2Policy
from flowrl.policies.dqn import EpsilonSettings
from flowrl.policies.r2d2 import SequenceSettings
from flowrl.rollout import WorkerSet
from flowrl.settings import fraction, not_negative
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = R2D2Policy.configured


@attrs.define(kw_only=True)
class Config(
    SequenceSettings,
    MemorySettings,
    EpsilonSettings,
    SequenceBufferSettings,
    ReplaySettings,
    NormalizedReplay,
    ActingConfig,
):
    """Defaults that solve CartPole-v1 without velocities within 200 000 env steps. Rows are steps."""

    recurrent: Cell = "lstm"
    hidden: tuple[int, ...] = (64,)
    burn_in: int = not_negative(8, "steps before a sequence that only warm up the recurrent state")
    fragment_steps: int = 8
    batch_size: int = 32
    buffer_size: int = 100_000
    replay_ratio: float = 32.0
    priority_alpha: float = fraction(0.9, "priority exponent alpha: 0 samples uniformly, 1 in proportion")
    priority_beta: float = fraction(0.6, "importance-sampling exponent beta; 1 corrects fully")
    priority_eta: float = fraction(0.9, "priority = eta * largest TD error + (1 - eta) * mean TD error")
    epsilon_steps: int = 20_000

    @property
    def steps(self) -> int:
        """Steps of a sequence, burn-in included."""
        return self.burn_in + self.sequence_length

    def prioritized(self, capacity: int, **limited: Any) -> PrioritizedSequenceReplayBuffer:
        """A buffer of `capacity` steps that samples sequences by priority."""
        return PrioritizedSequenceReplayBuffer(
            capacity,
            length=self.sequence_length,
            burn_in=self.burn_in,
            overlap=self.overlap,
            alpha=self.priority_alpha,
            beta=self.priority_beta,
            eta=self.priority_eta,
            share_frames=self.share_frames,
            **limited,
        )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them."""
    added = config.fragment_steps * config.num_envs * workers.num_agents()  # steps at once
    buffer = config.prioritized(config.buffer_size, limiter=config.limiter(config.batch_size * config.steps, added))

    # (1) Act, and store steps with the recurrent states before them.
    store = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps).for_each(StoreToReplay(buffer))

    # (2) Unroll sequences from these states, learn, and update priorities; the target network follows.
    replay = Replay(buffer, config.batch_size)
    train = replay.for_each(TrainOneStep(workers)).for_each(UpdatePriorities(buffer))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both in turn, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class R2D2(Trainer):
    """`R2D2(env="flowrl.envs.cartpole:without_velocities").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
