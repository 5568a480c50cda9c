"""MuZero: acting by search in a learned model, learning from what searches found, and searching old steps again."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.data import RateLimiter
from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError
from flowrl.operators import (
    Concurrently,
    ParallelRollouts,
    Reanalyse,
    Replay,
    StandardMetricsReporting,
    StoreToReplay,
    TrainOneStep,
    UpdateTargetNetwork,
)
from flowrl.operators.options import JudgeSettings, NormalizedObs, SequenceBufferSettings, TargetNetworkSettings, Turns
from flowrl.policies import MuZeroPolicy
from flowrl.policies.dqn import EpsilonSettings
from flowrl.rollout import WorkerSet
from flowrl.rollout.league import League, Share
from flowrl.settings import positive
from flowrl.trainer.players import OpponentFromRun
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = MuZeroPolicy.configured


@attrs.define(kw_only=True)
class Config(
    MuZeroPolicy.Settings,
    EpsilonSettings,
    Turns,
    SequenceBufferSettings,
    TargetNetworkSettings,
    JudgeSettings,
    NormalizedObs,
    ActingConfig,
):
    """Defaults that solve CartPole-v1 within 100 000 env steps. Rows are steps."""

    epsilon_end: float = 0.05
    epsilon_steps: int = 5_000
    normalize_obs: bool = True
    schedule_steps: int | None = 50_000
    envs_per_worker: int = 16
    fragment_steps: int = 8
    sequence_length: int = 32
    overlap: int = 16
    reanalysed_sequences: int = positive(16, "sequences that are searched again after each fragment")
    buffer_size: int = 8_000
    replay_ratio: float = 32.0
    target_every: int = 1
    tau: float = 0.01

    def __attrs_post_init__(self) -> None:
        for name in ("unroll_steps", "n_step"):
            if self.get(name) >= self.sequence_length:
                raise ConfigError(
                    f"{name}={self.get(name)} reaches beyond the {self.sequence_length} steps of a sequence: expected "
                    f"at most {self.sequence_length - 1}, or a larger sequence_length"
                )
        super().__attrs_post_init__()

    def limited(self, agents: int) -> RateLimiter:
        """What keeps the ratios of learning and reanalysis, for so many agents of each environment."""
        added = self.num_envs * agents * self.fragment_steps + self.num_envs * (self.longest_game or 0)
        again = self.reanalysed_sequences * self.sequence_length / (self.fragment_steps * self.num_envs)
        return RateLimiter(
            self.replay_ratio + again,
            self.learning_starts,
            sample_batch=max(self.batch_size, self.reanalysed_sequences) * self.sequence_length,
            insert_batch=added,
        )


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Three branches in turn; the buffer's rate limiter keeps `replay_ratio` between the first and the last."""
    buffer = config.sequences(config.limited(workers.num_agents()))

    # (1) Act by search, and store steps with what the search found.
    act = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps).for_each(StoreToReplay(buffer))

    # (2) Search stored steps again with the newest weights, and replace what is stored.
    again = Replay(buffer, config.reanalysed_sequences).for_each(Reanalyse(workers, buffer))

    # (3) Unroll the model over sequences; it learns their rewards, their values, which bootstrap from a target network,
    # and the policies that searches found. The target network follows.
    learn = Replay(buffer, config.batch_size).for_each(TrainOneStep(workers))
    learn = learn.for_each(UpdateTargetNetwork(workers, every=config.target_every, tau=config.tau))

    # (4) All in turn, each as far as the ratio allows; a result every `report_every` env steps.
    branches = {"act": act, "reanalyse": again, "learn": learn}
    train_op = Concurrently(branches, round_robin_weights=[1, 1, "*"])
    return StandardMetricsReporting(train_op, workers, config)


class MuZero(Trainer):
    """`MuZero(env="CartPole-v1").train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Trainer.policies`."""
        return super().policies(config) if config.longest_game is None else {"main": (cls.policy, config)}

    @classmethod
    def league(cls, config: Any) -> League | None:
        """See `Trainer.league`: in a game for two it plays itself, and evaluations meet `eval_opponent`."""
        if config.longest_game is None:
            return None
        judge = None if config.eval_opponent is None else OpponentFromRun(config.eval_opponent)
        return League({"main": [Share(1.0, now=("main",))]}, pool_size=1, judge=judge)
