"""`flowrl explain`, `check`, `draw`, `settings` and `list`: plans that do not run."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from flowrl.cli.output import echo
from flowrl.cli.parameters import FILE, OfPlan, configured, plan_argument, plan_options, settings_of
from flowrl.errors import PlanError

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan


@click.command(cls=OfPlan)
@plan_argument()
@plan_options
def explain(plan: str, **options: Any) -> None:
    """Show PLAN as a tree, and what the network of its policy is, without running it."""
    from flowrl.inspect.check import schemas_of
    from flowrl.inspect.explain import explain

    built, networks = _built(plan, **options)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    echo("\n".join([explain(built, columns=columns, schemas=schemas_of), *networks]))


@click.command(cls=OfPlan)
@plan_argument()
@plan_options
def check(plan: str, **options: Any) -> None:
    """Show PLAN with the items on every edge, and all its problems, without running it.

    Exits with 2 if there is a problem.
    """
    from flowrl.inspect.check import examine, explain_checked

    built, _ = _built(plan, **options)
    findings = examine(built)
    echo(explain_checked(built, findings))
    if findings.problems:
        raise PlanError("\n".join(findings.problems))
    click.echo("ok")


@click.command(cls=OfPlan)
@plan_argument()
@plan_options
@click.argument("file", type=FILE)
def draw(plan: str, file: str, **options: Any) -> None:
    """Draw PLAN to FILE, an .svg picture or .mmd text for Mermaid, without running it."""
    _built(plan, **options)[0].draw(file)


@click.command()
@plan_argument()
def settings(plan: str) -> None:
    """Show the settings of PLAN, the name of a built-in plan or a file: for --set, --config or Python.

    Lists the type, default, valid values and meaning of each setting; those of the plan and its policy come first,
    then those of all plans.
    """
    click.echo(settings_of(plan))


@click.command(name="list")
def list_() -> None:
    """List the built-in plans."""
    from flowrl.trainer.plan_file import builtin_plans

    plans = builtin_plans()
    width = max(map(len, plans), default=0)
    for name, doc in plans.items():
        click.echo(f"{name:<{width}}  {doc}")


def _built(plan: str, inserts: tuple[str, ...], **options: Any) -> tuple[Plan, list[str]]:
    """Build a plan for inspection only; and what its networks are, in a line each."""
    from flowrl.tools.inserts import inserted
    from flowrl.trainer.plan_file import load_plan_file

    plan_file = load_plan_file(plan)
    workers, built = plan_file.build(configured(plan_file, {}, **options))
    networks = workers.networks
    workers.close()
    return inserted(built, inserts), networks
