"""`flowrl evaluate` and `flowrl export`: saved policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flowrl.cli.output import echo
from flowrl.cli.parameters import FILE, FOLDER, TRUST, Count, pairs_of, trusted


@click.command()
@click.argument("runs", nargs=-1, required=True, type=FILE, metavar="RUN...")
@click.option("--episodes", type=Count(), default=100, show_default=True, metavar="N", help="Whole episodes to play.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="For the starts.")
@click.option(
    "--deterministic/--stochastic",
    default=None,
    help="Act greedily, or draw and explore as in collecting; by default as eval_deterministic of the run says.",
)
@click.option("--last", is_flag=True, help="The policy at the end of the run, not the best one.")
@click.option("--env", metavar="ENV", help="Replaces the run's environment and its arguments.")
@click.option("--env-arg", "env_args", metavar="KEY=VALUE", multiple=True, help="Keyword argument of ENV.")
@TRUST
@click.option("--max-steps", type=Count(), metavar="N", help="Cut episodes after N steps; by default as in the run.")
@click.option("--video", type=FOLDER, metavar="DIR", help="Record three episodes, as .mp4 files.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Of acting, such as target_return.")
@click.option("--nash-conv", is_flag=True, help="Tell how far from an equilibrium it is, in a game of OpenSpiel.")
@click.option("--plot", type=FILE, metavar="FILE", help="A .png or .svg: draw the table of players of a game.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    runs: tuple[str, ...],
    env_args: tuple[str, ...],
    video: str | None,
    plot: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    trust: bool,
    **options: Any,
) -> None:
    """Play the saved policy of RUN, a run directory, checkpoint or policy file, or zoo:NAME of the zoo.

    RUN:NAME is one of several policies there, as of a league, whose first main agent RUN alone means.

    Prints total return, reward per step, and win rate.

    For several runs, or a folder of them as --seeds writes it, also print the interquartile mean (the mean of fewer
    than 4), with a 95 % bootstrap interval.

    Several with --env GAME, a game for two, play each other: `flowrl evaluate RUN_A RUN_B random --env GAME` prints
    what each gains against each. random, one_ply and mcts (of tic-tac-toe and connect four) and perfect (of
    tic-tac-toe) are players by name.
    """
    from flowrl.storage.files import json_text
    from flowrl.tools.evaluate import evaluate_given

    options |= {"env_args": pairs_of("--env-arg", env_args), "video": None if video is None else Path(video)}
    options |= {"trusted": trusted(trust), "plot": None if plot is None else Path(plot)}
    options["settings"] = pairs_of("--set", settings)
    evaluation = evaluate_given(runs, **options)
    for words in evaluation.left_out:
        echo(f"left out: {words}", err=True)
    echo(json_text(evaluation.values()) if as_json else "\n".join(evaluation.lines()))


@click.command()
@click.argument("run", type=FILE)
@click.option(
    "--out", type=FILE, required=True, metavar="FILE", help="A .pt2 file (torch.export) or an .onnx file (extra onnx)."
)
@click.option("--policy", metavar="NAME", help="Of several policies, the one to export.")
@click.option("--last", is_flag=True, help="The policy at the end of the run, not the best one.")
@TRUST
def export(run: str, out: str, policy: str | None, last: bool, trust: bool) -> None:
    """Write the saved policy of the run directory RUN as a program: observations in, greedy actions out."""
    from flowrl.trainer.loading import load

    trained = load(run, last=last, device="cpu", trusted=trusted(trust))
    (trained if policy is None else trained.of(policy)).policy.export(out)
    click.echo(out)
