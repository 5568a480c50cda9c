"""League: PPO learners with roles in a game for two, and a pool of the past selves of all (AlphaStar's league)."""

from __future__ import annotations

from typing import Any

import attrs

from flowrl.engine.plan import Plan
from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError, did_you_mean
from flowrl.operators import (
    GAE,
    AddSnapshot,
    ConcatBatches,
    Concurrently,
    OfPolicy,
    ParallelRollouts,
    RecordGames,
    StandardMetricsReporting,
    TrainOneStep,
)
from flowrl.operators.options import EarlyStoppingSettings, PoolSettings
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.league import League, Share
from flowrl.rollout.match_making import pfsp_forgotten, pfsp_linear_capped, pfsp_squared, pfsp_variance
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import fraction, setting
from flowrl.trainer.players import OpponentFromRun
from flowrl.trainer.trainer import ActingConfig, Trainer

policy = PPOPolicy.configured

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = ROLES = ("main", "main_exploiter", "league_exploiter")


@attrs.define(kw_only=True)
class Config(PPOPolicy.Settings, PoolSettings, EarlyStoppingSettings, ActingConfig):
    """The shares of AlphaStar's league, and those settings of PPO that learn tic-tac-toe."""

    learners: dict[str, int] = setting(
        attrs.Factory(lambda: dict.fromkeys(ROLES, 1)), "number of learners by role: main, main_exploiter, ..."
    )
    pfsp: float = fraction(0.5, "share of a main agent's matches against past selves of all learners")
    self_play: float = fraction(0.35, "share of a main agent's matches against main agents as they are now")
    restart: float = fraction(0.25, "probability that a league exploiter begins anew after a copy of it has joined")
    snapshot_win_rate: float | None = 0.7
    snapshot_every: int = 50_000
    pool_size: int = 4
    env: str = "flowrl:tic_tac_toe"
    envs_per_worker: int = 64
    hidden: tuple[int, ...] = (128, 128)
    fragment_steps: int = 16
    train_batch_size: int = 256
    minibatch_size: int = 64
    num_sgd_iter: int = 8
    gamma: float = 1.0
    lam: float = 0.95
    learning_rate: NumberOrSchedule = 1e-3
    learning_rate_end: float | None = 0.0
    entropy_coef: NumberOrSchedule = 0.08
    entropy_coef_end: float | None = 0.03

    def __attrs_post_init__(self) -> None:
        for role, count in self.learners.items():
            if role not in ROLES:
                raise ConfigError(f"learners={self.learners}: no role {role!r}: {did_you_mean(role, ROLES)}")
            if count < 0 or (role == MAIN and not count):
                raise ConfigError(
                    f"learners={self.learners}: expected a number of at least {int(role == MAIN)} of each"
                )
        if MAIN not in self.learners:
            raise ConfigError(f"learners={self.learners}: a league has at least one main agent, as in {{'main': 1}}")
        if self.pfsp + self.self_play > 1:
            raise ConfigError(f"pfsp={self.pfsp} and self_play={self.self_play}: expected a sum of at most 1")

    def named(self, *roles: str) -> tuple[str, ...]:
        """The names of the learners with these roles, main agents first: a number ends that of one of several."""
        counts = {role: self.learners.get(role, 0) for role in ROLES if role in roles}
        return tuple(f"{role}_{k}" if n > 1 else role for role, n in counts.items() for k in range(n))

    def role(self, learner: str) -> str:
        """The role of a learner."""
        return next(role for role in ROLES if learner in self.named(role))

    def shares(self, learner: str) -> list[Share]:
        """Whom a learner meets: see the page of the plan. Numbers are those of AlphaStar."""
        mains, role = self.named(MAIN), self.role(learner)
        past = {main: Share(1 / len(mains), past=(main,), match_making=pfsp_variance) for main in mains}
        if role == MAIN_EXPLOITER:
            always = {main: Share(1 / len(mains), now=(main,)) for main in mains}
            easier = {main: attrs.evolve(past[main], otherwise=always[main]) for main in mains}  # if it has a past
            return [attrs.evolve(always[main], above=0.1, otherwise=easier[main]) for main in mains]
        if role == LEAGUE_EXPLOITER:
            return [Share(1, past=("*",), match_making=pfsp_linear_capped, otherwise=Share(1, now=mains))]
        shares = [Share(self.pfsp, past=("*",), match_making=pfsp_squared)]
        for main in mains:
            now = Share(self.self_play / len(mains), now=(main,), above=0.3, otherwise=past[main])
            forgotten = Share(1, past=(main,), match_making=pfsp_forgotten, below=0.7, otherwise=now)
            rest, exploiters = (1 - self.pfsp - self.self_play) / len(mains), self.named(MAIN_EXPLOITER)
            lost = Share(rest, past=exploiters or (main,), match_making=pfsp_squared, below=0.3, otherwise=forgotten)
            shares += [now, lost]
        return shares

    def snapshots(self, learner: str) -> dict[str, Any]:
        """When a copy of a learner joins the pool, and how likely the learner begins anew then: see `AddSnapshot`."""
        mains, role = self.named(MAIN), self.role(learner)
        rivals = {"now": mains} if role == MAIN_EXPLOITER else {"past": self.named(*ROLES)}
        restart = {MAIN: 0.0, MAIN_EXPLOITER: 1.0, LEAGUE_EXPLOITER: self.restart}[role]
        every = self.snapshot_every
        return {"every": every, "least": every // 2, "win_rate": self.snapshot_win_rate, "restart": restart, **rivals}


def execution_plan(workers: WorkerSet, config: Config) -> Plan:
    """Sampling happens once; each learner learns by PPO from its own matches, and copies of it join the pool."""
    # (1) Play the matches of all learners, against whom match-making draws; games enter the table.
    rollouts = ParallelRollouts(workers, mode="bulk_sync", steps=config.fragment_steps)
    rollouts = rollouts.for_each(RecordGames(workers))
    epochs: dict[str, Any] = {"num_sgd_iter": config.num_sgd_iter, "minibatch_size": config.minibatch_size}
    branches = {}
    for name, stream in zip(workers.parts, rollouts.duplicate(len(workers.parts), max_lag=1)):
        # (2) Of one learner: estimate advantages for each seat, and learn in several epochs.
        own = stream.combine(OfPolicy(name)) if len(workers.parts) > 1 else stream
        samples = own.for_each(GAE(config.gamma, config.lam)).combine(ConcatBatches(config.train_batch_size))
        trained = samples.for_each(TrainOneStep(workers.of(name), **epochs, target_kl=config.target_kl))

        # (3) A copy joins the pool, once it beats its rivals or is due; an exploiter may then begin anew.
        branches[name] = trained.for_each(AddSnapshot(workers, name, **config.snapshots(name)))

    # (4) All in turn; a result every `report_every` env steps, with the losses of each learner.
    train_op = Concurrently(branches, mode="round_robin", round_robin_weights=[1] * len(branches))
    return StandardMetricsReporting(train_op, workers, config)


class LeagueTraining(Trainer):
    """`LeagueTraining(learners={"main": 1, "main_exploiter": 1}).train(until={"env_steps": 20_000})`."""

    Config = Config
    policy = staticmethod(policy)
    execution_plan = staticmethod(execution_plan)

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Trainer.policies`."""
        seeds = SeedTree(config.seed)
        names = config.named(*ROLES)
        return {name: (cls.policy, attrs.evolve(config, seed=seeds.integer(f"policy/{name}"))) for name in names}

    @classmethod
    def league(cls, config: Any) -> League:
        """See `Trainer.league`."""
        names = config.named(*ROLES)
        opponents = {name: OpponentFromRun(name) for name in config.opponents}
        return League(
            {name: config.shares(name) for name in names},
            pool_size=config.pool_size,
            opponents=opponents,
            judge=None if config.eval_opponent is None else OpponentFromRun(config.eval_opponent),
            restarts=[name for name in names if config.snapshots(name)["restart"]],
        )
