"""`flowrl plot` and `flowrl ui`: what runs have written."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from flowrl.cli.output import echo
from flowrl.cli.parameters import FILE, FOLDER, scales_of


@click.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN...")
@click.option("--x", default="env_steps", show_default=True, metavar="KEY", help="env_steps, seconds, updates ...")
@click.option("--y", default="episode_return", show_default=True, metavar="KEY", help="Any numeric key of the results.")
@click.option("--out", type=FILE, metavar="FILE", help="A .png or .svg; by default both, in the first RUN.")
@click.option("--profile", is_flag=True, help="Draw performance profiles, and print tables.")
@click.option(
    "--scale", "scales", metavar="ENV=LOW,HIGH", multiple=True, help="Of a profile: the scores that become 0 and 1."
)
@click.pass_context
def plot(
    ctx: click.Context,
    runs: tuple[str, ...],
    x: str,
    y: str,
    out: str | None,
    profile: bool,
    scales: tuple[str, ...],
) -> None:
    """Draw learning curves of run directories and folders of them.

    Runs of one plan and configuration share a curve over their seeds: the interquartile mean (the mean of fewer
    than 4) with a 95 % bootstrap interval, as far as the shortest run goes, and a thin line for each run.

    With --profile, the score of a run is its last --y. Draw for each algorithm the share of runs that score more than
    a threshold, and print interquartile means, the bounds of single runs (a tolerance interval), and how probable it is
    that one algorithm scores more than another. Runs of several environments need a --scale for each.
    """
    from flowrl.tools.plot import plot, plot_profile
    from flowrl.tools.scores import markdown

    if scales and not profile:
        raise click.UsageError("--scale is of --profile")
    if profile and ctx.get_parameter_source("x") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--x is of curves: a profile is of the last --y of each run")
    paths, file = [Path(run) for run in runs], None if out is None else Path(out)
    if profile:
        files, left_out, scores = plot_profile(paths, y=y, scale=scales_of(scales), out=file)
        echo("\n".join(map(markdown, scores.tables())))
    else:
        files, left_out = plot(paths, x=x, y=y, out=file)
    for words in left_out:
        echo(f"left out: {words}", err=True)
    for written in files:
        click.echo(written)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN...")
@click.option("--port", type=click.IntRange(0, 65535), default=7007, show_default=True, metavar="N", help="0: any.")
def ui(runs: tuple[str, ...], port: int) -> None:
    """Show run directories and folders of them on a local page, also while they go.

    The page is for this machine alone. Needs nothing of the running processes: it reads what they write.
    """
    from flowrl.tools.ui import serve

    serve([Path(run) for run in runs], port, echo)
