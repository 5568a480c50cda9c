"""`flowrl autotune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flowrl.cli.output import echo
from flowrl.cli.parameters import FILE, Number, OfPlan, configured, plan_argument, plan_options
from flowrl.errors import ConfigError


@click.command(cls=OfPlan)
@plan_argument()
@plan_options
@click.option(
    "--allow-inexact", is_flag=True, help="Also try what changes the last bits or the order of rows, and say so."
)
@click.option("--seconds", type=Number(above=0), metavar="S", help="For all measurements; at most 60, the default.")
@click.option("--out", type=FILE, metavar="FILE", help="A .json file to write; by default PLAN.tuned.json.")
def autotune(
    plan: str, inserts: tuple[str, ...], allow_inexact: bool, seconds: float | None, out: str | None, **options: Any
) -> None:
    """Find the fastest settings of PLAN on this machine that learn the same, by short runs.

    Tries the manager of environments and its processes, workers, and prefetch, as far as parameters stay equal to the
    last bit. Prints what was tried and why the choice is the fastest, and writes FILE, for
    flowrl run PLAN --config FILE. It has the settings that are given here, too.
    """
    import attrs

    from flowrl.runs.config import default_of
    from flowrl.storage.files import write_json
    from flowrl.tools.autotune import MOST_SECONDS, Tuner
    from flowrl.trainer.plan_file import load_plan_file

    file = Path(f"{Path(plan).stem}.tuned.json" if out is None else out)
    if file.suffix != ".json" or not file.parent.is_dir():
        raise ConfigError(f"--out {file}: expected a .json file in a folder that exists")
    if (most := seconds or MOST_SECONDS) > MOST_SECONDS:
        raise ConfigError(f"--seconds {most:g}: a calibration takes at most {MOST_SECONDS:g} s")
    if inserts:
        raise ConfigError(f"--insert {inserts[0]}: autotune runs the plan as it is; put the operator into a plan file")
    plan_file = load_plan_file(plan)
    tuner = Tuner(plan_file, configured(plan_file, {}, **options), allow_inexact, most)
    tuner.run()
    defaults = {field.name: default_of(field) for field in attrs.fields(plan_file.Config)}
    chosen = tuner.chosen.to_dict()
    echo("\n".join(tuner.lines()))
    try:
        write_json(file, {name: value for name, value in chosen.items() if value != defaults[name]})
    except OSError as error:
        raise ConfigError(f"--out {file}: {error.strerror or error}") from error
    echo(f"\nflowrl run {plan} --config {file}")
