"""Ape-X: many workers that explore differently fill a prioritized replay memory; one learner samples it."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from flowrl.data import PrioritizedReplayBuffer, ReplayActors
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    NStep,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
    UpdateTargetNetwork,
)
from flowrl.operators.options import InFlightSettings, PrioritySettings, ReplaySettings
from flowrl.policies import ApexDQNPolicy, DQNPolicy
from flowrl.policies.apex_dqn import WorkerEpsilonSettings
from flowrl.rollout import WorkerSet
from flowrl.schedules import schedule
from flowrl.settings import positive
from flowrl.trainer.trainer import ActingConfig, Trainer


@attrs.define(kw_only=True)
class Config(
    DQNPolicy.Settings, WorkerEpsilonSettings, ReplaySettings, PrioritySettings, InFlightSettings, ActingConfig
):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    hidden: tuple[int, ...] = (128, 128)
    fragment_steps: int = 4
    n_step: int = positive(3, "rewards summed in a return before it bootstraps", most="buffer_size")
    replay_ratio: float = 8.0
    replay_shards: int = positive(2, "shards of the replay memory; Ray processes if there are workers", most=10_000)
    draws_in_flight: int = positive(2, "batches requested from the memory ahead of learning", most=10_000)

    def replay_memory(self, agents: int = 1) -> ReplayActors:
        """Shards, and a rate limiter that keeps `replay_ratio` between storing and learning of so many agents."""
        rows, beta = -(-self.buffer_size // self.replay_shards), schedule(self.priority_beta)
        how: dict[str, Any] = {"beta": beta, "gamma": self.gamma, "share_frames": self.share_frames}
        shard = partial(PrioritizedReplayBuffer, rows, alpha=self.priority_alpha, **how)
        added = self.fragment_steps * self.grouping[1] * self.n_step * agents
        limiter = self.limiter(self.batch_size, added)
        remote = self.num_workers > 0
        return ReplayActors(shard, self.replay_shards, remote=remote, limiter=limiter, **self.for_actors)


def policy(config: Config, observation_space: Any, action_space: Any) -> ApexDQNPolicy:
    """The policy that acts and learns."""
    return ApexDQNPolicy.configured(config, observation_space, action_space, workers=config.grouping[0])


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches, which meet only in the replay memory."""
    memory = config.replay_memory(workers.num_agents())

    # (1) Workers act, and build n-step transitions, which go into the memory.
    rollouts = ParallelRollouts(workers, mode="raw", steps=config.fragment_steps)
    transitions = rollouts.for_each(NStep(config.n_step, config.gamma)).gather_async(config.in_flight)
    store = transitions.for_each(StoreToReplay(memory))

    # (2) The learner samples by priority and updates the priorities; the target network follows.
    replay = Replay(memory, config.batch_size, config.draws_in_flight)
    train = replay.for_each(TrainOneStep(workers)).for_each(UpdatePriorities(memory))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both at once, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class ApexDQN(Trainer):
    """`ApexDQN(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
