"""Self-play: PPO in a game for two, against itself and a pool of its past selves."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from flowrl.engine.plan import Plan
from flowrl.operators import (
    GAE,
    AddSnapshot,
    ConcatBatches,
    ParallelRollouts,
    RecordGames,
    StandardMetricsReporting,
    TrainOneStep,
)
from flowrl.operators.options import EarlyStoppingSettings, KLPenalty, PoolSettings
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.league import League, Share
from flowrl.rollout.match_making import MATCH_MAKING
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import fraction, setting
from flowrl.trainer.players import OpponentFromRun
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = PPOPolicy.configured


@attrs.define(kw_only=True)
class Config(PPOPolicy.Settings, KLPenalty, PoolSettings, EarlyStoppingSettings, ActingConfig):
    """Defaults that learn tic-tac-toe within 500 000 env steps."""

    self_play: float = fraction(0.5, "share of matches that the learner plays against itself")
    match_making: Literal["uniform", "latest", "pfsp_squared", "pfsp_variance"] = setting(
        "pfsp_squared", "how past selves are drawn, by the share of games that the learner wins against each"
    )
    env: str = "flowrl:tic_tac_toe"
    envs_per_worker: int = 64
    hidden: tuple[int, ...] = (128, 128)
    fragment_steps: int = 16
    train_batch_size: int = 1024
    num_sgd_iter: int = 8
    gamma: float = 1.0
    lam: float = 0.95
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0
    entropy_coef: NumberOrSchedule = 0.08
    entropy_coef_end: float | None = 0.03


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """PPO's branch; games are counted before it, and now and then a copy of the learner joins the pool behind it."""
    # (1) Play whom match-making draws: itself, or a past self, who only acts.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    rollouts = rollouts.for_each(RecordGames(workers))

    # (2) Learn from the learner's turns, in either seat, in several epochs.
    epochs: dict[str, Any] = {"num_sgd_iter": config.num_sgd_iter, "minibatch_size": config.minibatch_size}
    samples = rollouts.for_each(GAE(config.gamma, config.lam)).combine(ConcatBatches(config.train_batch_size))
    train_op = samples.for_each(TrainOneStep(workers, **epochs, target_kl=config.target_kl))

    # (3) A copy joins the pool, every `snapshot_every` env steps.
    train_op = train_op.for_each(AddSnapshot(workers, "main", config.snapshot_every, config.snapshot_win_rate))

    # (4) A result every `report_every` env steps.
    return StandardMetricsReporting(train_op, workers, config)


class SelfPlay(Trainer):
    """`SelfPlay(env="flowrl:tic_tac_toe").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Trainer.policies`."""
        return {"main": (cls.policy, config)}

    @classmethod
    def league(cls, config: Any) -> League:
        """See `Trainer.league`: one learner, which plays itself in a share of its matches."""
        past = Share(1.0 - config.self_play, past=("*",), match_making=MATCH_MAKING[config.match_making])
        shares = [Share(config.self_play, now=("main",)), past]
        opponents = {name: OpponentFromRun(name) for name in config.opponents}
        judge = None if config.eval_opponent is None else OpponentFromRun(config.eval_opponent)
        return League({"main": shares}, pool_size=config.pool_size, opponents=opponents, judge=judge)
