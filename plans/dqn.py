"""DQN: double Q-learning, dueling networks, n-step returns, and a uniform or prioritized replay buffer."""

from __future__ import annotations

from typing import Any

import attrs
from gymnasium import spaces

from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    NStep,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.options import NormalizedReplay, NStepReplay
from flowrl.policies import BranchingDQNPolicy, DQNPolicy
from flowrl.policies.dqn import EpsilonSettings
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import ActingConfig, Trainer


@attrs.define(kw_only=True)
class Config(DQNPolicy.Settings, EpsilonSettings, NStepReplay, NormalizedReplay, ActingConfig):
    """Defaults that solve CartPole-v1 within 50 000 env steps."""

    hidden: tuple[int, ...] = (128, 128)
    fragment_steps: int = 4
    report_every: int = 500


def policy(config: Config, observation_space: Any, action_space: Any) -> DQNPolicy:
    """The policy for one choice, or for several at once."""
    kind = BranchingDQNPolicy if isinstance(action_space, spaces.MultiDiscrete) else DQNPolicy
    return kind.configured(config, observation_space, action_space)


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them. SAC and DDPG share it."""
    buffer = config.replay_buffer(agents=workers.num_agents())

    # (1) Act, and store n-step transitions.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    store = rollouts.for_each(NStep(config.n_step, config.gamma)).for_each(StoreToReplay(buffer))

    # (2) Learn from the buffer; the target network follows.
    train = Replay(buffer, config.batch_size).for_each(TrainOneStep(workers))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both in turn, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class DQN(Trainer):
    """`DQN(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
