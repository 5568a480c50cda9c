"""The end of a plan: evaluation, confirmation of a goal, and the test whether to stop."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.graph import emits, graph, paths
from flowrl.engine.operator import describe
from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError, PlanError, did_you_mean
from flowrl.runs.config import Configuration

if TYPE_CHECKING:
    from flowrl.rollout import Workers
    from flowrl.rollout.evaluation import Goal
    from flowrl.runs.progress import Budget


@attrs.frozen
class Origin:
    """Who keeps a run: what messages name as the origin of the operators at its end, and how to go on with it."""

    site: str
    ends: bool  #: whether budgets end the plan; a Trainer only pulls it no further
    way_on: Callable[[Path], str]


COMMAND = Origin("flowrl run", True, lambda run: f"flowrl run --resume {shlex.quote(str(run))}")
TRAINER = Origin("Trainer(out=...)", False, lambda run: f"flowrl.resume({str(run)!r})")
ORIGINS = COMMAND.site, TRAINER.site
#: Paths of operators that `with_ending` appends, and that keep a state.
END = re.compile(r"(Evaluate|Confirm|StopWhen)(-\d+)?")

#: Env steps between evaluations if neither the configuration nor a budget in steps determines them.
EVAL_EVERY = 2_500


def with_ending(
    plan: Plan,
    workers: Workers,
    config: Configuration,
    site: str,
    *,
    save: Path | None = None,
    goal: Goal | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    updates: int | None = None,
) -> Plan:
    """Append evaluation and stopping operators to a plan, as far as the arguments ask for them.

    Args:
        workers: Their policy is evaluated every `config.eval_every` steps of the plan's clock; None or 0: never.
        site: Shown as the operators' origin in messages, in place of a file and line.
        save: File for the best policy, if the policy has weights.
        goal: Mean return of an evaluation, or those of agents by name, that end the plan once they are confirmed;
            it needs `save`.
        steps, seconds, updates: Budgets that end the plan too.
    """
    from flowrl.operators import Confirm, Evaluate, StopWhen
    from flowrl.policies.protocols import HasWeights
    from flowrl.runs.progress import Budget

    if isinstance(goal, Mapping):
        _check_agents(goal, workers)

    def added(op: Any, option: str = "") -> Plan:
        return attrs.evolve(plan.for_each(op), site=site + option)

    if config.eval_every:
        kept = save if isinstance(workers.policy, HasWeights) else None
        plan = added(Evaluate(workers, save=kept, goal=goal, **config.evaluation))
    bounds: dict[str, float] = {}
    if goal is not None:
        assert save is not None, "a goal is confirmed with the saved policy"
        played = {key: config.evaluation[key] for key in ("seed", "max_steps", "deterministic")}
        played["episodes"] = config.goal_episodes
        plan = added(Confirm(workers, goal=goal, path=save, within=steps or math.inf, **played), " --stop-return")
    if steps is not None:
        bounds[config.clock] = steps
    if updates is not None:
        bounds["updates"] = min(updates, bounds.get("updates", updates))  # an offline plan's steps are updates
    if bounds or seconds is not None or goal is not None:
        plan = added(StopWhen(bounds, seconds=seconds, goal=Budget(goal).wanted), " --stop-...")
    return plan


def plan_hash(plan: Plan) -> str:
    """A hash of what an algorithm consists of: the operators by path and kind, and how they are joined.

    Not of taps, nor of the end that `with_ending` appends, which change nothing before them.
    """
    by_id = paths(plan)
    ends = {id(node) for node in graph(plan) if node.site.startswith(ORIGINS) and END.fullmatch(by_id[id(node)])}
    lines = [
        f"{by_id[id(node)]} {node.kind} {[by_id[id(emits(each))] for each in node.inputs]}"
        for node in graph(plan)
        if node.kind != "tap" and id(node) not in ends
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _check_agents(goal: Mapping[str, float], workers: Workers) -> None:
    """Raise unless the environment of evaluations is a game of these agents, or of policies that change sides there."""
    environments = workers.evaluation_env
    seating = environments.look(workers.num_eval_envs).seating
    games = workers.evaluated(workers.policy)
    changing = [name for playing, agents in games if callable(agents) for name in playing]
    for name, least in goal.items():
        if seating is None:
            raise ConfigError(f"--stop-return {name}={least:g}: {environments} has one agent: give the number alone")
        known = list(dict.fromkeys([*seating.agents, *changing]))
        if name not in known:
            raise ConfigError(f"--stop-return {name}={least:g}: no such agent: {did_you_mean(name, known)}")


def eval_every_of(config: Configuration, budget: Budget) -> int | None:
    """Env steps, or updates, between evaluations; None for no evaluation."""
    from flowrl.runs.progress import goal_text

    every = config.eval_every
    if every == 0 and budget.goal is not None:
        raise ConfigError(
            f"eval_every=0: --stop-return {goal_text(budget.goal)} needs evaluations; leave eval_every out"
        )
    if every is None and budget.goal is None and config.clock != "env_steps":
        return None  # no environment is created, unless the user asks for one
    if every is None and budget.steps is not None:
        every = max(1, budget.steps // 10)
    if every is None and (budget.goal is not None or budget.seconds is not None or budget.updates is not None):
        every = EVAL_EVERY
    if budget.goal is not None and budget.steps is not None and every is not None and every > budget.steps:
        raise ConfigError(f"eval_every={every} exceeds --stop-steps {budget.steps}: the goal would never be tested")
    return every


def own_eval_every(plan: Plan, workers: Workers, config: Configuration, budget: Budget) -> int | None:
    """As `eval_every_of`, but None where the plan evaluates itself, and where nobody asked and nothing can be made."""
    from flowrl.operators import Evaluate

    every = eval_every_of(config, budget)
    if every is None or budget.goal is not None:
        return every
    if any(isinstance(node.op, Evaluate) for node in graph(plan)):
        return None
    return None if config.eval_every is None and workers.evaluation_env.is_one_object else every


def for_budget(config: Configuration, budget: Budget) -> Configuration:
    """The configuration of a plan that is yet to be built: when it evaluates, and reports often enough for that."""
    every = eval_every_of(config, budget)
    bounds = [bound for bound in (every, budget.steps) if bound]
    reports = config.to_dict().get("report_every")
    more: dict[str, Any] = {"report_every": min([reports, *bounds])} if isinstance(reports, int) else {}
    return attrs.evolve(config, eval_every=every, **more)


def as_result(item: Any, plan: Plan) -> Mapping[str, Any]:
    """Check that an item of a plan is a result, and return it.

    Raises:
        PlanError: the item is no mapping.
    """
    if not isinstance(item, Mapping):
        raise PlanError(f"a plan's items must be result dicts, got {describe(item)} from {plan.name}")
    return item
