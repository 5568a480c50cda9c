"""SACfD: SAC that mixes demonstrated rows into every batch, at a fixed ratio."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data.columns import TRANSITION
from flowrl.engine.plan import Plan
from flowrl.operators import Demonstrations, MixInDemonstrations, NStep, PolicyActions, StoreToReplay
from flowrl.operators.datasets import demonstrations_in
from flowrl.operators.options import DemonstrationShareSettings
from flowrl.plans import dqn, sac
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer

policy = sac.policy


@attrs.define(kw_only=True)
class Config(DemonstrationShareSettings, sac.Config):
    """The settings of SAC, and the fraction of demonstrated rows."""

    demonstration_fraction: float = 0.5


def execution_plan(workers: WorkerSet, config: Any) -> Plan:
    """Store demonstrations first; then the plan of DQN (and SAC) draws a part of every batch from them."""
    data = demonstrations_in(config.demonstrations)

    # (1) Recorded actions are in the environment's scale: convert them to the policy's, then build n-step windows.
    recorded = Demonstrations(data, workers.policy, needs=TRANSITION).for_each(PolicyActions(workers))
    rows = recorded.for_each(NStep(config.n_step, config.gamma))
    demonstrate = rows.for_each(StoreToReplay(config.demonstration_buffer(data.rows)))

    # (2) DQN's plan, whose `replay_ratio` counts both kinds of rows.
    ratio = config.replay_ratio * (1 - config.demonstration_fraction)
    online = dqn.execution_plan(workers, attrs.evolve(config, replay_ratio=ratio))
    return MixInDemonstrations(online, demonstrate, config.demonstration_fraction)


class SACfD(Trainer):
    """`SACfD(env="Pendulum-v1", demonstrations="episodes").train(until={"env_steps": 10_000})`; its policy is SAC's."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
