"""R2D3: R2D2 with demonstrations: sequences of somebody else beside one's own, by a fixed ratio."""

from __future__ import annotations

import attrs

from flowrl.config import proper_fraction
from flowrl.data import MixedReplay
from flowrl.operators import (
    Concurrently,
    Demonstrations,
    GatherStatistics,
    InitialState,
    NormalizeRewards,
    ParallelRollouts,
    Replay,
    Sequentially,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
    UpdateStatistics,
    UpdateTargetNetwork,
)
from flowrl.operators.datasets import demonstrations_in
from flowrl.plan import Plan
from flowrl.plans import r2d2
from flowrl.rollout import WorkerSet
from flowrl.trainer import Trainer

#: Columns that demonstrations must have.
NEEDED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


@attrs.define(kw_only=True)
class Config(r2d2.Config):
    """The settings of R2D2, and how many of the sequences are demonstrations."""

    demonstrations: str | None = None  #: the folder of recorded episodes, or "minari:ID"
    demonstration_fraction: float = proper_fraction(0.25)  #: of the sequences of an update


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Demonstrations are stored first; then R2D2's two branches take turns."""
    share = 1 - config.demonstration_fraction
    data = demonstrations_in(config.demonstrations)
    recorded = Demonstrations(data, workers.policy, needs=NEEDED)
    fresh = r2d2.replay_buffer(attrs.evolve(config, replay_ratio=config.replay_ratio * share))
    shown = r2d2.sequences(config, max(data.rows, config.steps + 1), None)
    mixture = MixedReplay(fresh=(fresh, share), demonstrations=(shown, config.demonstration_fraction))

    # (1) Whoever demonstrated had another memory, or none: sequences begin with the state of an episode's first step.
    demonstrate = recorded.for_each(InitialState(workers)).for_each(StoreToReplay(shown))

    # (2) Act, and store steps with the states that they were acted from.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    if config.normalize_obs or config.normalize_rewards:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma)).for_each(UpdateStatistics(workers))
    store = rollouts.for_each(StoreToReplay(fresh))

    # (3) Unroll sequences of both, learn, and tell each buffer how much there was to learn; the target network follows.
    replay = Replay(mixture, config.batch_size)
    if config.normalize_rewards:
        replay = replay.for_each(NormalizeRewards(workers))
    train = replay.for_each(TrainOneStep(workers)).for_each(UpdatePriorities(mixture))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (4) Nothing is learned before the demonstrations are there; a result every so many env steps.
    online = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(Sequentially({"demonstrate": demonstrate, "online": online}), workers, config)


class R2D3(Trainer):
    """`R2D3(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`; its policy is R2D2's."""

    Config = Config
    policy = staticmethod(r2d2.policy)
    execution_plan = staticmethod(execution_plan)
