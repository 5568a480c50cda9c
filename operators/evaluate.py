"""Evaluation inside a plan, and when to stop.

Items that are not results pass through; the consumer of the plan reports them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.seeds import SeedTree
from flowrl.errors import PlanError

if TYPE_CHECKING:
    from flowrl.envs import Episode
    from flowrl.rollout import Workers
    from flowrl.rollout.evaluation import Goal

Result = dict[str, Any]

log = logging.getLogger("flowrl")

#: A run whose evaluations take a larger share of its seconds, and more than `FEW_SECONDS`, says so.
LARGE_SHARE = 0.25
FEW_SECONDS = 1.0
#: How many times as many environments of this process play the episodes of a goal, and those that never end early.
SIDE_BY_SIDE, CONFIRM_SIDE_BY_SIDE = 4, 8


def _play(
    context: Context,
    workers: Workers,
    policy: Any,
    seed: int,
    purpose: str,
    goal: Goal | None = None,
    video: Path | None = None,
    **options: Any,
) -> tuple[list[Episode], Result]:
    """Evaluate a policy: its episodes, and what a result says of the time that evaluation has taken so far."""
    from flowrl.rollout import evaluate

    seed, watch = SeedTree(seed).integer(f"evaluation/{purpose}"), context.watch
    options = {"num_envs": workers.num_eval_envs} | options  # wherever the groups run
    options["env_steps"] = context.counters.get("env_steps", 0)
    env, games = workers.evaluation_env, workers.evaluated(policy)
    played: list[Episode] = []
    with watch.evaluating():
        for playing, agents in games:
            aim = goal if len(games) == 1 else _aim(goal, playing, [name for of, _ in games for name in of])
            played += evaluate(playing, env, seed=seed, agents=agents, goal=aim, video=video, **options)
            video = None  # of the first alone
    share = watch.evaluation / watch.seconds
    if share > LARGE_SHARE and watch.evaluation > FEW_SECONDS and not watch.warned:
        watch.warned = True
        log.warning(
            "evaluation has taken %.0f %% of the run's %.0f seconds: to evaluate less, raise eval_train_ratio or "
            "eval_every, or lower eval_episodes",
            *(100 * share, watch.seconds),
        )
    return played, {"eval_seconds": watch.evaluation, "eval_share": share}


def _aim(goal: Goal | None, playing: Any, names: Sequence[str]) -> Goal | None:
    """Of a goal of several policies that play apart what concerns one of them."""
    if not isinstance(goal, Mapping):
        return goal
    return {name: least for name, least in goal.items() if name in playing or name not in names} or None


def _of_agents(played: Sequence[Episode]) -> Result:
    """In a game, the entries of a result for each agent, and for each policy where these change sides."""
    from flowrl.rollout import scores

    found = {}
    for agent in dict.fromkeys(episode.agent for episode in played if episode.agent):
        of = scores(played, agent)
        found[f"eval_return/{agent}"] = of.return_mean
        if of.win_rate is not None:
            found[f"eval_win_rate/{agent}"] = of.win_rate
            found[f"eval_judged/{agent}"] = of.judged / of.episodes
    return found


def _side_by_side(workers: Workers, times: int) -> int:
    """The most environments that play many episodes: so many times as many in this process, where they cost little."""
    return workers.num_eval_envs * (times if workers.evaluation_env.kind == "local" else 1)


def _until_missed(workers: Workers) -> int:
    """The most environments that play for a goal, of which a hopeless policy plays few episodes."""
    from flowrl.rollout.evaluation import LOOK

    if workers.evaluation_env.kind != "local":
        return workers.num_eval_envs
    return min(_side_by_side(workers, SIDE_BY_SIDE), LOOK)


def clock_of(workers: Workers) -> str:
    """The counter that evaluations follow."""
    return WorkersContract(workers).clock


def _can_be_made_again(op: Any, attribute: Any, workers: Workers) -> None:
    if workers.evaluation_env.is_one_object:
        raise PlanError(
            f"{type(op).__name__} needs its own environments (S3), but the workers got one environment "
            "object; pass its id or a function that makes it, or another one as eval_env"
        )


@operator
class Evaluate:
    """Adds `eval_return` to the first result at which an evaluation is due, and passes all results on.

    It is the mean raw return of whole episodes of the policy in its eval mode, or where it draws as in collecting (S8),
    which `eval_deterministic` says, in separate environments (S3);
    `best_eval_return` is the best so far, of the agents that the goal names, and `eval_episodes` their number. The
    starts are others in each evaluation, and follow from the seed and its number (S6). With a goal there are
    `goal_episodes`, or fewer where these make it implausible (see `flowrl.rollout.evaluation.implausible`). A policy
    becomes the best over as many episodes as the best one before had: where it has fewer, it plays on. The same
    episodes give `eval_reward_per_step`; `eval_win_rate` if the environment reports wins (S5, see
    `flowrl.rollout.scores`), with `eval_judged`, the share of episodes that say (S9); in a game `eval_return/NAME`,
    `eval_win_rate/NAME` and `eval_judged/NAME` of each agent; and `eval_cut_episodes` if some did not end.
    `eval_seconds` and `eval_share` are the time of all evaluations so far, in seconds and as a share of the run.

    An evaluation is due `every` env steps, but not before the plan's first update, nor before training has taken
    `train_ratio` times the env steps of the last evaluation, of `episodes` of its episodes. Until the first env step,
    as where a plan begins with demonstrations, it is due `every` updates.

    Args:
        workers: Workers with the policy and the environment.
        every: Env steps between evaluations. Of a plan that counts updates (see `Workers.clock`): updates, and
            `train_ratio` does not apply.
        episodes: Episodes of an evaluation without a goal; where learners of a league meet a judge, of each of them.
        seed: Seed of the starts.
        save: File for the weights of the best policy so far, the latest of equals.
        goal: Return to reach, or those of agents of a game by name; None: `stop_value`.
        goal_episodes: Episodes that decide whether the goal is reached; if `episodes` are more, those.
        train_ratio: Env steps of training per env step of the last evaluation, before the next one.
        stop_value: The stream ends after the first result whose `eval_return` is at least this.
        max_steps: Steps after which an episode is cut.
        deterministic: False: act by the collect mode, which explores or draws.
        video: Folder for films of the first episodes of each evaluation, in step-N.

    State: when the next evaluation is due, how many there were and the updates at the last one, the latest return, and
    the best one with the number of its episodes.
    """

    requires: ClassVar[dict[str, str]] = {
        "env_steps": "results have it: end the plan with StandardMetricsReporting(train_op, workers, config)"
    }
    provides = (
        *("eval_return", "best_eval_return", "eval_episodes", "eval_reward_per_step", "eval_win_rate"),
        *("eval_judged", "eval_cut_episodes", "eval_deterministic", "eval_seconds", "eval_share"),
    )
    workers: Workers = attrs.field(validator=_can_be_made_again)
    every: int = attrs.field(validator=attrs.validators.ge(1))
    episodes: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    seed: int = 0
    save: Path | None = None
    goal: Goal | None = None
    goal_episodes: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    train_ratio: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    stop_value: float | None = None
    max_steps: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    video: Path | None = None
    deterministic: bool = True
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    best: float | None = state(default=None)
    latest: float | None = state(default=None)
    number: int = state(default=0, added=True)
    best_episodes: int = state(default=0, added=True)
    updates: int = state(default=0, added=True)
    context: Context = context()

    @property
    def done(self) -> bool:
        return self.stop_value is not None and self.latest is not None and self.latest >= self.stop_value

    def __call__(self, result: Any) -> Any:
        if not isinstance(result, Mapping):
            return result
        now, updates = result[clock_of(self.workers)], self.context.counters.get("updates", 0)
        offline = not now and updates // self.every > self.updates // self.every
        if not (offline or now >= self.due) or (self.context.learns and not updates):
            return result
        from flowrl.rollout.evaluation import return_of, scores

        self.number += 1
        of = self.context, self.workers, self.workers.policy, self.seed
        options: dict[str, Any] = {"episodes": self.episodes, "max_steps": self.max_steps}
        options["deterministic"] = self.deterministic
        if (goal := self.stop_value if self.goal is None else self.goal) is not None:
            options["episodes"] = max(self.episodes, self.goal_episodes)
            options["num_envs"] = _until_missed(self.workers)
        video = None if self.video is None else Path(self.video, f"step-{now:09}")
        played, timing = _play(*of, f"{self.number}", goal=goal, video=video, **options)
        best = self.best if self.best is not None and math.isfinite(self.best) else -math.inf  # an older state: NaN
        missing = self.best_episodes - scores(played).episodes
        if missing > 0 and return_of(self.goal or 0, played) >= best:
            options["episodes"] = -(-missing // len(self.workers.evaluated(self.workers.policy)))
            more, timing = _play(*of, f"{self.number}/more", **options)
            played += more
        found, score = scores(played), return_of(self.goal or 0, played)
        self.due, self.updates = (now // self.every + 1) * self.every, updates
        if clock_of(self.workers) == "env_steps":
            usual = self.episodes * len(self.workers.evaluated(self.workers.policy))
            counted = min(1.0, usual / max(found.episodes, 1))  # a goal that is near must not be passed unseen
            self.due = max(self.due, now + math.ceil(self.train_ratio * found.steps * counted))
        self.latest = found.return_mean
        if self.best is None or score >= best:
            self.best, self.best_episodes = score, found.episodes
            if self.save is not None:
                self.workers.save_policy(self.save)
        shown = {"eval_return": self.latest, "best_eval_return": self.best, "eval_episodes": found.episodes}
        shown["eval_reward_per_step"] = found.reward_per_step
        if found.win_rate is not None:
            shown["eval_win_rate"] = found.win_rate
            shown["eval_judged"] = found.judged / found.episodes
        if found.cut:
            shown["eval_cut_episodes"] = found.cut
        shown["eval_deterministic"] = self.deterministic
        return {**result, **shown, **timing, **_of_agents(played)}


@operator
class Confirm:
    """Adds `confirmed_return` to a result whose evaluation reaches a goal within a budget of steps.

    It saves the evaluated policy beside `path`, loads it into a separate policy and plays on new seeds: a goal reached
    once may be luck (S6). Each policy is tried once. Only a confirmed policy replaces the file at
    `path`, the best policy of the evaluations. A goal of agents by name adds `confirmed_return/NAME` of each, and
    `confirmed_return`, of them together, once all reach it.

    State: how often a goal was reached, so that the seeds are new each time.
    """

    requires = ("eval_return",)
    provides = ("confirmed_return",)
    workers: Workers = attrs.field(validator=_can_be_made_again)
    goal: Goal
    path: Path
    within: float = math.inf
    episodes: int = 100
    seed: int = 0
    max_steps: int = 10_000
    deterministic: bool = True
    tries: int = state(default=0)
    context: Context = context()

    def __call__(self, result: Result) -> Result:
        if not isinstance(result, Mapping) or "eval_return" not in result:
            return result
        from flowrl.policies.weights import load_weights
        from flowrl.rollout.evaluation import bounds_of, by_agent, reaches, return_of

        wanted = bounds_of(self.goal, "eval_return")
        evaluated = all(result.get(name, -math.inf) >= least for name, least in wanted.items())
        if not evaluated or result[clock_of(self.workers)] > self.within:
            return result

        self.tries += 1
        saved = self.workers.new_policy()
        candidate = self.path.with_name(f"{self.path.stem}_candidate{self.path.suffix}")
        try:
            self.workers.save_policy(candidate)
            load_weights(saved, candidate)
            purpose = f"fresh-{self.tries}"
            num_envs = _side_by_side(self.workers, CONFIRM_SIDE_BY_SIDE)
            options: Any = {"episodes": self.episodes, "num_envs": num_envs, "max_steps": self.max_steps}
            options["deterministic"] = self.deterministic
            played, timing = _play(self.context, self.workers, saved, self.seed, purpose, **options)
            if confirmed := reaches(self.goal, played):
                candidate.replace(self.path)
        finally:
            candidate.unlink(missing_ok=True)
        shown = {f"confirmed_return/{name}": return_of({name: 0}, played) for name in by_agent(self.goal) if name}
        if confirmed or not shown:
            shown["confirmed_return"] = return_of(self.goal, played)
        return {**result, **shown, **timing}


@operator
class StopWhen:
    """Ends the stream after the first result that reaches one of the bounds, or all those of the goal.

    Args:
        bounds: Lower bounds of entries of a result, by name; a missing entry does not reach its bound.
        seconds: Bound of the time that the run has been open.
        goal: Lower bounds that only count together.

    State: these entries of the last result, so that an ended run can continue with larger bounds.

    >>> stop = StopWhen({"env_steps": 100})
    >>> [stop({"env_steps": n})["env_steps"] for n in (50, 100)], stop.done
    ([50, 100], True)
    """

    provides = ()
    bounds: dict[str, float]
    seconds: float | None = None
    goal: dict[str, float] = attrs.field(factory=dict)
    last: dict[str, float] = state(factory=dict)
    elapsed: float | None = state(default=None)
    context: Context = context()

    @property
    def done(self) -> bool:
        if any(map(self._reached, self.bounds.items())) or (self.goal and all(map(self._reached, self.goal.items()))):
            return True
        return self.seconds is not None and self.elapsed is not None and self.elapsed >= self.seconds

    def __call__(self, result: Any) -> Any:
        if not isinstance(result, Mapping):
            return result
        self.last = {name: result[name] for name in (*self.bounds, *self.goal) if result.get(name) is not None}
        self.elapsed = None if self.seconds is None else self.context.watch.seconds
        return result

    def _reached(self, bound: tuple[str, float]) -> bool:
        name, least = bound
        return name in self.last and self.last[name] >= least
