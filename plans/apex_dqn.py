"""Ape-X: many workers that explore differently fill a prioritised replay memory, one learner draws from it."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from flowrl.data import PrioritizedReplayBuffer, RateLimiter, ReplayActors
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
from flowrl.policies import ApexDQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 within 500 000 env steps."""

    # The network
    hidden: tuple[int, ...] = sizes(128, 128)  #: sizes of the hidden layers
    dueling: bool = True  #: Q = V + A - mean A
    double: bool = True  #: the online network chooses, the target network judges
    noisy: bool = False  #: noise in the weights, of learned amount, explores beside epsilon

    # Experience
    fragment_steps: int = positive(4)  #: steps of each environment of a worker in a request
    in_flight: int = positive(2)  #: requests to each worker at a time
    epsilon: float = fraction(0.4)  #: exploration of the first worker
    epsilon_alpha: float = positive(7.0)  #: of the last one: epsilon to the power of 1 + epsilon_alpha
    gamma: float = fraction(0.99)  #: discount per step
    n_step: int = positive(3)  #: steps of a return before it bootstraps

    # Replay
    replay_shards: int = positive(2)  #: memories; processes of their own where there are workers
    buffer_size: int = positive(50_000)  #: rows kept in all of them
    learning_starts: int = positive(1_000)  #: rows stored before the first update
    draws_in_flight: int = positive(2)  #: batches that are asked for at a time
    replay_ratio: float = positive(8.0)  #: rows trained on per row collected
    priority_alpha: float = fraction(0.6)  #: 0 draws uniformly, 1 in proportion to TD errors
    priority_beta: Setting = scheduled(0.4, most=1)  #: how much of that the weights of the loss make up for

    # Learning
    batch_size: int = positive(128)  #: rows of an update
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    grad_clip: float | None = positive(10.0)  #: largest norm of the gradient
    target_every: int = positive(100)  #: updates between copies to the target network
    tau: float = fraction(1.0)  #: how far the target network moves then; 1 copies

    report_every: int = positive(1_000)  #: env steps between results


def policy(config: Config, observation_space: Any, action_space: Any) -> ApexDQNPolicy:
    """The policy that acts and learns."""
    return ApexDQNPolicy(
        observation_space,
        action_space,
        workers=config.grouping[0],
        epsilon=config.epsilon,
        epsilon_alpha=config.epsilon_alpha,
        hidden=config.hidden,
        dueling=config.dueling,
        double=config.double,
        noisy=config.noisy,
        gamma=config.gamma,
        learning_rate=schedule(config.learning_rate),
        grad_clip=config.grad_clip,
        **config.for_policy,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches, which meet in the replay memory alone."""
    # The memory: shards, and a rate limiter that keeps `replay_ratio` between storing and learning.
    rows, beta = -(-config.buffer_size // config.replay_shards), schedule(config.priority_beta)
    shard = partial(PrioritizedReplayBuffer, rows, alpha=config.priority_alpha, beta=beta, gamma=config.gamma)
    drawn, added = config.batch_size, config.fragment_steps * config.grouping[1] * config.n_step  # at once, at most
    limiter = RateLimiter(config.replay_ratio, config.learning_starts, sample_batch=drawn, insert_batch=added)
    remote = config.num_workers > 0
    memory = ReplayActors(shard, config.replay_shards, remote=remote, limiter=limiter, address=config.address)

    # (1) Workers act, and make n-step transitions, which go into the memory.
    rollouts = ParallelRollouts(workers, mode="raw", steps=config.fragment_steps)
    transitions = rollouts.for_each(NStep(config.n_step, config.gamma)).gather_async(config.in_flight)
    store = transitions.for_each(StoreToReplay(memory))

    # (2) The learner draws by priority, and tells the memory how much there was to learn; the target network follows.
    replay = Replay(memory, config.batch_size, config.draws_in_flight)
    train = replay.for_each(TrainOneStep(workers)).for_each(UpdatePriorities(memory))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both at once, each as far as the ratio allows; a result every so many env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class ApexDQN(Trainer):
    """`ApexDQN(env="CartPole-v1", num_workers=2).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
