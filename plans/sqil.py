"""SQIL: soft Q-learning on demonstrations with reward 1 and fresh experience with reward 0, half of each."""

from __future__ import annotations

import attrs

from flowrl.data import MixedReplay, ReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    Demonstrations,
    FillColumn,
    NStep,
    ParallelRollouts,
    Replay,
    Sequentially,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.datasets import demonstrations_in
from flowrl.operators.options import DemonstrationShareSettings, NormalizedObs, ReplaySettings
from flowrl.policies import SoftQPolicy
from flowrl.policies.soft_q import SoftQSettings
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import ActingConfig, Trainer

#: Columns that demonstrations must have; their rewards are not read.
NEEDED = ("obs", "action", "next_obs", "terminated", "truncated")

policy = SoftQPolicy.configured


@attrs.define(kw_only=True)
class Config(SoftQSettings, DemonstrationShareSettings, ReplaySettings, NormalizedObs, ActingConfig):
    """Defaults that solve CartPole-v1 from 10 episodes within 50 000 env steps."""

    demonstration_fraction: float = 0.5
    hidden: tuple[int, ...] = (128, 128)
    fragment_steps: int = 4
    report_every: int = 500


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Store demonstrations first; then two branches take turns, in the ratio of the fresh buffer's rate limiter."""
    data, share = demonstrations_in(config.demonstrations), 1 - config.demonstration_fraction
    added = config.fragment_steps * config.num_envs * workers.num_agents()
    limiter = config.limiter(config.batch_size, added, share)
    shown = ReplayBuffer(data.rows, share_frames=config.share_frames)
    fresh = ReplayBuffer(config.buffer_size, share_frames=config.share_frames, limiter=limiter)
    mixture = MixedReplay(fresh=(fresh, share), demonstrations=(shown, config.demonstration_fraction))

    def stored(steps: Plan, buffer: ReplayBuffer, demonstration: bool, reward: float) -> Plan:
        """Store single steps, marked as demonstrated or not, with this reward instead of the environment's."""
        steps = steps.for_each(FillColumn("demonstration", demonstration)).for_each(FillColumn("reward", reward))
        return steps.for_each(NStep(1, config.gamma)).for_each(StoreToReplay(buffer))

    # (1) Demonstrated steps have reward 1, fresh ones 0; the environment's rewards are not used.
    demonstrate = stored(Demonstrations(data, workers.policy, needs=NEEDED), shown, True, 1.0)
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    store = stored(rollouts, fresh, False, 0.0)

    # (2) Learn from both; the target network follows.
    train = Replay(mixture, config.batch_size).for_each(TrainOneStep(workers))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Learning waits until all demonstrations are stored; a result every `report_every` env steps.
    online = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(Sequentially({"demonstrate": demonstrate, "online": online}), workers, config)


class SQIL(Trainer):
    """`SQIL(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
