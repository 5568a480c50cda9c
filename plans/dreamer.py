"""Dreamer: a world model learned from replayed sequences, and an actor and a critic that learn in what it imagines."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    ImagineAhead,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    TrainWorldModel,
    UpdateTargetNetwork,
)
from flowrl.operators.options import NormalizedObs, SequenceBufferSettings, TargetNetworkSettings
from flowrl.policies import DreamerPolicy
from flowrl.rollout import WorkerSet
from flowrl.settings import positive
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = DreamerPolicy.configured


@attrs.define(kw_only=True)
class Config(DreamerPolicy.Settings, SequenceBufferSettings, TargetNetworkSettings, NormalizedObs, ActingConfig):
    """Defaults for observations of a few numbers. Rows are steps."""

    normalize_obs: bool = True
    envs_per_worker: int = 8
    fragment_steps: int = 4
    learning_starts: int = 500
    replay_ratio: float = 32.0
    target_every: int = 1
    tau: float = 0.05
    horizon: int = positive(15, "steps imagined from each latent state", most=10_000)


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them."""
    added = config.fragment_steps * config.num_envs * workers.num_agents()  # steps at once
    buffer = config.sequences(config.limiter(config.batch_size * config.sequence_length, added))

    # (1) Act in the latent states of the world model, and store what happens.
    act = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps).for_each(StoreToReplay(buffer))

    # (2) Train the world model on sequences of what happened; from each latent state on the way, imagine ahead.
    latents = Replay(buffer, config.batch_size).for_each(TrainWorldModel(workers))
    imagined = latents.for_each(ImagineAhead(workers, config.horizon))

    # (3) Actor and critic learn from what was imagined alone; the target critic follows.
    dream = imagined.for_each(TrainOneStep(workers))
    dream = dream.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (4) Both in turn, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"act": act, "dream": dream}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class Dreamer(Trainer):
    """`Dreamer(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
