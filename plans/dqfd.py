"""DQfD: DQN that learns from demonstrations before it acts, and from demonstrations beside what it does then."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data import MixedReplay, RateLimiter, ReplayBuffer
from flowrl.data.columns import TRANSITION
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    Demonstrations,
    FillColumn,
    GatherStatistics,
    KeepOneStep,
    NStep,
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
from flowrl.plans import dqn
from flowrl.policies import DQfDPolicy, DQNPolicy
from flowrl.rollout import WorkerSet
from flowrl.schedules import Setting
from flowrl.trainer.config import not_negative, proper_fraction, scheduled
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(dqn.Config):
    """The settings of DQN, and what is learned from demonstrations; defaults for CartPole-v1 from 10 episodes."""

    demonstrations: str | None = None  #: the folder of recorded episodes, or "minari:ID"
    demonstration_fraction: float = proper_fraction(0.25)  #: of the rows of an update
    pretrain_updates: int = not_negative(3_000)  #: updates from demonstrations alone, before the first step
    margin: float = not_negative(0.8)  #: by how much a demonstrated action is better than all others
    margin_weight: float = not_negative(30.0)  #: of the large-margin loss, on demonstrated rows
    n_step_weight: float = not_negative(1.0)  #: of the loss on windows of n steps, beside that on single ones
    l2: float = not_negative(1e-5)  #: of the squared norm of all weights
    prioritized: bool = True  #: draw rows the more often, the larger their TD error was, in both buffers
    epsilon_start: Setting = scheduled(0.04, most=1)  #: exploration, at first: it has learned before it acts


def policy(config: Config, observation_space: Any, action_space: Any) -> DQNPolicy:
    """The policy that acts and learns."""
    weights = {name: getattr(config, name) for name in ("margin", "margin_weight", "n_step_weight", "l2")}
    return dqn.policy(config, observation_space, action_space, kind=DQfDPolicy, **weights)


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Three phases: demonstrations are stored, learned from alone, and then beside fresh rows, as DQN learns."""
    share = 1 - config.demonstration_fraction
    limiter = RateLimiter(
        config.replay_ratio * share,
        config.learning_starts,
        sample_batch=config.batch_size,
        insert_batch=dqn.rows_at_once(config),
    )
    data = demonstrations_in(config.demonstrations)
    recorded = Demonstrations(data, workers.policy, needs=TRANSITION)
    if config.normalize_obs:  # pre-training sees what acting will see
        recorded = recorded.for_each(GatherStatistics(workers, config.gamma)).for_each(UpdateStatistics(workers))
    fresh = dqn.replay_buffer(config, limiter)
    # Beta follows the rows of a buffer, and the demonstrations become no more: there it is what it comes to.
    of_shown = attrs.evolve(config, buffer_size=data.rows, priority_beta=config.priority_beta_end)
    shown = dqn.replay_buffer(of_shown, None)
    mixture = MixedReplay(fresh=(fresh, share), demonstrations=(shown, config.demonstration_fraction))

    def stored(steps: Plan, buffer: ReplayBuffer, *, demonstration: bool) -> Plan:
        """Rows know who acted, and have what came of one step and of n."""
        steps = steps.for_each(FillColumn("demonstration", demonstration)).for_each(KeepOneStep(config.gamma))
        return steps.for_each(NStep(config.n_step, config.gamma)).for_each(StoreToReplay(buffer))

    def learned(rows: Plan, buffer: Any) -> Plan:
        """An update for each batch; its priorities go back to where it was drawn, and the target network follows."""
        train = rows.for_each(TrainOneStep(workers))
        if buffer.by_priority:
            train = train.for_each(UpdatePriorities(buffer))
        return train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (1) Store the demonstrations, and learn from them alone.
    phases = {"demonstrate": stored(recorded, shown, demonstration=True)}
    if config.pretrain_updates:
        phases["pretrain"] = learned(Replay(shown, config.batch_size).take(config.pretrain_updates), shown)

    # (2) Act, and store that too.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    if config.normalize_obs:
        rollouts = rollouts.for_each(GatherStatistics(workers, config.gamma)).for_each(UpdateStatistics(workers))
    store = stored(rollouts, fresh, demonstration=False)

    # (3) Learn from both; demonstrations are never overwritten.
    train = learned(Replay(mixture, config.batch_size), mixture)

    # (4) One phase after another, in the last one acting and learning in turn; a result every so many env steps.
    phases["online"] = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(Sequentially(phases), workers, config)


class DQfD(Trainer):
    """`DQfD(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
