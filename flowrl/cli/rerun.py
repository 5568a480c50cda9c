"""`flowrl rerun`, `verify` and `replay-item`: runs that go again."""

from __future__ import annotations

import click

from flowrl.cli.parameters import FILE, FOLDER, Number


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--to", metavar="ITEM", help="Stop there: N for result N, or OPERATOR:N for item N of an operator.")
@click.option("--break", "breaks", metavar="OPERATOR", multiple=True, help="Stop at its items, at a prompt.")
@click.option("--plan", type=FILE, metavar="FILE", help="The plan, if not the file that the run was of.")
@click.pass_context
def rerun(ctx: click.Context, /, run: str, to: str | None, breaks: tuple[str, ...], plan: str | None) -> None:
    """Run RUN again as its journal says, bit for bit, in this process and without Ray.

    RUN is the directory, which you trust, of a run with --journal. Every item is compared with the journal, and every
    result and the parameters with what RUN has published. With --to and --break, the items from there on stop at the
    prompt of flowrl run --break.

    Exits with 0 if all is the same, with 1 if the run departs, whose operator and item it names, and 2 for bad input.
    """
    from flowrl.tools.rerun import rerun

    ctx.exit(rerun(run, plan, to=to, breaks=breaks))


@click.command()
@click.argument("run", type=FOLDER)
@click.option(
    "--tolerance",
    type=Number(above=0),
    default=0.05,
    show_default=True,
    metavar="R",
    help="Share by which returns may differ, with other versions or another processor alone.",
)
@click.option("--plan", type=FILE, metavar="FILE", help="The plan, if not the file that the run was of.")
@click.pass_context
def verify(ctx: click.Context, /, run: str, tolerance: float, plan: str | None) -> None:
    """Simulate RUN again, from its plan, settings and seed, and say whether the numbers that it published come out.

    RUN is a run directory that you trust. A run that depends on the clock, as with several workers, needs its journal.
    With the versions and the kind of processor of RUN all results and parameters must be the same to the last bit; with
    others the counters at the end, and returns within the tolerance.

    Exits with 0 if they come out, 1 if not, and 2 for bad input.
    """
    from flowrl.tools.rerun import verify

    ctx.exit(verify(run, plan, tolerance=tolerance))


@click.command(name="replay-item")
@click.argument("run", type=FILE)
@click.option("--plan", type=FILE, metavar="FILE", help="The plan, if not the file that the run was of.")
@click.option("--no-debugger", is_flag=True, help="Print the traceback, and end.")
@click.pass_context
def replay_item(ctx: click.Context, /, run: str, plan: str | None, no_debugger: bool) -> None:
    """Give the operator at which RUN failed its item again, and stop at the failing line in pdb.

    RUN is a run directory that you trust, or failed_item in it. It runs in this process, without Ray, from the state
    that the run kept. A source has no item: it runs from the last checkpoint to where it failed.

    Exits with 1 if the operator fails, 0 if it takes the item, and 2 for bad input.
    """
    from flowrl.tools.post_mortem import replay_item

    ctx.exit(replay_item(run, plan, debugger=not no_debugger))
