"""Evaluation inside a plan, and when to stop.

Items that are not results pass through; the consumer of the plan reports them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, state
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.seeds import SeedTree
from flowrl.errors import PlanError

if TYPE_CHECKING:
    from flowrl.rollout import BaseWorkers, Scores

Result = dict[str, Any]


def _play(workers: BaseWorkers, policy: Any, seed: int, purpose: str, **options: Any) -> Scores:
    from flowrl.rollout import evaluate, scores

    seed = SeedTree(seed).integer(f"evaluation/{purpose}")
    num_envs = workers.num_eval_envs  # the same wherever the groups run
    return scores(evaluate(policy, workers.evaluation_env, seed=seed, num_envs=num_envs, **options))


def clock_of(workers: BaseWorkers) -> str:
    """The counter that evaluations follow."""
    return WorkersContract(workers).clock


def _can_be_made_again(op: Any, attribute: Any, workers: BaseWorkers) -> None:
    if workers.evaluation_env.is_one_object:
        raise PlanError(
            f"{type(op).__name__} needs its own environments (S3), but the workers got one environment "
            "object; pass its id or a function that makes it, or another one as eval_env"
        )


@operator
class Evaluate:
    """Adds `eval_return` to the first result of every `every` env steps, and passes all results on.

    It is the mean raw return of `episodes` episodes of the policy in its eval mode, from the same starts each time
    (S6), in separate environments (S3); `best_eval_return` is the best so far. The same episodes give
    `eval_reward_per_step`; `eval_win_rate` if the environment reports wins (S5, see `flowrl.rollout.scores`); and
    `eval_cut_episodes` if some did not end.

    Args:
        workers: Workers with the policy and the environment.
        every: Env steps (or updates, see `BaseWorkers.clock`) between evaluations.
        episodes: Episodes per evaluation.
        seed: Seed of the starts.
        save: File for the weights of the best policy so far, the latest of equals.
        stop_value: The stream ends after the first result whose `eval_return` is at least this.
        max_steps: Steps after which an episode is cut.
        video: Folder for films of the first episodes of each evaluation, in step-N.

    State: when the next evaluation is due, the best return and the latest.
    """

    requires: ClassVar[dict[str, str]] = {
        "env_steps": "results have it: end the plan with StandardMetricsReporting(train_op, workers, config)"
    }
    provides = ("eval_return", "best_eval_return", "eval_reward_per_step", "eval_win_rate", "eval_cut_episodes")
    workers: BaseWorkers = attrs.field(validator=_can_be_made_again)
    every: int = attrs.field(validator=attrs.validators.ge(1))
    episodes: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    seed: int = 0
    save: Path | None = None
    stop_value: float | None = None
    max_steps: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    video: Path | None = None
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    best: float | None = state(default=None)
    latest: float | None = state(default=None)

    @property
    def done(self) -> bool:
        return self.stop_value is not None and self.latest is not None and self.latest >= self.stop_value

    def __call__(self, result: Result) -> Result:
        if not isinstance(result, Mapping) or (now := result[clock_of(self.workers)]) < self.due:
            return result
        self.due = (now // self.every + 1) * self.every
        scores = _play(
            *(self.workers, self.workers.policy, self.seed, "fixed"),
            episodes=self.episodes,
            max_steps=self.max_steps,
            video=None if self.video is None else Path(self.video, f"step-{now:09}"),
        )
        self.latest = score = scores.return_mean
        if self.best is None or not math.isfinite(self.best) or score >= self.best:  # an older state may hold NaN
            self.best = score
            if self.save is not None:
                from flowrl.policies.weights import save_weights

                save_weights(self.workers.policy, self.save)
        found = {"eval_return": score, "best_eval_return": self.best, "eval_reward_per_step": scores.reward_per_step}
        if scores.win_rate is not None:
            found["eval_win_rate"] = scores.win_rate
        if scores.cut:
            found["eval_cut_episodes"] = scores.cut
        return {**result, **found}


@operator
class Confirm:
    """Adds `confirmed_return` to a result whose `eval_return` reaches a goal within a budget of steps.

    It saves the evaluated policy beside `path`, loads it into a separate policy and plays on new seeds: a goal reached
    on the fixed seeds alone may be luck (S6). Each policy is tried once. Only a confirmed policy replaces the file at
    `path`, the best policy of the evaluations.

    State: how often a goal was reached, so that the seeds are new each time.
    """

    requires = ("eval_return",)
    provides = ("confirmed_return",)
    workers: BaseWorkers = attrs.field(validator=_can_be_made_again)
    goal: float
    path: Path
    within: float = math.inf
    episodes: int = 100
    seed: int = 0
    max_steps: int = 10_000
    tries: int = state(default=0)

    def __call__(self, result: Result) -> Result:
        if not isinstance(result, Mapping) or "eval_return" not in result:
            return result
        if not result["eval_return"] >= self.goal or result[clock_of(self.workers)] > self.within:
            return result
        from flowrl.policies.weights import load_weights, save_weights

        self.tries += 1
        saved = self.workers.new_policy()
        candidate = self.path.with_name(f"{self.path.stem}_candidate{self.path.suffix}")
        try:
            save_weights(self.workers.policy, candidate)
            load_weights(saved, candidate)
            purpose = f"fresh-{self.tries}"
            played = {"episodes": self.episodes, "max_steps": self.max_steps}
            score = _play(self.workers, saved, self.seed, purpose, **played).return_mean
            if score >= self.goal:
                candidate.replace(self.path)
        finally:
            candidate.unlink(missing_ok=True)
        return {**result, "confirmed_return": score}


@operator
class StopWhen:
    """Ends the stream after the first result that reaches one of the bounds.

    Args:
        bounds: Lower bounds of entries of a result, by name; a missing entry does not reach its bound.
        seconds: Bound of the time that the run has been open.

    State: these entries of the last result, so that an ended run can continue with larger bounds.

    >>> stop = StopWhen({"env_steps": 100})
    >>> [stop({"env_steps": n})["env_steps"] for n in (50, 100)], stop.done
    ([50, 100], True)
    """

    provides = ()
    bounds: dict[str, float]
    seconds: float | None = None
    last: dict[str, float] = state(factory=dict)
    elapsed: float | None = state(default=None)
    context: Context = context()

    @property
    def done(self) -> bool:
        reached = any(name in self.last and self.last[name] >= bound for name, bound in self.bounds.items())
        return reached or (self.seconds is not None and self.elapsed is not None and self.elapsed >= self.seconds)

    def __call__(self, result: Any) -> Any:
        if not isinstance(result, Mapping):
            return result
        self.last = {name: result[name] for name in self.bounds if result.get(name) is not None}
        self.elapsed = None if self.seconds is None else self.context.watch.seconds
        return result
