"""Independent PPO: several policies in one game, each of which learns from the experience of its own agents."""

from __future__ import annotations

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
from flowrl.operators.options import EarlyStoppingSettings, FrozenSettings, NormalizedRollouts
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
class Config(PPOSettings, FrozenSettings):
    """Two agents that have nothing to do with each other."""

    env: str = "flowrl:two_cartpoles"
    agents: dict[str, str] | str = attrs.Factory(lambda: {"left": "left", "right": "right"})
    fragment_steps: int = 32


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """One branch for each policy: a policy for each agent, one for all, or anything between, as `agents` says."""
    # (1) Act with the newest weights of all policies; each branch gets the whole stream.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    epochs: dict[str, Any] = {"num_sgd_iter": config.num_sgd_iter, "minibatch_size": config.minibatch_size}
    branches, learning = {}, config.learning(workers.parts)
    for name, stream in zip(learning, rollouts.duplicate(len(learning))):
        # (2) Of one policy: estimate advantages for each seat, and learn in several epochs.
        samples = stream.combine(OfPolicy(name)).for_each(GAE(config.gamma, config.lam))
        batches = samples.combine(ConcatBatches(config.train_batch_size))
        branches[name] = batches.for_each(TrainOneStep(workers.of(name), **epochs, target_kl=config.target_kl))

    # (3) All in turn; a result every `report_every` env steps, with the losses of each policy.
    train_op = Concurrently(branches, mode="round_robin", round_robin_weights=[1] * len(branches))
    return StandardMetricsReporting(train_op, workers, config)


class IPPO(Trainer):
    """`IPPO(env="flowrl:two_cartpoles").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
