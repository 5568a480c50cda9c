"""AlphaZero: self-play by search in a game for two, of which a network learns the moves and the outcome."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from flowrl.data import ReplayBuffer
from flowrl.engine.plan import Plan
from flowrl.operators import (
    Concurrently,
    NStep,
    ParallelRollouts,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
)
from flowrl.operators.options import BufferSettings, JudgeSettings
from flowrl.policies.alphazero import AlphaZeroPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.league import League, Share
from flowrl.trainer.players import OpponentFromRun
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = AlphaZeroPolicy.configured


@attrs.define(kw_only=True)
class Config(AlphaZeroPolicy.Settings, BufferSettings, JudgeSettings, ActingConfig):
    """Defaults that learn tic-tac-toe within 80 000 env steps."""

    env: str = "flowrl:tic_tac_toe"
    envs_per_worker: int = 64
    fragment_steps: int = 8
    batch_size: int = 256
    replay_ratio: float = 8.0


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Two branches in turn; the buffer's rate limiter keeps `replay_ratio` between them."""
    longest = workers.policy.game.longest
    limiter = config.limiter(config.batch_size, config.num_envs * (longest + config.fragment_steps))
    buffer = ReplayBuffer(config.buffer_size, share_frames=config.share_frames, limiter=limiter)

    # (1) Play: each seat searches before it moves. At the end of a game each row learns its outcome, from its seat.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    play = rollouts.for_each(NStep(longest, gamma=1.0)).for_each(StoreToReplay(buffer))

    # (2) Learn which moves the search preferred, and who won.
    learn = Replay(buffer, config.batch_size).for_each(TrainOneStep(workers))

    # (3) Both in turn, each as far as the ratio allows; a result every `report_every` env steps.
    train_op = Concurrently({"play": play, "learn": learn}, round_robin_weights=[1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class AlphaZero(Trainer):
    """`AlphaZero(env="flowrl:tic_tac_toe").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

    @classmethod
    def make_workers(cls, config: Any, env: Any = None, policy: Any = None) -> Any:
        """See `Trainer.make_workers`: the policy needs the game itself, which may have no name."""
        own = cls.policy if env is None else partial(cls.policy, env=env)
        return super().make_workers(config, env, own if policy is None else policy)

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Trainer.policies`."""
        return {"main": (cls.policy, config)}

    @classmethod
    def league(cls, config: Any) -> League:
        """See `Trainer.league`: it plays itself, and evaluations meet `eval_opponent`."""
        judge = None if config.eval_opponent is None else OpponentFromRun(config.eval_opponent)
        return League({"main": [Share(1.0, now=("main",))]}, pool_size=1, judge=judge)
