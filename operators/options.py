"""Settings that several plans share, and options, each of which edits a plan by the names of its operators.

A plan's `Config` lists them among its bases, and a `Trainer` applies the options to the plan of `execution_plan`, see
`flowrl.settings.Option`. An option leaves a plan alone that already has its operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import attrs

from flowrl.data import PrioritizedReplayBuffer, RateLimiter, ReplayBuffer, SequenceReplayBuffer
from flowrl.engine.graph import graph, paths, select
from flowrl.engine.operator import configuration
from flowrl.engine.plan import Plan
from flowrl.envs.make import who_begins
from flowrl.errors import ConfigError, PlanError, did_you_mean
from flowrl.learners import Aggregators, LearnerGroup
from flowrl.networks.recurrent import Cell, MemorySettings
from flowrl.operators.batches import CollectBatches, ScaleRewards, SplitBatch
from flowrl.operators.normalize import GatherStatistics, NormalizeRewards, UpdateStatistics
from flowrl.operators.replay import MixInReplay, UpdatePriorities
from flowrl.operators.train import ApplyGradients, AverageGradients, ComputeGradients, UpdateKL
from flowrl.operators.turns import JoinTurns
from flowrl.operators.unrolls import Episodes, Unroll
from flowrl.schedules import NumberOrSchedule, schedule
from flowrl.settings import (
    Option,
    Settings,
    fraction,
    not_negative,
    positive,
    proper_fraction,
    scheduled,
    setting,
    sizes,
    span,
)


def named(plan: Plan, *names: str) -> list[str]:
    """The paths of the operators with these names."""
    by_id = paths(plan)
    return [by_id[id(node)] for node in graph(plan) if node.name in names]


def has(plan: Plan, kind: type, **settings: Any) -> bool:
    """Whether the plan has an operator of this kind with these settings."""
    found = [node.op for node in graph(plan) if isinstance(node.op, kind)]
    return any(settings.items() <= configuration(op).items() for op in found)


def rollouts_of(plan: Plan, *others: str) -> list[str]:
    """The paths of the rollouts, and of operators with these other names, in the order of the plan.

    Rollouts are those of the driver, or of the workers if the plan continues there. Raises: PlanError without any.
    """
    for name in ("ParallelRollouts", "Rollouts"):
        if named(plan, name):
            return named(plan, *others, name)
    raise PlanError("no operator is named ParallelRollouts or Rollouts")


# -- settings of the wiring


@attrs.frozen(kw_only=True, slots=False)
class BatchSettings(Settings):
    """Batches of fresh experience."""

    train_batch_size: int = positive(128, "env steps in a training batch")


@attrs.frozen(kw_only=True, slots=False)
class EpochSettings(BatchSettings):
    """Several epochs over each batch of fresh experience."""

    train_batch_size: int = 256
    num_sgd_iter: int = positive(20, "epochs over each training batch", most=1_000_000)
    minibatch_size: int = positive(256, "rows per optimizer step")


@attrs.frozen(kw_only=True, slots=False)
class EarlyStoppingSettings(EpochSettings):
    """Epochs that end early if the policy moves too far."""

    target_kl: float | None = positive(
        None, "KL divergence that ends the epochs over a batch early; None: never", resume="fork"
    )


@attrs.frozen(kw_only=True, slots=False)
class InFlightSettings(Settings):
    """Workers that collect ahead."""

    in_flight: int = positive(2, "requests in flight to each worker", most=10_000)


@attrs.frozen(kw_only=True, slots=False)
class LagSettings(InFlightSettings):
    """Workers that do not wait for the learner."""

    max_weight_lag: int | None = not_negative(
        None, "updates by which the weights that train on a row may be newer than those that made it; None: no limit"
    )

    def requests(
        self: Any, workers: Any, num_sgd_iter: int = 1, minibatch_size: int | None = None, replayed: float = 0.0
    ) -> dict[str, Any]:
        """How `ParallelRollouts` asks for fragments, of which batches of `train_batch_size` are made.

        Args:
            workers: Who collects them.
            num_sgd_iter, minibatch_size: How a batch is trained on, see `TrainOneStep`.
            replayed: Old fragments mixed in for each new one.
        """
        if self.max_weight_lag is None:
            return {"in_flight": self.in_flight}
        rows = self.fragment_steps * workers.layout.envs_per_group
        fragments, mixed = math.ceil(self.train_batch_size / rows), 1 + math.ceil(replayed)
        updates = num_sgd_iter * math.ceil(fragments * rows / (minibatch_size or fragments * rows))
        pace = max(1, fragments // mixed), updates * math.ceil(mixed / fragments)
        return {"in_flight": self.in_flight, "max_weight_lag": self.max_weight_lag, "pace": pace}


@attrs.frozen(kw_only=True, slots=False)
class TargetNetworkSettings(Settings):
    """A target network, or a target policy, that follows the online one."""

    target_every: int = positive(100, "updates between updates of the target network")
    tau: float = fraction(1.0, "step of the target network toward the online one; 1 copies it")


@attrs.frozen(kw_only=True, slots=False)
class BufferSettings(Settings):
    """Learning from a replay buffer while acting."""

    batch_size: int = positive(128, "rows per update")
    buffer_size: int = positive(50_000, "capacity of the replay buffer, in rows")
    learning_starts: int = positive(1_000, "rows in the buffer before the first update")
    replay_ratio: float = positive(64.0, "rows trained on per row collected")
    share_frames: bool = setting(
        True, "store frames that wide observations have in common once; changes no result", resume="free"
    )

    def limiter(self, drawn: int, added: int, share: float = 1.0) -> RateLimiter:
        """A rate limiter for `replay_ratio` * `share`, with batches of `drawn` rows and insertions of `added`."""
        return RateLimiter(self.replay_ratio * share, self.learning_starts, sample_batch=drawn, insert_batch=added)


@attrs.frozen(kw_only=True, slots=False)
class SequenceBufferSettings(BufferSettings):
    """Learning from sequences of steps."""

    batch_size: int = positive(8, "sequences per update")
    sequence_length: int = positive(16, "steps of a sequence")
    overlap: int = not_negative(8, "steps that two successive sequences share")

    @property
    def steps(self) -> int:
        """Steps of a sequence with all that belongs to it."""
        return self.sequence_length

    def __attrs_post_init__(self: Any) -> None:
        if not self.overlap < self.sequence_length:
            raise ConfigError(
                f"overlap={self.overlap}: sequences of {self.sequence_length} steps overlap by 0 .. "
                f"{self.sequence_length - 1}"
            )
        if (of_each := self.buffer_size // self.num_envs) <= self.steps:
            raise ConfigError(
                f"buffer_size={self.buffer_size} leaves {of_each} steps for each of {self.num_envs} environments: "
                f"expected more than the {self.steps} of a sequence"
            )

    def sequences(self, limiter: RateLimiter) -> SequenceReplayBuffer:
        """The buffer of sequences."""
        return SequenceReplayBuffer(
            self.buffer_size,
            length=self.sequence_length,
            overlap=self.overlap,
            share_frames=self.share_frames,
            limiter=limiter,
        )


@attrs.frozen(kw_only=True, slots=False)
class ReplaySettings(BufferSettings, TargetNetworkSettings):
    """Learning from a replay buffer while acting, with a target network."""


@attrs.frozen(kw_only=True, slots=False)
class FrozenSettings(Settings):
    """Several policies, of which some may play without learning."""

    frozen: tuple[str, ...] = setting((), "policies that play and are saved, and learn nothing")

    def learning(self, policies: Iterable[str]) -> list[str]:
        """Those of these policies that learn. Raises: ConfigError: an unknown policy is frozen, or none is left."""
        names = list(policies)
        for name in self.frozen:
            if name not in names:
                raise ConfigError(f"frozen: no policy {name!r}: {did_you_mean(name, names)}")
        left = [name for name in names if name not in self.frozen]
        if not left:
            raise ConfigError(f"frozen={list(self.frozen)}: no policy is left to learn")
        return left


@attrs.frozen(kw_only=True, slots=False)
class PrioritySettings(Settings):
    """Sampling by priority (Schaul et al. 2016)."""

    priority_alpha: float = fraction(0.6, "priority exponent alpha: 0 samples uniformly, 1 in proportion")
    priority_beta: NumberOrSchedule = scheduled(
        0.4, "importance-sampling exponent beta at the start; 1 corrects fully", most=1
    )


@attrs.frozen(kw_only=True, slots=False)
class DemonstrationSettings(Settings):
    """Demonstrations beside the agent's own experience."""

    demonstrations: str | None = setting(None, "folder of recorded episodes, or minari:ID")


@attrs.frozen(kw_only=True, slots=False)
class DemonstrationShareSettings(DemonstrationSettings):
    """Demonstrations in every batch."""

    demonstration_fraction: float = proper_fraction(0.25, "fraction of the rows of an update that are demonstrations")


@attrs.frozen(kw_only=True, slots=False)
class RewardModelSettings(Settings):
    """Rewards from a model that learns."""

    extrinsic_weight: float = not_negative(1.0, "weight of the environment's reward")
    reward_hidden: tuple[int, ...] = sizes(64, 64, meaning="sizes of the hidden layers of the reward model")
    reward_learning_rate: float = positive(1e-4, "learning rate of the reward model (Adam)")
    reward_sgd_iter: int = positive(
        1, "epochs of the reward model over each fragment (and its demonstrations)", most=1_000_000
    )
    reward_minibatch_size: int | None = positive(None, "rows per optimizer step of the reward model; None: all")


@attrs.frozen(kw_only=True, slots=False)
class IntrinsicRewardSettings(RewardModelSettings):
    """Rewards for novelty."""

    intrinsic_weight: float = not_negative(1.0, "weight of the reward for novelty")
    reward_features: int = positive(64, "width of the learned features of an observation")


@attrs.frozen(kw_only=True, slots=False)
class ImitationRewardSettings(DemonstrationSettings, RewardModelSettings):
    """Rewards for looking like a demonstration."""

    extrinsic_weight: float = 0.0
    imitation_weight: float = not_negative(1.0, "weight of the discriminator's reward")
    demonstration_batch_size: int = positive(256, "demonstrated rows paired with each fragment")

    def __attrs_post_init__(self: Any) -> None:
        changed = [f"reward_scale={self.reward_scale}"] * (self.reward_scale != 1)
        changed += ["normalize_rewards=True"] * self.normalize_rewards
        if changed and not self.extrinsic_weight:
            raise ConfigError(
                f"{' and '.join(changed)} with extrinsic_weight=0: the environment's reward, which it changes, counts "
                "for nothing; set imitation_weight to scale the discriminator's"
            )


@attrs.frozen(kw_only=True, slots=False)
class DynamicsSettings(Settings):
    """A model of the environment, and experience that it imagines."""

    model_members: int = positive(5, "networks of the model", most=1_000)
    model_elites: int = positive(3, "networks that imagine: those with the least error on held-out rows")
    model_hidden: tuple[int, ...] = sizes(128, 128, meaning="sizes of the hidden layers of each network of the model")
    model_learning_rate: float = positive(1e-3, "learning rate of the model (Adam)")
    model_every: int = positive(125, "env steps between fits of the model")
    model_holdout: float = proper_fraction(0.2, "fraction of the real rows that judge the model, and do not train it")
    model_minibatch_size: int = positive(32, "rows per optimizer step of each network of the model")
    model_patience: int = positive(5, "epochs without an improvement on the held-out rows that end a fit")
    model_epochs: int = positive(100, "most epochs of a fit", most=1_000_000)
    horizon: int = positive(5, "steps of an imagined episode", most=10_000)
    imagined_branches: int = positive(50, "episodes imagined at once")
    imagined_ratio: float = positive(250.0, "imagined rows per env step")
    imagined_size: int = positive(50_000, "capacity of the buffer of imagined rows")
    real_fraction: float = proper_fraction(0.05, "fraction of the rows of an update that are real")


# -- options


@attrs.frozen(kw_only=True, slots=False)
class ScaledRewards(Option):
    """Rewards scaled by a constant."""

    reward_scale: float = positive(1.0, "factor on the rewards that the policy learns from")

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.reward_scale != 1 and not has(plan, ScaleRewards, scale=self.reward_scale):
            for path in rollouts_of(plan):
                plan = plan.insert_after(path, ScaleRewards(self.reward_scale))
        return plan


@attrs.frozen(kw_only=True, slots=False)
class NormalizedObs(Option):
    """Normalization of observations.

    Stored observations stay raw; the statistics of each rollout apply from then on.
    """

    normalize_obs: bool = setting(False, "normalize observations to mean 0, deviation 1, by running statistics")

    def edit(self: Any, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.normalize_obs and not has(plan, GatherStatistics):
            for path in rollouts_of(plan):
                plan = measured(plan, path, workers, self.gamma)
        return plan


def measured(plan: Plan, path: str, workers: Any, gamma: float) -> Plan:
    """The plan with statistics of an operator's output, which apply at once."""
    plan = plan.insert_after(path, UpdateStatistics(workers))
    return plan.insert_after(path, GatherStatistics(workers, gamma))


@attrs.frozen(kw_only=True, slots=False)
class Normalized(Option):
    """Normalization of observations and rewards by running statistics; a subclass defines when these apply."""

    normalize_obs: bool = setting(False, "normalize observations to mean 0, deviation 1, by running statistics")
    normalize_rewards: bool = setting(False, "divide rewards by the running deviation of the discounted return")


@attrs.frozen(kw_only=True, slots=False)
class NormalizedReplay(Normalized):
    """Normalization of rows drawn from replay.

    Stored rows stay raw. Statistics apply at once, beginning with those of demonstrations.
    """

    def edit(self: Any, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if (self.normalize_obs or self.normalize_rewards) and not has(plan, GatherStatistics):
            for path in rollouts_of(plan, "Demonstrations"):
                plan = measured(plan, path, workers, self.gamma)
            for path in named(plan, "Replay") if self.normalize_rewards else ():
                plan = plan.insert_after(path, NormalizeRewards(workers))
        return plan


@attrs.frozen(kw_only=True, slots=False)
class NormalizedRollouts(Normalized):
    """Normalization of fresh experience.

    New statistics apply once the policy has learned from the experience collected under the old ones. Each of several
    policies has its own.
    """

    def edit(self: Any, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if not (self.normalize_obs or self.normalize_rewards) or has(plan, GatherStatistics):
            return plan
        branches = named(plan, "OfPolicy")
        for path in branches or rollouts_of(plan):
            of = workers.of(select(plan, path).op.policy_id) if branches else workers
            if branches:
                plan = plan.insert_after(path.replace("OfPolicy", "TrainOneStep"), UpdateStatistics(of))
            if self.normalize_rewards:
                plan = plan.insert_after(path, NormalizeRewards(of))
            plan = plan.insert_after(path, GatherStatistics(of, self.gamma))
        return plan if branches else plan.insert_before("Report", UpdateStatistics(workers))


@attrs.frozen(kw_only=True, slots=False)
class NStepBuffer(BufferSettings, PrioritySettings, Option):
    """Windows of n steps in a replay buffer, uniform or prioritized."""

    n_step: int = positive(3, "rewards summed in a return before it bootstraps", most="buffer_size")
    prioritized: bool = setting(False, "sample rows with large TD errors more often")
    priority_beta_end: float = fraction(
        1.0, "importance-sampling exponent beta at the end of its schedule", resume="fork"
    )
    priority_beta_steps: int | None = span("env steps over which beta changes")

    @property
    def rows_at_once(self: Any) -> int:
        """A bound on the rows stored at once, (steps + n - 1) * environments; see `RateLimiter`."""
        return int(self.fragment_steps * self.num_envs * self.n_step)

    def replay_buffer(self, share: float = 1.0, agents: int = 1) -> ReplayBuffer:
        """The plan's buffer, which provides this share of the rows of an update, of so many agents of a game."""
        limiter = self.limiter(self.batch_size, self.rows_at_once * agents, share)
        return self._buffer(self.buffer_size, self.priority_beta, limiter)

    def demonstration_buffer(self, rows: int) -> ReplayBuffer:
        """A buffer of `rows` demonstrations; it does not grow, so beta has its final value."""
        return self._buffer(rows, self.priority_beta_end, None)

    def _buffer(self: Any, rows: int, beta: NumberOrSchedule, limiter: RateLimiter | None) -> ReplayBuffer:
        how: dict[str, Any] = {"gamma": self.gamma, "share_frames": self.share_frames, "limiter": limiter}
        if not self.prioritized:
            return ReplayBuffer(rows, **how)
        annealed = schedule(beta, self.priority_beta_end, self.priority_beta_steps)
        return PrioritizedReplayBuffer(rows, alpha=self.priority_alpha, beta=annealed, **how)

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`: learning updates the priorities of the buffer that the rows came from."""
        updated = [id(node.op.buffer) for node in graph(plan) if isinstance(node.op, UpdatePriorities)]
        for path in named(plan, "Replay"):
            buffer = select(plan, path).op.buffer
            if buffer.by_priority and id(buffer) not in updated:
                plan = plan.insert_after(path.replace("Replay", "TrainOneStep"), UpdatePriorities(buffer))
        return plan


@attrs.frozen(kw_only=True, slots=False)
class NStepReplay(NStepBuffer, ReplaySettings):
    """The same, with a target network."""


@attrs.frozen(kw_only=True, slots=False)
class KLPenalty(Option):
    """A penalty on the KL divergence from the policy that acted: adaptive, or of a fixed weight."""

    kl_coef: float = setting(0.0, "weight of the KL penalty at the start; 0: none")
    kl_target: float | None = positive(
        0.01, "KL divergence per batch that the weight of the penalty adapts to; None: the weight is fixed"
    )

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`: the weight of each policy that learns adapts by itself."""
        if self.kl_coef and self.kl_target is not None and not has(plan, UpdateKL):
            for path in named(plan, "TrainOneStep"):
                plan = plan.insert_after(path, UpdateKL(select(plan, path).op.workers, target=self.kl_target))
        return plan


@attrs.frozen(kw_only=True, slots=False)
class Recurrent(MemorySettings, Option):
    """A memory, which learns from sequences."""

    recurrent: Cell | None = setting(None, "memory that actor and critic share: lstm, gru or gtrxl; None: none")
    sequence_length: int = positive(32, "steps that learning unrolls the recurrent layer over")

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.recurrent and not has(plan, Unroll):
            plan = plan.insert_after("GAE", Unroll(self.sequence_length, last="pad", across=False))
        return plan


@attrs.frozen(kw_only=True, slots=False)
class Microbatches(Option):
    """Gradients computed in parts, which needs less memory."""

    microbatches: int = positive(1, "parts of a batch whose gradients are averaged for one step")

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.microbatches > 1:
            plan = (
                plan.insert_before("TrainOneStep", SplitBatch(self.microbatches), "combine")
                .insert_before("TrainOneStep", ComputeGradients(workers))
                .insert_before("TrainOneStep", AverageGradients(self.microbatches), "combine")
                .replace("TrainOneStep", ApplyGradients(workers))
            )
        return plan


@attrs.frozen(kw_only=True, slots=False)
class ReplayedFragments(Option):
    """Replayed fragments among the new ones."""

    replay_ratio: float = not_negative(0.0, "replayed fragments per new one")
    replay_slots: int = positive(100, "fragments kept for replay")

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.replay_ratio and not has(plan, MixInReplay):
            plan = plan.insert_before("ConcatBatches", MixInReplay(self.replay_slots, self.replay_ratio), "combine")
        return plan


@attrs.frozen(kw_only=True, slots=False)
class Aggregated(Option):
    """Batches joined by separate processes, which pass them to the learners."""

    num_aggregators: int = not_negative(
        0, "Ray processes that join fragments into batches; 0: this process joins them", most=10_000
    )

    def edit(self: Any, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.num_aggregators:
            joining, collect = Aggregators(self.num_aggregators, **self.for_actors), self.train_batch_size
            plan = plan.rewire(
                "ConcatBatches",
                lambda fragments: fragments.combine(CollectBatches(collect)).call(
                    joining, "join", in_flight=2 * self.num_aggregators
                ),
            ).remove("ConcatBatches")
        return plan


@attrs.frozen(kw_only=True, slots=False)
class Learners(Option):
    """Learning while the next batches are collected."""

    num_learners: int = not_negative(
        0, "0: this process learns; 1: a thread of it; more: so many Ray processes", most=10_000
    )
    learn_in_flight: int = positive(2, "batches in flight to the learners", most=10_000)

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.num_learners:
            learners = LearnerGroup(workers, self.num_learners, "thread" if self.num_learners == 1 else "actor")
            plan = plan.rewire(
                "TrainOneStep", lambda batches: batches.call(learners, "train", in_flight=self.learn_in_flight)
            ).remove("TrainOneStep")
        return plan


# -- games


@attrs.frozen(kw_only=True, slots=False)
class TeamMembers(Settings):
    """The agents of a game that learn together."""

    team: str | list[str] | None = setting(
        None, "agents of the team, by name or pattern; the others draw their actions uniformly; None: all agents"
    )

    def wrapped(self, wrappers: Any) -> Any:
        """See `Configuration.wrapped`: the team before all that adds to what agents observe, but masks."""
        if self.team is None or wrappers is None:
            return wrappers
        at = max((at for at, each in enumerate(wrappers, 1) if each == "ActionMask"), default=0)
        return [*wrappers[:at], f"Team({self.team!r})", *wrappers[at:]]


@attrs.frozen(kw_only=True, slots=False)
class JudgeSettings(Settings):
    """Whom evaluations of a game for two meet."""

    eval_opponent: str | None = setting(
        "random",
        "whom evaluations meet, from either side in turn: a run, a policy file, or random, one_ply, mcts or perfect, "
        "see Games; None: the learner plays itself",
    )


@attrs.frozen(kw_only=True, slots=False)
class Turns(Option):
    """Games for two, who move in turn: a learner of consecutive moves gets those of both."""

    def edit(self: Any, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`."""
        if self.longest_game is not None and not has(plan, JoinTurns):
            self._check_turns(workers)
            for path in rollouts_of(plan):
                plan = plan.insert_after(path, JoinTurns())
                plan = plan.insert_after(path, Episodes())
        return plan

    def _check_turns(self: Any, workers: Any) -> None:
        """Raises: ConfigError for a game for two, as leagues take them, in which not the first one alone begins."""
        agents, games = workers.game_agents, workers.environments
        begin = who_begins(games.spec, games.env_args, games.wrappers)
        if begin != agents[:1]:
            raise ConfigError(
                f"longest_game={self.longest_game} is for games of two who move in turn, but {games} has the agents "
                f"{', '.join(agents)}, of which {', '.join(begin)} act first: expected the first one alone, or "
                "longest_game=null, with which each agent learns from its own steps"
            )


@attrs.frozen(kw_only=True, slots=False)
class PoolSettings(JudgeSettings):
    """Opponents that are past selves."""

    opponents: tuple[str, ...] = setting(
        (), "further members: runs, policy files, and random, one_ply, mcts or perfect, see Games"
    )
    pool_size: int = positive(
        8, "past selves of a learner in the pool; the oldest leaves when another one joins", most=1_000
    )
    snapshot_every: int = positive(20_000, "env steps after which a copy of a learner joins the pool")
    snapshot_win_rate: float | None = proper_fraction(
        None, "share of games won against each rival with which a copy joins before that; None: never"
    )
