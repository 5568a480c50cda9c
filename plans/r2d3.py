"""R2D3: R2D2 that mixes demonstrated sequences into every batch, at a fixed ratio."""

from __future__ import annotations

import attrs

from flowrl.data.columns import TRANSITION
from flowrl.engine.plan import Plan
from flowrl.operators import Demonstrations, InitialState, MixInDemonstrations, StoreToReplay
from flowrl.operators.datasets import demonstrations_in
from flowrl.operators.options import DemonstrationShareSettings
from flowrl.plans import r2d2
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer

policy = r2d2.policy


@attrs.define(kw_only=True)
class Config(DemonstrationShareSettings, r2d2.Config):
    """The settings of R2D2, and the fraction of demonstrated sequences."""


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Store demonstrations first; then the plan of R2D2 draws a part of every batch from them."""
    data = demonstrations_in(config.demonstrations)
    shown = config.prioritized(max(data.rows, data[0].shape[-1] * (config.steps + 1)))  # of each environment

    # (1) Recorded steps have no recurrent state of this policy: their sequences start from the initial state.
    recorded = Demonstrations(data, workers.policy, needs=TRANSITION)
    demonstrate = recorded.for_each(InitialState(workers)).for_each(StoreToReplay(shown))

    # (2) R2D2, whose `replay_ratio` counts both kinds of sequences.
    ratio = config.replay_ratio * (1 - config.demonstration_fraction)
    online = r2d2.execution_plan(workers, attrs.evolve(config, replay_ratio=ratio))
    return MixInDemonstrations(online, demonstrate, config.demonstration_fraction)


class R2D3(Trainer):
    """`R2D3(env="CartPole-v1", demonstrations="episodes").train(until={"env_steps": 20_000})`; its policy is R2D2's."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
