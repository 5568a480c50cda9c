"""`flowrl record` and `flowrl show`: experience that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flowrl.cli.output import echo
from flowrl.cli.parameters import FILE, FOLDER, TRUST, Count, pairs_of, trusted


@click.command()
@click.argument("run", type=FILE, required=False)
@click.option("--out", type=FOLDER, required=True, metavar="PATH", help="New folder for the dataset.")
@click.option("--policy", metavar="NAME", help="Instead of RUN: random, or module:function of observations [N, ...].")
@click.option("--episodes", type=Count(), metavar="N", help="Whole episodes to record, each a batch.")
@click.option("--steps", type=Count(), metavar="N", help="Env steps to record instead, as fragments.")
@click.option("--collect", is_flag=True, help="Explore, as in training; by default act as in evaluation.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="For the starts.")
@click.option("--last", is_flag=True, help="The policy at the end of the run, not the best one.")
@click.option("--env", metavar="ENV", help="Replaces the run's environment and its arguments.")
@click.option("--env-arg", "env_args", metavar="KEY=VALUE", multiple=True, help="Keyword argument of ENV.")
@TRUST
def record(run: str | None, out: str, env_args: tuple[str, ...], trust: bool, **options: Any) -> None:
    """Record experience of the saved policy of the run directory RUN, or of --policy, as a dataset for FromDataset.

    If episodes may never end, use --steps.
    """
    from flowrl.tools.record import record_run

    where = None if run is None else Path(run)
    options |= {"env_args": pairs_of("--env-arg", env_args), "trusted": trusted(trust)}
    echo(record_run(where, Path(out), **options).line())


@click.command()
@click.argument("run", type=FILE)
@click.option(
    "--row", "slot", type=click.IntRange(min=0), metavar="N", help="Its place, the column `index` of samples."
)
@click.option("--buffer", metavar="NAME", help="Of several replay buffers, the one to look into.")
@click.option("--again", is_flag=True, help="Play its episode again, and compare the observations.")
@click.option("--film", type=FILE, metavar="FILE", help="An .mp4 file to write of that.")
@click.option("--account", is_flag=True, help="Show instead how many rows were stored, trained on, and lost.")
@TRUST
def show(
    run: str, slot: int | None, buffer: str | None, again: bool, film: str | None, account: bool, trust: bool
) -> None:
    """Show where a row that RUN has learned from came from: worker, environment, seed, episode, step, weights.

    By default it is the newest row in the replay buffer of the newest checkpoint.
    """
    from flowrl.runs.row_account import RowAccount
    from flowrl.trainer.stored_row import stored_row

    if account:
        if slot is not None or buffer or again or film:
            raise click.UsageError("--account is of the whole run: leave out --row, --buffer, --again and --film")
        echo("\n".join(RowAccount.of(run).lines()))
        return
    row = stored_row(run, slot, buffer=buffer, trusted=trusted(trust))
    echo("\n".join(row.lines()))
    if again or film is not None:
        steps = row.play_again(film)
        click.echo(f"played again: {steps} steps, with the stored observations{f', in {film}' if film else ''}")
