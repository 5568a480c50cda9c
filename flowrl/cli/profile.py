"""`flowrl profile` and `flowrl simulate`: where the time of a run goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flowrl.cli.output import echo
from flowrl.cli.parameters import (
    FILE,
    FOLDER,
    Number,
    OfPlan,
    configured,
    pairs_of,
    plan_argument,
    plan_options,
    seconds_of,
)
from flowrl.errors import ConfigError

if TYPE_CHECKING:
    from flowrl.inspect.profile import Profile

#: Seconds for which `flowrl profile` trains a plan.
PROFILE_SECONDS = 20.0


@click.command(cls=OfPlan)
@plan_argument()
@plan_options
@click.option("--seconds", type=Number(above=0), metavar="S", help="How long PLAN trains; 20 by default.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Run directory of PLAN; otherwise a new one in runs/.")
@click.option("--trace", type=FILE, metavar="FILE", help="Write what PLAN did when, for ui.perfetto.dev, to a .json.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def profile(
    ctx: click.Context,
    /,
    plan: str,
    seconds: float | None,
    out: str | None,
    trace: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell where the time goes: train PLAN for some seconds, or read what the run directory PLAN has written.

    Prints the share of the time of each thread and process that each operator was busy, and what they waited for; what
    bounds the pace; and how much faster the run would be after a change.
    """
    from flowrl.cli.run import RunRequest
    from flowrl.storage.files import json_text

    folder = Path(plan)
    if not folder.is_dir():
        request = RunRequest.of(ctx, plan, out=out, **options)
        seen: dict[str, Any] = {"span": seconds or PROFILE_SECONDS, "trace": None if trace is None else Path(trace)}
        if code := request.keep(ctx, quiet=True, **seen):
            ctx.exit(code)
        folder = request.directory.path
    else:
        _check_of_run(ctx, plan, "as_json", "trust")
    found = _profile_of(folder)
    echo(json_text(found.summary()) if as_json else "\n".join(found.lines()))


@click.command(cls=OfPlan)
@plan_argument()
@plan_options
@click.option("--cost", "costs", metavar="OPERATOR=S", multiple=True, help="Its seconds per item, not those measured.")
@click.option(
    "--latency", type=Number(above=0), metavar="S", help="Seconds of a request beside its work; 0.002 by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def simulate(
    ctx: click.Context,
    /,
    plan: str,
    num_workers: int | None,
    costs: tuple[str, ...],
    latency: float | None,
    as_json: bool,
    inserts: tuple[str, ...],
    **options: Any,
) -> None:
    """Tell what PLAN would do with --workers N, which need not be here.

    Measures PLAN in this process for some seconds, or reads what the run directory PLAN has written, and prints, by the
    model of flowrl profile: steps per second, how full queues are, how old rows are when they are learned from, and
    what bounds the pace. Each worker has a core of its own.
    """
    from flowrl.storage.files import json_text
    from flowrl.tools.simulate import MEASURED, measured, simulate
    from flowrl.trainer.plan_file import load_plan_file

    if num_workers is None or num_workers < 0:
        given = "" if num_workers is None else f" {num_workers}"
        raise ConfigError(f"--workers{given}: expected how many workers to simulate, 0 or more")
    seconds = {name: seconds_of(name, value) for name, value in pairs_of("--cost", costs).items()}
    if Path(plan).is_dir():
        _check_of_run(ctx, plan, "as_json", "trust", "num_workers", "costs", "latency")
        found = _profile_of(Path(plan))
    else:
        if inserts:
            raise ConfigError(f"--insert {inserts[0]}: simulate takes the plan as it is; put the operator into a file")
        plan_file = load_plan_file(plan)
        config = configured(plan_file, {}, num_workers=None, **options)
        found = measured(plan_file, config, MEASURED)
    there = simulate(found, num_workers, latency, seconds)
    echo(json_text(there.values()) if as_json else "\n".join(there.lines()))


def _profile_of(folder: Path) -> Profile:
    """The profile that a run has written."""
    from flowrl.inspect.profile import Profile
    from flowrl.runs.directory import PROFILE
    from flowrl.storage.files import read_json

    try:
        return Profile.of(read_json(folder / PROFILE))
    except FileNotFoundError:
        raise ConfigError(f"{folder} has no {PROFILE}: a run of flowrl writes it once a second") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / PROFILE} cannot be read: {error}") from error


def _check_of_run(ctx: click.Context, plan: str, *others: str) -> None:
    """Refuse the options of a plan, but for others, where PLAN is the directory of a run."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    of_plans = given - {"plan", *others}
    if extra := [param.opts[0] for param in ctx.command.params if param.name in of_plans]:
        raise ConfigError(f"{plan} is the directory of a run, which has its settings: leave {', '.join(extra)} out")
