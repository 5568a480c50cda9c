"""Evaluation inside a plan, and when to stop."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.context import Context
from flowrl.errors import PlanError
from flowrl.operator import context, operator, state
from flowrl.seeds import SeedTree

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet

Result = dict[str, Any]


def _play(workers: WorkerSet, policy: Any, episodes: int, seed: int, purpose: str) -> float:
    from flowrl.rollout import evaluate, mean_return

    seed = SeedTree(seed).integer(f"evaluation/{purpose}")
    return mean_return(
        evaluate(policy, workers.env, episodes=episodes, seed=seed, env_args=workers.env_args)
    )


@operator
class Evaluate:
    """Adds `eval_return` to the first result of every `every` env steps, and passes all results on.

    It is the mean raw return of `episodes` episodes of the policy in its eval mode, from the same starts each
    time (S6), in environments of their own (S3).

    Args:
        workers: Whose policy, in which environment.
        every: Env steps between evaluations.
        episodes: Played each time.
        seed: The starts follow from it.
        save: File that gets the weights of the best policy so far.

    State: when it evaluated last, the best return.
    """

    workers: WorkerSet
    every: int = attrs.field(validator=attrs.validators.ge(1))
    episodes: int = attrs.field(default=100, validator=attrs.validators.ge(1))
    seed: int = 0
    save: Path | None = None
    context: Context = context()
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    best: float | None = state(default=None)

    def __call__(self, result: Result) -> Result:
        if result["env_steps"] < self.due:
            return result
        self.due = (result["env_steps"] // self.every + 1) * self.every
        score = _play(self.workers, self.workers.policy, self.episodes, self.seed, "fixed")
        if self.best is None or score > self.best:
            self.best = score
            if self.save is not None:
                save_weights(self.workers.policy, self.save)
        return {**result, "eval_return": score, "best_eval_return": self.best}


@operator
class Confirm:
    """Adds `confirmed_return` to results whose `eval_return` reaches a goal.

    It is the mean raw return of the policy saved at `path`, loaded into a policy of its own, on fresh seeds:
    a goal reached on the fixed seeds alone may be luck (S6).

    State: how often it was asked, so that the seeds are fresh each time.
    """

    workers: WorkerSet
    goal: float
    path: Path
    episodes: int = 100
    seed: int = 0
    tries: int = state(default=0)

    def __call__(self, result: Result) -> Result:
        if result.get("eval_return", float("-inf")) < self.goal:
            return result
        self.tries += 1
        policy = load_weights(self.workers, self.path)
        score = _play(self.workers, policy, self.episodes, self.seed, f"fresh-{self.tries}")
        return {**result, "confirmed_return": score}


@operator
class StopWhen:
    """Ends the stream after the first result that reaches one of the bounds.

    Args:
        bounds: Lower bounds of entries of a result, by name; one that a result lacks is not reached.
        seconds: Since the run was opened.

    State: whether it has ended.

    >>> stop = StopWhen({"env_steps": 100})
    >>> [stop({"env_steps": n})["env_steps"] for n in (50, 100)], stop.done
    ([50, 100], True)
    """

    bounds: dict[str, float]
    seconds: float | None = None
    done: bool = state(default=False)
    _opened: float = attrs.field(factory=clock, init=False, repr=False)

    def __call__(self, result: Result) -> Result:
        reached = any(result.get(name) is not None and result[name] >= bound for name, bound in self.bounds.items())
        late = self.seconds is not None and clock() - self._opened >= self.seconds
        self.done = reached or late
        return result


def save_weights(policy: Any, path: Path) -> None:
    """Write a policy's acting weights to a file, whole or not at all."""
    import torch

    part = path.with_name(path.name + ".part")
    torch.save(policy.weights(), part)
    os.replace(part, path)


def load_weights(workers: WorkerSet, path: Path) -> Any:
    """A new policy like the workers', with the weights of a file. Nothing in the file can run code.

    Raises:
        PlanError: there is no such file.
    """
    import torch

    if not path.exists():
        raise PlanError(f"no saved policy at {path}; Evaluate(save=...) writes it")
    policy = workers.new_policy()
    policy.load_weights(torch.load(path, weights_only=True))
    return policy
