"""HER with DQN: each step is stored with its own goal, and again with goals that its episode did reach."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import Episodes, HindsightRelabel, SplitBatch
from flowrl.plans import dqn
from flowrl.rollout import WorkerSet
from flowrl.settings import Settings, positive, setting
from flowrl.trainer.trainer import Trainer

#: The steps whose achieved goals become new goals: this one and later ones, the last one, or the whole episode.
Strategy = Literal["future", "final", "episode"]

policy = dqn.policy


@attrs.frozen(kw_only=True, slots=False)
class HindsightSettings(Settings):
    """Hindsight relabeling. Settings in rows count real and relabeled ones."""

    her_k: int = positive(4, "relabeled copies of each real step")
    her_strategy: Strategy = setting("future", "where in the episode the new goals were achieved")


@attrs.define(kw_only=True)
class Config(HindsightSettings, dqn.Config):
    """The settings of DQN and of hindsight; defaults for bit flipping."""

    env: str = "flowrl.envs.goals:bit_flipping"
    hidden: tuple[int, ...] = (256,)
    gamma: float = 0.9
    n_step: int = 1
    replay_ratio: float = 16.0


def execution_plan(workers: WorkerSet, config: Any) -> Plan:
    """The plan of DQN (and SAC), with whole episodes and hindsight in place of n-step windows."""
    reward, terminated = workers.goal_functions
    relabel = HindsightRelabel(reward, terminated, config.gamma, config.her_k, config.her_strategy, config.n_step)
    plan = dqn.execution_plan(workers, config).replace("NStep", Episodes()).insert_after("Episodes", relabel)

    # An episode yields many rows at once: they are stored in small parts, so that learning keeps pace (F11).
    return plan.insert_after("HindsightRelabel", SplitBatch(max_rows=config.rows_at_once), "combine")


class HERDQN(Trainer):
    """`HERDQN(env="flowrl.envs.goals:bit_flipping").train(until={"env_steps": 20_000})`; its policy is that of DQN."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
