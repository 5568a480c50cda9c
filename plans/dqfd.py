"""DQfD: DQN that learns from demonstrations before it acts, and from demonstrations and its own steps after."""

from __future__ import annotations

import attrs

from flowrl.data import MixedReplay, ReplayBuffer
from flowrl.data.columns import TRANSITION
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    Demonstrations,
    FillColumn,
    KeepOneStep,
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
from flowrl.operators.options import DemonstrationShareSettings
from flowrl.plans import dqn
from flowrl.policies import DQfDPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import not_negative
from flowrl.trainer.trainer import Trainer

policy = DQfDPolicy.configured


@attrs.define(kw_only=True)
class Config(DQfDPolicy.Settings, DemonstrationShareSettings, dqn.Config):
    """The settings of DQN and of demonstrations; defaults for CartPole-v1 from 10 episodes."""

    pretrain_updates: int = not_negative(3_000, "updates on demonstrations alone, before the first env step")
    margin_weight: float = 30.0
    prioritized: bool = True  # in both buffers
    epsilon_start: NumberOrSchedule = 0.04  # it learns before it acts


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Three phases: store demonstrations, learn from them alone, then learn from them and fresh rows as DQN does."""
    data, share = demonstrations_in(config.demonstrations), 1 - config.demonstration_fraction
    fresh, shown = config.replay_buffer(share, workers.num_agents()), config.demonstration_buffer(data.rows)
    mixture = MixedReplay(fresh=(fresh, share), demonstrations=(shown, config.demonstration_fraction))

    def stored(steps: Plan, buffer: ReplayBuffer, *, demonstration: bool) -> Plan:
        """Rows are marked as demonstrated or not, and hold a one-step and an n-step return."""
        steps = steps.for_each(FillColumn("demonstration", demonstration)).for_each(KeepOneStep(config.gamma))
        return steps.for_each(NStep(config.n_step, config.gamma)).for_each(StoreToReplay(buffer))

    def learned(rows: Plan) -> Plan:
        """One update per batch; the target network follows."""
        train = rows.for_each(TrainOneStep(workers))
        return train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (1) Store the demonstrations, and learn from them alone.
    phases = {"demonstrate": stored(Demonstrations(data, workers.policy, needs=TRANSITION), shown, demonstration=True)}
    if config.pretrain_updates:
        phases["pretrain"] = learned(Replay(shown, config.batch_size).take(config.pretrain_updates))

    # (2) Act, and store fresh rows.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    store = stored(rollouts, fresh, demonstration=False)

    # (3) Learn from both; demonstrations are never overwritten.
    train = learned(Replay(mixture, config.batch_size))

    # (4) One phase after another; the last one acts and learns in turn; a result every `report_every` env steps.
    phases["online"] = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(Sequentially(phases), workers, config)


class DQfD(Trainer):
    """`DQfD(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
