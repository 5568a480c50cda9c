"""The plan of a run directory, built again in this process."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from flowrl.engine.plan import Plan
from flowrl.rollout import Workers
from flowrl.runs.config import Configuration, build_config, load_config_file
from flowrl.runs.plan_end import COMMAND, with_ending
from flowrl.runs.progress import Budget
from flowrl.runs.run_info import BUILTIN, counts_of_budgets, plan_text, read_about
from flowrl.tools.inserts import inserted
from flowrl.trainer.plan_file import load_plan_file

log = logging.getLogger("flowrl")


class Reopened(NamedTuple):
    """A plan with the end that `flowrl run` gives it, its workers and its configuration; and the run.json.

    `bounds` are the counts that its budgets had, each of which a result followed: see `Context.bounds`.
    """

    plan: Plan
    workers: Workers
    config: Configuration
    about: Mapping[str, Any]
    bounds: set[tuple[str, float]]


@contextmanager
def reopened(
    run: Path, plan: str | None, change: Callable[[Configuration], Configuration], **bounds: Any
) -> Iterator[Reopened]:
    """Build the plan of a run directory again.

    Args:
        plan: The plan, instead of the file that the run was of.
        change: Changes where it runs, and no result.
        bounds: Those of the run's budget to replace.

    Raises: ConfigError, PlanError: the plan cannot be built any more.
    """
    about, values = read_about(run), load_config_file(run / "config.json")
    plan_file = load_plan_file(_plan(run, about) if plan is None else plan)
    config = change(build_config(plan_file.Config, values))
    workers, built = plan_file.build(config)
    with workers, tempfile.TemporaryDirectory() as elsewhere:
        built = inserted(built, [*map(str, about.get("inserts", ()))])
        stop = attrs.asdict(Budget(**{**about.get("stop", {}), **bounds}))
        complete = with_ending(built, workers, config, COMMAND.site, save=Path(elsewhere) / "policy.pt", **stop)
        yield Reopened(complete, workers, config, about, counts_of_budgets(about, config.clock))


def _plan(run: Path, about: Mapping[str, Any]) -> Path:
    """The plan file of the run as it is now, else the copy in its directory."""
    copy = run / "plan.py"
    source = BUILTIN.resolve() / f"{about['plan']}.py" if about.get("builtin") else Path(about["path"])
    if not source.is_file():
        log.warning("%s is gone: using the copy in the run directory, %s", source, copy)
        return copy
    if plan_text(source) != plan_text(copy):
        log.warning("%s has changed since the run began; as it was: --plan %s", source, copy)
    return source
