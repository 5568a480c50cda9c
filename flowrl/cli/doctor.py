"""`flowrl doctor`."""

from __future__ import annotations

from typing import Any

import click

from flowrl.cli.output import echo
from flowrl.cli.parameters import Count, Number, pairs_of


@click.command()
@click.argument("env")
@click.option("--env-arg", "env_args", metavar="KEY=VALUE", multiple=True, help="Keyword argument of ENV.")
@click.option("--wrapper", "wrappers", metavar="NAME", multiple=True, help="As NAME or NAME(ARGS), innermost first.")
@click.option(
    "--envs", "num_envs", type=Count(10_000), default=8, show_default=True, metavar="N", help="Number per worker."
)
@click.option("--steps", type=Count(), default=1_000, show_default=True, metavar="N", help="Steps per check, at most.")
@click.option(
    "--timeout", type=Number(above=0), default=30, show_default=True, metavar="S", help="Seconds to wait for an answer."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, /, env: str, env_args: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Examine the environment ENV, and suggest a manager for it from measured times.

    Exits with 1 if there is a problem, with 2 if there is no such environment.
    """
    from flowrl.storage.files import json_text
    from flowrl.tools.doctor import diagnose

    diagnosis = diagnose(env, pairs_of("--env-arg", env_args), **options)
    echo(json_text(diagnosis.values()) if as_json else "\n".join(diagnosis.lines()))
    ctx.exit(1 if diagnosis.problems else 0)
