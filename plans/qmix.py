"""QMIX: agents that win together, each by values of its own, of which a monotonic mixer makes those of the team."""

from __future__ import annotations

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    JoinTeam,
    NStep,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.options import TeamMembers
from flowrl.plans import dqn
from flowrl.policies import QMIXPolicy
from flowrl.policies.qmix import TeamSettings
from flowrl.rollout import WorkerSet
from flowrl.trainer.trainer import Trainer

policy = QMIXPolicy.configured


@attrs.define(kw_only=True)
class Config(TeamMembers, TeamSettings, dqn.Config):
    """DQN's settings, for a game whose agents act together."""

    env: str = "flowrl:two_step"
    wrappers: list[str] = attrs.Factory(lambda: ["AgentId", "GlobalState"])
    n_step: int = 1


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """DQN's plan on the rows of a team. VDN shares it."""
    buffer = config.replay_buffer()

    # (1) Each agent acts by its own values; store n-step transitions of the team.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    steps = rollouts.for_each(NStep(config.n_step, config.gamma)).for_each(JoinTeam(workers.game_agents))
    store = steps.for_each(StoreToReplay(buffer))

    # (2) Learn the team's values from the buffer; the target network follows, with its mixer.
    train = Replay(buffer, config.batch_size).for_each(TrainOneStep(workers))
    train = train.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (3) Both in turn, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"store": store, "train": train}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class QMIX(Trainer):
    """`QMIX(env="flowrl:two_step").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)
