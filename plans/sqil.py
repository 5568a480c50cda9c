"""SQIL: soft Q-learning from demonstrations at reward 1 and fresh experience at reward 0, half of each."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data import MixedReplay, RateLimiter, ReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    Demonstrations,
    FillColumn,
    GatherStatistics,
    NStep,
    ParallelRollouts,
    Replay,
    Sequentially,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateStatistics,
    UpdateTargetNetwork,
)
from flowrl.operators.datasets import demonstrations_in
from flowrl.policies import SoftQPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, positive, proper_fraction, scheduled, sizes
from flowrl.trainer.trainer import Trainer

#: Columns that demonstrations must have; their rewards are not looked at.
NEEDED = ("obs", "action", "next_obs", "terminated", "truncated")


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 from 10 episodes within 50 000 env steps."""

    # The demonstrations
    demonstrations: str | None = None  #: the folder of recorded episodes, or "minari:ID"
    demonstration_fraction: float = proper_fraction(0.5)  #: of the rows of an update

    # The network
    hidden: tuple[int, ...] = sizes(128, 128)  #: sizes of the hidden layers
    dueling: bool = True  #: Q = V + A - mean A

    # Learning
    gamma: float = fraction(0.99)  #: discount per step
    temperature: float = positive(1.0)  #: what a unit of entropy is worth; a demonstrated step is worth 1
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    grad_clip: float | None = positive(10.0)  #: largest norm of the gradient
    batch_size: int = positive(128)  #: rows of an update
    target_every: int = positive(100)  #: updates between copies to the target network
    tau: float = fraction(1.0)  #: how far the target network moves then; 1 copies

    # Experience
    fragment_steps: int = positive(4)  #: steps of each environment between two looks at the learner
    buffer_size: int = positive(50_000)  #: rows of fresh experience kept
    learning_starts: int = positive(1_000)  #: rows stored before the first update
    replay_ratio: float = positive(64.0)  #: rows trained on per row collected
    normalize_obs: bool = False  #: observations to mean 0 and deviation 1, by running statistics
    report_every: int = positive(500)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> SoftQPolicy:
    """The policy that acts and learns."""
    return SoftQPolicy(observation_space, action_space, temperature=config.temperature, **for_soft_q(config))


def for_soft_q(config: Config) -> dict[str, Any]:
    """The settings that soft Q-learning has, whatever its loss."""
    return {
        "hidden": config.hidden,
        "dueling": config.dueling,
        "gamma": config.gamma,
        "learning_rate": schedule(config.learning_rate),
        "grad_clip": config.grad_clip,
        "normalize_obs": config.normalize_obs,
        **config.for_policy,
    }


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Demonstrations are stored first; then two branches take turns, kept in their ratio by the fresh rows' limiter."""
    share = 1 - config.demonstration_fraction
    limiter = RateLimiter(
        config.replay_ratio * share,
        config.learning_starts,
        sample_batch=config.batch_size,
        insert_batch=config.fragment_steps * config.num_envs,
    )
    data = demonstrations_in(config.demonstrations)
    recorded = Demonstrations(data, workers.policy, needs=NEEDED)
    shown, fresh = ReplayBuffer(data.rows), ReplayBuffer(config.buffer_size, limiter=limiter)
    mixture = MixedReplay(fresh=(fresh, share), demonstrations=(shown, config.demonstration_fraction))

    # (1) Whoever does what was demonstrated gets 1 ...
    recorded = recorded.for_each(FillColumn("demonstration", True)).for_each(FillColumn("reward", 1.0))
    demonstrate = recorded.for_each(NStep(1, config.gamma)).for_each(StoreToReplay(shown))

    # (2) ... and 0 for anything else, whatever the environment says.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    if config.normalize_obs:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma)).for_each(UpdateStatistics(workers))
    rollouts = rollouts.for_each(FillColumn("demonstration", False)).for_each(FillColumn("reward", 0.0))
    store = rollouts.for_each(NStep(1, config.gamma)).for_each(StoreToReplay(fresh))

    # (3) Learn from both; the target network follows.
    train = Replay(mixture, config.batch_size).for_each(TrainOneStep(workers))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (4) Nothing is learned before the demonstrations are there; a result every so many env steps.
    online = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(Sequentially({"demonstrate": demonstrate, "online": online}), workers, config)


class SQIL(Trainer):
    """`SQIL(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
