"""CrossQ: SAC without target networks, stable by batch normalization."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    NStep,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
)
from flowrl.operators.options import NormalizedReplay, NStepBuffer
from flowrl.policies import CrossQPolicy
from flowrl.policies.q_actor_critic import EnsembleSettings
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = CrossQPolicy.configured


@attrs.define(kw_only=True)
class Config(EnsembleSettings, CrossQPolicy.Settings, NStepBuffer, NormalizedReplay, ActingConfig):
    """Defaults as published, but for what SAC has too: critics that are less wide, and fewer steps before learning."""

    env: str = "Pendulum-v1"
    envs_per_worker: int = 1
    fragment_steps: int = 1
    random_steps: int = 1_000
    n_step: int = 1
    batch_size: int = 256
    buffer_size: int = 1_000_000
    replay_ratio: float = 256.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """The plan of DQN without its target network."""
    buffer = config.replay_buffer(agents=workers.num_agents())

    # (1) Act, and store n-step transitions.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    store = rollouts.for_each(NStep(config.n_step, config.gamma)).for_each(StoreToReplay(buffer))

    # (2) Learn from the buffer.
    train = Replay(buffer, config.batch_size).for_each(TrainOneStep(workers))

    # (3) Both in turn, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class CrossQ(Trainer):
    """`CrossQ(env="Pendulum-v1").train(until={"env_steps": 10_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
