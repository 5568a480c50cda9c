"""Independent PPO: several policies in one game, each of which learns from the experience of its own agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    GAE,
    ConcatBatches,
    Concurrently,
    OfPolicy,
    ParallelRollouts,
    StandardMetricsReporting,
    TrainOneStep,
)
from flowrl.operators.options import EarlyStoppingSettings, FrozenSettings, KLPenalty, NormalizedRollouts
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = PPOPolicy.configured


@attrs.define(kw_only=True)
class PPOSettings(PPOPolicy.Settings, NormalizedRollouts, EarlyStoppingSettings, ActingConfig):
    """Settings of one of several that learn by PPO, with PPO's defaults."""

    gamma: float = 0.98
    lam: float = 0.8
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0
    clip_end: float | None = 0.0


@attrs.define(kw_only=True)
class Config(PPOSettings, KLPenalty, FrozenSettings):
    """Two agents that have nothing to do with each other."""

    env: str = "flowrl:two_cartpoles"
    agents: dict[str, str] | str = attrs.Factory(lambda: {"left": "left", "right": "right"})
    fragment_steps: int = 32


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """A policy for each agent, one for all, or anything between, as `agents` says."""
    return plan_of(workers, config, dict.fromkeys(config.learning(workers.parts), config))


def plan_of(workers: WorkerSet, config: ActingConfig, parts: Mapping[str, Any]) -> Plan:
    """One branch for each policy, which learns by PPO with the settings that `parts` has of it."""
    # (1) Act with the newest weights of all policies. Each branch gets the whole stream, one fragment at a time: a
    # policy with few rows must not draw fragments ahead until it has a batch, for the others would learn from old ones.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    branches = {}
    for (name, of), stream in zip(parts.items(), rollouts.duplicate(len(parts), max_lag=1)):
        # (2) Of one policy: estimate advantages for each seat, and learn in several epochs.
        samples = stream.combine(OfPolicy(name)).for_each(GAE(of.gamma, of.lam))
        epochs: dict[str, Any] = {"num_sgd_iter": of.num_sgd_iter, "minibatch_size": of.minibatch_size}
        batches = samples.combine(ConcatBatches(of.train_batch_size))
        branches[name] = batches.for_each(TrainOneStep(workers.of(name), **epochs, target_kl=of.target_kl))

    # (3) All in turn; a result every `report_every` env steps, with the losses of each policy.
    train_op = Concurrently(branches, mode="round_robin", round_robin_weights=[1] * len(branches))
    return StandardMetricsReporting(train_op, workers, config)


class IPPO(Trainer):
    """`IPPO(env="flowrl:two_cartpoles").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
