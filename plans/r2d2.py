"""R2D2: Q-learning with a memory, on sequences drawn by priority that begin with the state the actor had."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from flowrl.data import PrioritizedSequenceReplayBuffer, RateLimiter
from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.operators import (
    Concurrently,
    GatherStatistics,
    NormalizeRewards,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
    UpdateStatistics,
    UpdateTargetNetwork,
)
from flowrl.policies import R2D2Policy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting, schedule
from flowrl.trainer.config import Configuration, fraction, not_negative, positive, scheduled, sizes
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(Configuration):
    """Defaults that solve CartPole-v1 without velocities within 200 000 env steps."""

    # The network
    recurrent: Literal["lstm", "gru"] = "lstm"  #: the memory before the hidden layers
    memory_size: int = positive(64)  #: its units
    hidden: tuple[int, ...] = sizes(64)  #: sizes of the hidden layers
    dueling: bool = True  #: Q = V + A - mean A
    double: bool = True  #: the online network chooses, the target network judges

    # Sequences
    sequence_length: int = positive(16)  #: steps of a sequence that count
    burn_in: int = not_negative(8)  #: steps before them that warm up the memory
    overlap: int = not_negative(8)  #: steps that count in two sequences
    stored_state: bool = True  #: sequences begin with the state that the actor had; else with that of an episode

    # Learning
    gamma: float = fraction(0.99)  #: discount per step
    n_step: int = positive(5)  #: steps of a return before it bootstraps
    rescale: bool = True  #: learn values on the scale of their square roots
    learning_rate: Setting = scheduled(1e-3)  #: of Adam
    grad_clip: float | None = positive(10.0)  #: largest norm of the gradient
    batch_size: int = positive(32)  #: sequences of an update
    target_every: int = positive(100)  #: updates between copies to the target network
    tau: float = fraction(1.0)  #: how far the target network moves then; 1 copies

    # Experience
    fragment_steps: int = positive(8)  #: steps of each environment between two looks at the learner
    buffer_size: int = positive(100_000)  #: steps kept
    learning_starts: int = positive(1_000)  #: steps stored before the first update
    replay_ratio: float = positive(32.0)  #: steps trained on per step collected
    priority_alpha: float = fraction(0.9)  #: 0 draws uniformly, 1 in proportion to priorities
    priority_beta: float = fraction(0.6)  #: how much of that the weights of the loss make up for
    priority_eta: float = fraction(0.9)  #: a priority is so much of the largest TD error, and of the mean the rest
    epsilon_start: Setting = scheduled(1.0, most=1)  #: exploration, at first
    epsilon_end: float = fraction(0.04)  #: exploration at the end of its schedule
    epsilon_steps: int = positive(20_000)  #: env steps of the schedule
    normalize_obs: bool = False  #: observations to mean 0 and deviation 1, by running statistics
    normalize_rewards: bool = False  #: rewards divided by the running deviation of the discounted return
    report_every: int = positive(1_000)  #: env steps between results

    @property
    def steps(self) -> int:
        """Of a sequence, with those that warm up the memory."""
        return self.burn_in + self.sequence_length

    def __attrs_post_init__(self) -> None:
        if (of_each := self.buffer_size // self.num_envs) <= self.steps:
            raise ConfigError(
                f"buffer_size={self.buffer_size} is {of_each} steps of each of {self.num_envs} environments: it must "
                f"be more than the {self.steps} of a sequence (burn_in + sequence_length)"
            )


def policy(config: Config, observation_space: Any, action_space: Any) -> R2D2Policy:
    """The policy that acts and learns."""
    return R2D2Policy(
        observation_space,
        action_space,
        cell=config.recurrent,
        units=config.memory_size,
        hidden=config.hidden,
        dueling=config.dueling,
        double=config.double,
        gamma=config.gamma,
        n_step=config.n_step,
        rescale=config.rescale,
        stored_state=config.stored_state,
        learning_rate=schedule(config.learning_rate),
        grad_clip=config.grad_clip,
        epsilon=schedule(config.epsilon_start, config.epsilon_end, config.epsilon_steps),
        normalize_obs=config.normalize_obs,
        normalize_rewards=config.normalize_rewards,
        **config.for_policy,
    )


def replay_buffer(config: Config) -> PrioritizedSequenceReplayBuffer:
    """Where steps are kept, and sequences drawn; the rate limiter keeps `replay_ratio` between both."""
    drawn, added = config.batch_size * config.steps, config.fragment_steps * config.num_envs  # steps at once
    limiter = RateLimiter(config.replay_ratio, config.learning_starts, sample_batch=drawn, insert_batch=added)
    return sequences(config, config.buffer_size, limiter)


def sequences(config: Config, capacity: int, limiter: RateLimiter | None) -> PrioritizedSequenceReplayBuffer:
    """A buffer of so many steps, of which it draws sequences by priority."""
    return PrioritizedSequenceReplayBuffer(
        capacity,
        length=config.sequence_length,
        burn_in=config.burn_in,
        overlap=config.overlap,
        alpha=config.priority_alpha,
        beta=config.priority_beta,
        eta=config.priority_eta,
        limiter=limiter,
    )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them."""
    buffer = replay_buffer(config)

    # (1) Act, and store steps with the states that they were acted from.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    if config.normalize_obs or config.normalize_rewards:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma)).for_each(UpdateStatistics(workers))
    store = rollouts.for_each(StoreToReplay(buffer))

    # (2) Unroll sequences from these states, learn, and tell how much there was to learn; the target network follows.
    replay = Replay(buffer, config.batch_size)
    if config.normalize_rewards:
        replay = replay.for_each(NormalizeRewards(workers))
    train = replay.for_each(TrainOneStep(workers)).for_each(UpdatePriorities(buffer))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both in turn, each as far as the ratio allows; a result every so many env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class R2D2(Trainer):
    """`R2D2(env="flowrl.envs.cartpole:without_velocities").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
