"""The command `flowrl`. Commands import heavy packages only when they run, so that help answers at once."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowrl._version import __version__
from flowrl.cli.output import fill_closed, in_a_line, lasting, was_lost
from flowrl.errors import ConfigError, FlowError, PlanError, notes_of, printable

if TYPE_CHECKING:
    from flowrl.cli.progress import Budget
    from flowrl.cli.resume import EarlierRun
    from flowrl.engine.plan import Plan
    from flowrl.trainer.config import Configuration
    from flowrl.trainer.plan_file import PlanFile
    from flowrl.trainer.trust import Trust

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Env steps between evaluations if neither the configuration nor a budget in steps determines them.
EVAL_EVERY = 2_500

#: Of the commands that read files which others may have written.
TRUST = click.option("--trust", is_flag=True, help="Run code that RUN or FILE names; by default asks at a terminal.")

#: Options of the commands that build a plan; they override its configuration.
PLAN_OPTIONS = (
    click.option("--env", metavar="ENV", help="Environment: a gymnasium id, module:factory, gym:ID, envpool:ID ..."),
    click.option(
        "--env-arg", "env_args", metavar="KEY=VALUE", multiple=True, help="Keyword argument of the environment."
    ),
    click.option(
        "--wrapper", "wrappers", metavar="NAME", multiple=True, help="As NAME or NAME(ARGS), innermost first."
    ),
    click.option("--env-manager", metavar="KIND", help="local, subprocess, async, thread or vector."),
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any key of the plan's Config."),
    click.option("--workers", "num_workers", type=int, metavar="N", help="Processes that sample; 0: this one."),
    click.option("--address", metavar="RAY", help="Ray cluster to run on: host:port, ray://host:port or auto."),
    click.option("--envs", "envs_per_worker", type=int, metavar="N", help="Environments per worker."),
    click.option("--seed", type=int, metavar="N", help="Root of all random streams."),
    click.option("--config", "config_file", metavar="FILE", help="Values from a .json or .toml file."),
    TRUST,
)


class Count(click.ParamType[int]):
    """A positive whole number, also written as 5e4 or 50_000."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
            if number == int(number) and number >= 1:
                return int(number)
        except (ValueError, OverflowError):
            pass
        self.fail(f"{value!r} is not a whole number of at least 1.", param, ctx)


class Number(click.ParamType[float]):
    """A finite number above a bound."""

    name = "number"

    def __init__(self, above: float = -math.inf) -> None:
        self.above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            if self.above < float(value) < math.inf:
                return float(value)
        except ValueError:
            pass
        self.fail(
            f"{value!r} is not a finite number" + (f" above {self.above:g}." if self.above == 0 else "."), param, ctx
        )


class BadInput(click.ClickException):
    """A request that cannot be carried out; reported in one message, before any work."""

    exit_code = 2


class _Commands(click.Group):
    """The group of commands: errors in the user's input exit with code 2, Ctrl-C with 130."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        command = ["flowrl", *args]
        context = super().make_context(info_name, args, parent, **extra)
        context.meta["flowrl.command"] = command
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlowError as error:
            raise BadInput(printable("\n".join([str(error), *notes_of(error)]))) from error
        except (OSError, MemoryError, RuntimeError) as error:
            if (words := in_a_line(error)) is None:
                raise
            raise click.ClickException(printable(words)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


def _plan_options(command: _Command) -> _Command:
    for option in reversed(PLAN_OPTIONS):
        command = option(command)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flowrl")
def cli() -> None:
    """Reinforcement learning as lazy dataflow plans."""


@cli.command()
@click.argument("plan", required=False)
@_plan_options
@click.option(
    "--stop-return", "goal", type=Number(), metavar="R", help="Goal: mean return of an evaluation, confirmed."
)
@click.option(
    "--stop-steps",
    "steps",
    type=Count(),
    metavar="N",
    help="Budget in env steps, of offline plans in updates; tested at results.",
)
@click.option(
    "--stop-seconds",
    "seconds",
    type=Number(above=0),
    metavar="S",
    help="Budget in seconds; tested at results, or 30 s later.",
)
@click.option("--tap", "taps", metavar="NODE", multiple=True, help="Print the items of an operator (see explain).")
@click.option("--break", "breaks", metavar="NODE", multiple=True, help="Stop at the items of an operator, at a prompt.")
@click.option("--debug", is_flag=True, help="Run in this process, one item at a time, and check every item's schema.")
@click.option("--out", metavar="DIR", help="Run directory; otherwise a new one in runs/.")
@click.option("--sink", "sinks", metavar="NAME", multiple=True, help="Also write results as: csv, tensorboard.")
@click.option(
    "--resume", metavar="RUN", help="Go on with a run that you trust, or from RUN/checkpoints/STEP; needs no PLAN."
)
@click.option("--quiet", is_flag=True, help="Print only how the run ended.")
@click.option("--seeds", type=Count(), metavar="N", help="Run N times, with seeds from --seed on.")
@click.option("--jobs", type=Count(), metavar="N", help="Number of --seeds that run at a time.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    plan: str | None,
    goal: float | None,
    steps: int | None,
    seconds: float | None,
    taps: tuple[str, ...],
    breaks: tuple[str, ...],
    debug: bool,
    out: str | None,
    resume: str | None,
    sinks: tuple[str, ...],
    quiet: bool,
    seeds: int | None,
    jobs: int | None,
    **options: Any,
) -> None:
    """Run PLAN, the name of a built-in plan or a file, or go on with a run.

    A resumed run keeps its plan, settings and --stop options, and goes on bit for bit in its directory. You may change
    the --stop options, and eval_every, eval_episodes, eval_max_steps and checkpoint_every, which change no parameter.
    Resuming runs the code that RUN names and holds.

    Exits with 0 when the goal was reached or none was set, 1 when the run failed, 2 for bad input, 3 when the
    budget ended before the goal, and 130 after Ctrl-C.
    """
    import attrs

    from flowrl.cli.directory import RunDirectory, config_text
    from flowrl.cli.progress import Budget
    from flowrl.cli.session import CHECKPOINT_EVERY, Session
    from flowrl.cli.sinks import check_sinks, sinks_in
    from flowrl.policies.protocols import HasWeights
    from flowrl.policies.weights import save_weights
    from flowrl.trainer.config import build_config
    from flowrl.trainer.plan_end import with_end
    from flowrl.trainer.plan_file import load_plan_file

    budget = Budget(goal, steps, seconds)
    earlier = _earlier(plan, resume, out)
    if earlier is None:
        assert plan is not None
        plan_file = load_plan_file(plan)
        config = _configured(plan_file, {}, **options)
    else:
        plan_file = earlier.plan_file(plan)
        config = _configured(plan_file, earlier.values, **options)
        earlier.check(config, build_config(plan_file.Config, earlier.values))
        budget = earlier.budget(budget)  # options that are not set keep their earlier values
    config = attrs.evolve(config, eval_every=_eval_every(config, budget))
    config = _reporting(config, budget)
    if debug or breaks:  # other processes have no terminal, and errors are easier to follow in one
        config = attrs.evolve(config, num_workers=0)
    if earlier is None:
        directory = RunDirectory.choose(plan_file, config, out, sinks)
    else:
        check_sinks(sinks)
        directory = RunDirectory(earlier.path, plan_file, config_text(config), [*sinks_in(earlier.path), *sinks])
    if seeds is not None:
        from flowrl.cli.seeds import SeedsRun, arguments_of

        if earlier is not None:
            raise ConfigError("--seeds begins new runs, --resume goes on with one: use only one of them")
        arguments = arguments_of(ctx, without=("seeds", "jobs", "seed", "out", "quiet"))
        each = range(config.seed, config.seed + seeds)
        try:
            directory.claim()
            ctx.exit(SeedsRun(arguments, each, directory.path, jobs or 1, quiet).run())
        finally:
            directory.close()
    if jobs is not None:
        raise ConfigError(f"--jobs {jobs} is the number of --seeds that run at a time; add --seeds N")
    workers, built = plan_file.build(config)
    try:
        if earlier is None:
            directory.claim()  # undone if the plan cannot run
        else:
            directory.lock()
        best = directory.path / "policy.pt"
        complete = with_end(built, workers, config, "flowrl run", save=best, **attrs.asdict(budget))
        complete.check()
        complete = _watched(complete, taps, breaks, debug=debug)
        session = Session(
            plan=complete,
            seed=config.seed,
            title=f"{plan_file.name} {config.env or config['data']} seed {config.seed}",
            directory=directory,
            budget=budget,
            save=partial(save_weights, workers.policy) if isinstance(workers.policy, HasWeights) else None,
            checkpoint_every=config.checkpoint_every or config.eval_every or CHECKPOINT_EVERY,
            earlier=earlier,
            counter=config.clock,
            workers=workers.about(),
        )
        code = session.run(ctx.meta["flowrl.command"], quiet=quiet)
    finally:
        workers.close()
        directory.close()
    ctx.exit(code)


@cli.command()
@click.argument("plan")
@_plan_options
def explain(plan: str, **options: Any) -> None:
    """Show PLAN as a tree, without running it."""
    _show(_built(plan, **options).explain())


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--episodes", type=Count(), default=100, show_default=True, metavar="N", help="Whole episodes to play.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="For the starts.")
@click.option("--last", is_flag=True, help="The policy at the end of the run, not the best one.")
@click.option("--env", metavar="ENV", help="Replaces the run's environment and its arguments.")
@click.option("--env-arg", "env_args", metavar="KEY=VALUE", multiple=True, help="Keyword argument of ENV.")
@TRUST
@click.option("--max-steps", type=Count(), metavar="N", help="Cut episodes after N steps; by default as in the run.")
@click.option("--video", metavar="DIR", help="Film the first three episodes of one environment, as .mp4 files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    runs: tuple[str, ...], env_args: tuple[str, ...], video: str | None, as_json: bool, trust: bool, **options: Any
) -> None:
    """Play the saved policy of the run directory RUN: total return, reward per step, win rate.

    For several runs, or a folder of them as --seeds writes it, also print the interquartile mean (the mean of fewer
    than 4), with a 95 % bootstrap interval.
    """
    from flowrl.cli.evaluate import evaluate_given
    from flowrl.storage.files import json_text

    options |= {"env_args": _pairs("--env-arg", env_args), "video": None if video is None else Path(video)}
    options["trusted"] = _trusted(trust)
    evaluation = evaluate_given([Path(run) for run in runs], **options)
    for words in evaluation.left_out:
        _show(f"left out: {words}", err=True)
    _show(json_text(evaluation.values()) if as_json else "\n".join(evaluation.lines()))


@cli.command()
@click.argument("run", required=False)
@click.option("--out", required=True, metavar="PATH", help="New folder for the dataset.")
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
    from flowrl.cli.record import record_run

    where = None if run is None else Path(run)
    options |= {"env_args": _pairs("--env-arg", env_args), "trusted": _trusted(trust)}
    _show(record_run(where, Path(out), **options).line())


@cli.command()
@click.argument("run")
@click.option("--out", required=True, metavar="FILE", help="A .pt2 file (torch.export) or an .onnx file (extra onnx).")
@click.option("--last", is_flag=True, help="The policy at the end of the run, not the best one.")
@TRUST
def export(run: str, out: str, last: bool, trust: bool) -> None:
    """Write the saved policy of the run directory RUN as a program: observations in, greedy actions out."""
    from flowrl.trainer.loading import load

    load(run, last=last, device="cpu", trusted=_trusted(trust)).policy.export(out)
    click.echo(out)


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--x", default="env_steps", show_default=True, metavar="KEY", help="env_steps, seconds, updates ...")
@click.option("--y", default="episode_return", show_default=True, metavar="KEY", help="Any numeric key of the results.")
@click.option("--out", metavar="FILE", help="A .png or .svg; by default curve.png and curve.svg in the first RUN.")
def plot(runs: tuple[str, ...], x: str, y: str, out: str | None) -> None:
    """Draw learning curves of run directories and folders of them.

    Runs of one plan and configuration share a curve over their seeds: the interquartile mean (the mean of fewer
    than 4) with a 95 % bootstrap interval, as far as the shortest run goes, and a thin line for each run.
    """
    from flowrl.cli.plot import plot

    files, left_out = plot([Path(run) for run in runs], x=x, y=y, out=None if out is None else Path(out))
    for words in left_out:
        _show(f"left out: {words}", err=True)
    for file in files:
        click.echo(file)


@cli.command()
@click.argument("plan")
@_plan_options
def check(plan: str, **options: Any) -> None:
    """Show PLAN with the items on every edge, and all its problems, without running it.

    Exits with 2 if there is a problem.
    """
    from flowrl.inspect.check import examine, explain_checked

    built = _built(plan, **options)
    findings = examine(built)
    _show(explain_checked(built, findings))
    if findings.problems:
        raise PlanError("\n".join(findings.problems))
    click.echo("ok")


@cli.command()
@click.argument("plan")
@_plan_options
@click.argument("file")
def draw(plan: str, file: str, **options: Any) -> None:
    """Draw PLAN to FILE, an .svg picture or .mmd text for Mermaid, without running it."""
    _built(plan, **options).draw(file)


@cli.command()
@click.argument("env")
@click.option("--env-arg", "env_args", metavar="KEY=VALUE", multiple=True, help="Keyword argument of ENV.")
@click.option("--wrapper", "wrappers", metavar="NAME", multiple=True, help="As NAME or NAME(ARGS), innermost first.")
@click.option("--envs", "num_envs", type=Count(), default=8, show_default=True, metavar="N", help="Number per worker.")
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
    from flowrl.cli.doctor import diagnose
    from flowrl.storage.files import json_text

    diagnosis = diagnose(env, _pairs("--env-arg", env_args), **options)
    _show(json_text(diagnosis.values()) if as_json else "\n".join(diagnosis.lines()))
    ctx.exit(1 if diagnosis.problems else 0)


@cli.command()
@click.argument("plan")
def settings(plan: str) -> None:
    """Show the settings of PLAN, the name of a built-in plan or a file: for --set, --config or Python.

    Lists the type, default, valid values and meaning of each setting; those of the plan and its policy come first,
    then those of all plans.
    """
    from rich.console import Console
    from rich.table import Table

    from flowrl.trainer.config import default_of, sections, type_text
    from flowrl.trainer.plan_file import load_plan_file

    # A terminal breaks long lines; a file or a pipe gets one line per setting.
    console = Console(width=None if sys.stdout.isatty() else 400, markup=False, highlight=False)
    for title, fields in sections(load_plan_file(plan).Config):
        table = Table("setting", "type", "default", "values", "meaning", box=None, padding=(0, 2, 0, 0))
        for field in fields:
            about = field.metadata.get("range", ""), field.metadata.get("meaning", "")
            table.add_row(field.name, type_text(field.type), repr(default_of(field)), *about)
        console.print(title, table, "", sep="\n")


@cli.command(name="list")
def list_plans() -> None:
    """List the built-in plans."""
    from flowrl.trainer.plan_file import builtin_plans

    plans = builtin_plans()
    width = max(map(len, plans), default=0)
    for name, doc in plans.items():
        click.echo(f"{name:<{width}}  {doc}")


def _show(text: str, *, err: bool = False) -> None:
    """Print text, part of which may come from a file of somebody else."""
    click.echo(printable(text), err=err)


def _printable_record(record: logging.LogRecord) -> bool:
    """A filter that lets all records of the log through, as text that a terminal only shows."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def _earlier(plan: str | None, resume: str | None, out: str | None) -> EarlierRun | None:
    """The run to resume, None for a new one."""
    if resume is None:
        if plan is None:
            raise click.UsageError("Missing argument 'PLAN', or --resume RUN.")
        return None
    from flowrl.cli.resume import EarlierRun

    if out is not None:
        raise ConfigError(f"--out {out}: a resumed run goes on in its own directory, {resume}")
    return EarlierRun.find(resume)


def _configured(
    plan_file: PlanFile,
    saved: dict[str, Any],
    settings: tuple[str, ...],
    env_args: tuple[str, ...],
    wrappers: tuple[str, ...],
    config_file: str | None,
    trust: bool,
    **options: Any,
) -> Configuration:
    """The configuration of a plan: its defaults, the values of an earlier run, then the file, --set, the options."""
    from flowrl.trainer.config import build_config, load_config_file
    from flowrl.trainer.trust import check_trust, code_in

    values = {} if config_file is None else load_config_file(Path(config_file))
    base = {**saved, **values}
    chosen = _pairs("--set", settings)
    direct = {key: value for key, value in options.items() if value is not None}
    if wrappers:
        direct["wrappers"] = list(wrappers)
    if env_args:
        earlier = chosen.get("env_args", base.get("env_args", {}))
        direct["env_args"] = {**(earlier if isinstance(earlier, dict) else {}), **_pairs("--env-arg", env_args)}
    code = code_in({key: value for key, value in values.items() if key not in {*chosen, *direct}})
    check_trust(config_file, code, _trusted(trust))
    try:
        return build_config(plan_file.Config, base, chosen, direct)
    except ConfigError as error:
        if not values:
            raise
        build_config(plan_file.Config, saved, chosen, direct)  # raises if the error is not the file's
        raise ConfigError(f"{config_file}: {error}") from error


def _trusted(trust: bool) -> Trust:
    """Whether to run code that a file names: as --trust says, else as the user answers at a terminal."""

    def asked(words: str) -> bool:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"{words}; if you trust it, add --trust")
        click.confirm(f"{words}. Run it?", abort=True, err=True)
        click.get_current_context().params["trust"] = True  # of each of --seeds, too
        return True

    return trust or asked


def _built(plan: str, **options: Any) -> Plan:
    """Build a plan for inspection only."""
    from flowrl.trainer.plan_file import load_plan_file

    plan_file = load_plan_file(plan)
    workers, built = plan_file.build(_configured(plan_file, {}, **options))
    workers.close()
    return built


def _eval_every(config: Configuration, budget: Budget) -> int | None:
    """Env steps, or updates, between evaluations; None for no evaluation."""
    every = config.eval_every
    if every is None and budget.goal is None and config.clock != "env_steps":
        return None  # no environment is created, unless the user asks for one
    if every is None and budget.steps is not None:
        every = max(1, budget.steps // 20)
    if every is None and (budget.goal is not None or budget.seconds is not None):
        every = EVAL_EVERY
    if budget.goal is not None and budget.steps is not None and every is not None and every > budget.steps:
        raise ConfigError(f"eval_every={every} exceeds --stop-steps {budget.steps}: the goal would never be tested")
    return every


def _reporting(config: Configuration, budget: Budget) -> Configuration:
    """Lower `report_every`, if the plan has it, so that results are frequent enough for evaluations and the budget."""
    import attrs

    every = config.to_dict().get("report_every")
    if not isinstance(every, int):
        return config
    bounds = [bound for bound in (config.eval_every, budget.steps) if bound is not None]
    return attrs.evolve(config, report_every=min([every, *bounds]))  # type: ignore[call-arg]


def _watched(plan: Plan, taps: tuple[str, ...], breaks: tuple[str, ...], *, debug: bool) -> Plan:
    """Add printing taps, breakpoints and checks to the plan; they change no result (D4)."""
    from flowrl.engine.operator import describe
    from flowrl.inspect.strict import strict

    if debug:
        plan = strict(plan)
    for where in breaks:
        plan = plan.breakpoint(where, site="flowrl run --break")
    for where in taps:

        def show(item: Any, where: str = where) -> None:
            print(printable(f"{where}: {describe(item)}"), flush=True)  # click would bypass the live display

        plan = plan.tap(where, show, site="flowrl run --tap")
    return plan


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, Any]:
    from flowrl.trainer.config import parse_value

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{option} {text!r}: expected KEY=VALUE")
        pairs[key.strip()] = parse_value(value)
    return pairs


def main() -> None:
    """The entry point of the command."""
    if "" not in sys.path:
        sys.path.append("")  # the user's modules, as with `python -m flowrl`
    logging.getLogger("flowrl").addFilter(_printable_record)
    arguments = sys.argv[1:]
    fill_closed()
    sys.stdout, sys.stderr = lasting(sys.stdout, 1), lasting(sys.stderr, 2)
    try:
        cli(prog_name="flowrl", args=arguments)
    except SystemExit as end:
        # A run has its results in its directory; what other commands give is what they print.
        sys.exit(end.code or int(was_lost(sys.stdout) and arguments[:1] != ["run"]))
