"""DQN: double Q-learning, dueling networks, n-step returns, and a replay buffer, uniform or prioritised."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data import PrioritizedReplayBuffer, RateLimiter, ReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    GatherStatistics,
    NormalizeRewards,
    NStep,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
    UpdateStatistics,
    UpdateTargetNetwork,
)
from flowrl.policies import DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 within 50 000 env steps."""

    # The network
    hidden: tuple[int, ...] = sizes(128, 128)  #: sizes of the hidden layers
    dueling: bool = True  #: Q = V + A - mean A
    double: bool = True  #: the online network chooses, the target network judges
    noisy: bool = False  #: noise in the weights, of learned amount, explores too; epsilon 0 leaves it to that

    # Learning
    gamma: float = fraction(0.99)  #: discount per step
    n_step: int = positive(3)  #: steps of a return before it bootstraps
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    grad_clip: float | None = positive(10.0)  #: largest norm of the gradient
    batch_size: int = positive(128)  #: rows of an update
    target_every: int = positive(100)  #: updates between copies to the target network
    tau: float = fraction(1.0)  #: how far the target network moves then; 1 copies

    # Experience
    fragment_steps: int = positive(4)  #: steps of each environment between two looks at the learner
    buffer_size: int = positive(50_000)  #: rows kept
    learning_starts: int = positive(1_000)  #: rows stored before the first update
    replay_ratio: float = positive(64.0)  #: rows trained on per row collected
    prioritized: bool = False  #: draw rows the more often, the larger their TD error was
    priority_alpha: float = fraction(0.6)  #: how much more often: 0 uniformly, 1 in proportion
    priority_beta: Setting = scheduled(0.4, most=1)  #: how much of that the loss's weights make up for, at first
    priority_beta_end: float = fraction(1.0)  #: and at the end of its schedule
    priority_beta_steps: int = positive(50_000)  #: env steps of the schedule
    epsilon_start: Setting = scheduled(1.0, most=1)  #: exploration, at first
    epsilon_end: float = fraction(0.04)  #: exploration at the end of its schedule
    epsilon_steps: int = positive(10_000)  #: env steps of the schedule
    normalize_obs: bool = False  #: observations to mean 0 and deviation 1, by running statistics
    normalize_rewards: bool = False  #: rewards divided by the running deviation of the discounted return
    report_every: int = positive(500)  #: env steps between results


def policy(
    config: Config, observation_space: Any, action_space: Any, kind: type[DQNPolicy] = DQNPolicy, **others: Any
) -> DQNPolicy:
    """The policy that acts and learns; others of its kind have their own `head` and `algorithm`."""
    return kind(
        observation_space,
        action_space,
        hidden=config.hidden,
        dueling=config.dueling,
        double=config.double,
        noisy=config.noisy,
        gamma=config.gamma,
        learning_rate=schedule(config.learning_rate),
        grad_clip=config.grad_clip,
        epsilon=schedule(config.epsilon_start, config.epsilon_end, config.epsilon_steps),
        normalize_obs=config.normalize_obs,
        normalize_rewards=config.normalize_rewards,
        **config.for_policy,
        **others,
    )


def rows_at_once(config: Any) -> int:
    """The most that are stored at once: what a fragment completes."""
    return int(config.fragment_steps * config.num_envs * config.n_step)


def replay_buffer(config: Any, limiter: RateLimiter | None) -> ReplayBuffer:
    """Where rows are kept, and which of them are drawn."""
    if not config.prioritized:
        return ReplayBuffer(config.buffer_size, gamma=config.gamma, limiter=limiter)
    beta = schedule(config.priority_beta, config.priority_beta_end, config.priority_beta_steps)
    return PrioritizedReplayBuffer(
        config.buffer_size, alpha=config.priority_alpha, beta=beta, gamma=config.gamma, limiter=limiter
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them. SAC and DDPG learn so too."""
    limiter = RateLimiter(
        config.replay_ratio,
        config.learning_starts,
        sample_batch=config.batch_size,
        insert_batch=rows_at_once(config),
    )
    buffer = replay_buffer(config, limiter)

    # (1) Act, and store n-step transitions.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    if config.normalize_obs or config.normalize_rewards:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma)).for_each(UpdateStatistics(workers))
    store = rollouts.for_each(NStep(config.n_step, config.gamma)).for_each(StoreToReplay(buffer))

    # (2) Learn from the buffer; the target network follows.
    replay = Replay(buffer, config.batch_size)
    if config.normalize_rewards:
        replay = replay.for_each(NormalizeRewards(workers))
    train = replay.for_each(TrainOneStep(workers))
    if isinstance(buffer, PrioritizedReplayBuffer):
        train = train.for_each(UpdatePriorities(buffer))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both in turn, each as far as the ratio allows; a result every so many env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class DQN(Trainer):
    """`DQN(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
