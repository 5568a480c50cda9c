"""MBPO: SAC that learns from short rollouts of a learned model, and so from few env steps."""

from __future__ import annotations

import math
from typing import Any

import attrs

from flowrl.data import MixedReplay, RateLimiter, ReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.models import Dynamics
from flowrl.operators import (
    Concurrently,
    FitModel,
    ImaginedRollouts,
    ParallelRollouts,
    Replay,
    Snapshots,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.options import DynamicsSettings, ReplaySettings
from flowrl.plans import sac
from flowrl.policies import SACPolicy
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = sac.policy


@attrs.define(kw_only=True)
class Config(DynamicsSettings, SACPolicy.Settings, ReplaySettings, ActingConfig):
    """Defaults for environments as small as Pendulum-v1: ten updates per env step."""

    env: str = "Pendulum-v1"
    envs_per_worker: int = 1
    fragment_steps: int = 1
    hidden: tuple[int, ...] = (128, 128)
    random_steps: int = 200
    learning_starts: int = 200
    batch_size: int = 256
    target_every: int = 1
    tau: float = 0.005
    buffer_size: int = 100_000
    replay_ratio: float = 2_560.0

    def dynamics(self, workers: WorkerSet) -> Dynamics:
        """The model of the environment."""
        return Dynamics(
            workers.policy.observation_space,
            workers.policy.action_space,
            members=self.model_members,
            elites=self.model_elites,
            hidden=self.model_hidden,
            learning_rate=self.model_learning_rate,
            seed=self.seed,
            device=self.device,
        )

    def buffers(self) -> tuple[ReplayBuffer, ReplayBuffer]:
        """The buffers of real and of imagined rows, whose limiters keep both ratios to the updates."""
        share, added = self.real_fraction, self.fragment_steps * self.num_envs
        real = self.limiter(math.ceil(share * self.batch_size), added, share)

        item = self.imagined_branches * self.horizon
        if self.imagined_size < item:
            raise ConfigError(
                f"imagined_size is {self.imagined_size}, but imagined_branches * horizon are {item} rows at once: "
                "make it larger, or imagine fewer"
            )
        drawn = self.replay_ratio * (1 - share) / self.imagined_ratio
        imagined = RateLimiter(drawn, item, sample_batch=math.ceil((1 - share) * self.batch_size), insert_batch=item)
        how: dict[str, Any] = {"gamma": self.gamma, "share_frames": self.share_frames}
        return (
            ReplayBuffer(self.buffer_size, **how, limiter=real),
            ReplayBuffer(self.imagined_size, **how, limiter=imagined),
        )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Four branches in turn: act, fit the model, imagine, learn.

    Raises: ConfigError: the environment is a game of several agents, whose moves the model would have to foresee.
    """
    if workers.num_agents() > 1:
        raise ConfigError(
            f"MBPO imagines what one agent does, but {workers.environments} has {workers.num_agents()}: take sac, or "
            "another plan without a model"
        )
    model, (real, imagined) = config.dynamics(workers), config.buffers()

    # (1) Act, and store what happens.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    store = rollouts.for_each(StoreToReplay(real))

    # (2) Every `model_every` env steps, fit the model to everything that happened.
    fit = Snapshots(real, every=config.model_every, first=config.learning_starts).for_each(
        FitModel(model, config.model_holdout, config.model_minibatch_size, config.model_patience, config.model_epochs)
    )

    # (3) Imagine short episodes that begin in real states.
    branches = ImaginedRollouts(workers, model, real, branches=config.imagined_branches, horizon=config.horizon)
    imagine = branches.for_each(StoreToReplay(imagined))

    # (4) Learn from both kinds of rows; the target network follows.
    mixture = MixedReplay(real=(real, config.real_fraction), imagined=(imagined, 1 - config.real_fraction))
    learn = Replay(mixture, config.batch_size).for_each(TrainOneStep(workers))
    learn = learn.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (5) All in turn, each as far as the ratios allow; a result every `report_every` env steps.
    train_op = Concurrently(
        {"store": store, "fit": fit, "imagine": imagine, "learn": learn}, round_robin_weights=[1, "*", "*", "*"]
    )
    return StandardMetricsReporting(train_op, workers, config)


class MBPO(Trainer):
    """`MBPO(env="Pendulum-v1").train(until={"env_steps": 2_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
