"""Evaluation inside a plan, and when to stop.

What is no result passes through: whoever pulls the plan says what is wrong with it.
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
    num_envs = workers.num_eval_envs  # the same wherever the groups are
    return scores(evaluate(policy, workers.evaluation_env, seed=seed, num_envs=num_envs, **options))


def clock_of(workers: BaseWorkers) -> str:
    """The counter that evaluations follow."""
    return WorkersContract(workers).clock


def _can_be_made_again(op: Any, attribute: Any, workers: BaseWorkers) -> None:
    if workers.evaluation_env.is_one_object:
        raise PlanError(
            f"{type(op).__name__} needs environments of its own (S3), but the workers were given one environment "
            "object; give them its id or a function that makes it, or another one as eval_env"
        )


@operator
class Evaluate:
    """Adds `eval_return` to the first result of every `every` env steps, and passes all results on.

    It is the mean raw return of `episodes` episodes of the policy in its eval mode, from the same starts each
    time (S6), in environments of their own (S3); `best_eval_return` is the best so far. Of the same episodes,
    `eval_reward_per_step` and, where the environment says who won, `eval_win_rate` (S5, see `flowrl.rollout.scores`);
    `eval_cut_episodes` where some did not end. A return that is no number is never the best.

    Args:
        workers: Whose policy, in which environment.
        every: Env steps between evaluations, or updates: see `BaseWorkers.clock`.
        episodes: Played each time.
        seed: The starts follow from it.
        save: File that gets the weights of the best policy so far, the latest of equals.
        stop_value: The stream ends after the first result whose `eval_return` is at least this.
        max_steps: After so many an episode is taken to be one that never ends.
        video: Folder that gets films of the first episodes of each evaluation, in step-N.

    State: when it is due again, the best return and the latest.
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
        if self.best is None or math.isnan(self.best) or score >= self.best:
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

    The policy that was just evaluated is saved beside `path`, loaded into a policy of its own, and plays on fresh
    seeds: a goal reached on the fixed seeds alone may be luck (S6). So each policy is tried once. Only one that is
    confirmed takes the place of what is at `path`, the best policy of the evaluations.

    State: how often a goal was reached, so that the seeds are fresh each time.
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
        bounds: Lower bounds of entries of a result, by name; one that a result lacks is not reached.
        seconds: That the run has been open.

    State: what the last result had of that, so that a run that has ended goes on with larger bounds.

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
