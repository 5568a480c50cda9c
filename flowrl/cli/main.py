"""The command `flowrl`. Commands import heavy packages only when they run, so that help answers at once."""

from __future__ import annotations

import faulthandler
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flowrl._version import __version__
from flowrl.cli.output import complain, fill_closed, in_a_line, is_env_fault, lasting, told, told_notes, was_lost
from flowrl.cli.parameters import (
    FILE,
    FOLDER,
    TRUST,
    Count,
    Number,
    OfPlan,
    ReturnGoal,
    SinkName,
    goal_of,
    pairs_of,
    plan_argument,
    plan_options,
    scales_of,
    seconds_of,
    settings_of,
)
from flowrl.errors import ConfigError, FlowError, PlanError, printable
from flowrl.settings import STEPS

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan
    from flowrl.inspect.profile import Profile
    from flowrl.rollout import BaseWorkers
    from flowrl.runs.config import Configuration
    from flowrl.runs.progress import Budget
    from flowrl.runs.resume import EarlierRun
    from flowrl.runs.trust import Trust
    from flowrl.trainer.plan_file import PlanFile

#: Seconds for which `flowrl profile` trains a plan.
PROFILE_SECONDS = 20.0
#: The exit code after Ctrl-C.
INTERRUPTED = 130


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
            raise _refusal(ctx, error)(printable("\n".join([str(error), *told_notes(error)]))) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if in_a_line(error) is None and not is_env_fault(error):
                raise
            words = told(error, whole="--debug" in ctx.meta["flowrl.command"])
            raise _refusal(ctx, error)(printable(words.removeprefix("Error: "))) from error


def _refusal(ctx: click.Context, error: Exception) -> type[click.ClickException]:
    """What ends a command with the exit code for an error: 2 for one before any work, 1 for one of the work.

    An environment that fails in `evaluate` or `record` fails in their work, whatever it raises. The other commands
    only look at it: a run that has begun reports its errors itself.
    """
    at_work = (
        ctx.invoked_subcommand in ("evaluate", "record") if is_env_fault(error) else not isinstance(error, FlowError)
    )
    return click.ClickException if at_work else BadInput


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flowrl")
def cli() -> None:
    """Reinforcement learning as lazy dataflow plans."""


@cli.command(cls=OfPlan)
@plan_argument(required=False)
@plan_options
@click.option(
    "--stop-return",
    "goals",
    type=ReturnGoal(),
    metavar="[AGENT=]R",
    multiple=True,
    help="Goal: mean return of an evaluation, confirmed; in a game also of each AGENT.",
)
@click.option(
    "--stop-steps",
    "steps",
    type=Count(STEPS),
    metavar="N",
    help="Budget in env steps, of offline plans in updates; the item that reaches it is the last.",
)
@click.option(
    "--stop-seconds",
    "seconds",
    type=Number(above=0),
    metavar="S",
    help="Budget in seconds; tested at results, or 30 s later.",
)
@click.option(
    "--stop-updates",
    "updates",
    type=Count(STEPS),
    metavar="N",
    help="Budget in updates; the item that reaches it is the last.",
)
@click.option("--tap", "taps", metavar="NODE", multiple=True, help="Print the items of an operator (see explain).")
@click.option("--break", "breaks", metavar="NODE", multiple=True, help="Stop at the items of an operator, at a prompt.")
@click.option(
    "--debug", is_flag=True, help="One process, one item at a time, contracts on all edges, whole tracebacks."
)
@click.option("--out", type=FOLDER, metavar="DIR", help="Run directory; otherwise a new one in runs/.")
@click.option("--journal", is_flag=True, help="Keep a journal of what the run decides, for flowrl rerun.")
@click.option(
    "--sink",
    "sinks",
    type=SinkName(),
    metavar="NAME",
    multiple=True,
    help="Also write results for: csv, tensorboard, wandb, mlflow, prometheus.",
)
@click.option(
    "--resume",
    type=FOLDER,
    metavar="RUN",
    help="Go on with a run, or --seeds, that you trust, or from RUN/checkpoints/STEP.",
)
@click.option(
    "--from",
    "init_from",
    metavar="RUN",
    multiple=True,
    help="Begin with the weights of a run, a checkpoint or a policy file; NAME=RUN[:POLICY] for one of several.",
)
@click.option(
    "--from-with", metavar="WHAT", help="Take from there too: buffer, statistics; partial: leave out what does not fit."
)
@click.option("--quiet", is_flag=True, help="Print only how the run ended.")
@click.option("--seeds", type=Count(10_000), metavar="N", help="Run N times, with seeds from --seed on.")
@click.option("--jobs", type=Count(10_000), metavar="N", help="Number of --seeds that run at a time.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    plan: str | None,
    goals: tuple[str, ...],
    steps: int | None,
    seconds: float | None,
    updates: int | None,
    inserts: tuple[str, ...],
    taps: tuple[str, ...],
    breaks: tuple[str, ...],
    debug: bool,
    journal: bool,
    out: str | None,
    resume: str | None,
    init_from: tuple[str, ...],
    from_with: str | None,
    sinks: tuple[str, ...],
    quiet: bool,
    seeds: int | None,
    jobs: int | None,
    **options: Any,
) -> None:
    """Run PLAN, the name of a built-in plan or a file, or go on with a run, or begin with the weights of one (--from).

    A resumed run keeps its plan, settings and --stop options, and goes on bit for bit in its directory. You may change
    the --stop options, and what changes no parameter, such as eval_every, eval_episodes and checkpoint_every; learning
    rates and schedules too, as a fork that RUN records. Resuming runs the code that RUN names and holds.

    Exits with 0 when the goal was reached or none was set, 1 when the run failed, 2 for bad input, 3 when the
    budget ended before the goal, and 130 after Ctrl-C.
    """
    import attrs

    from flowrl.cli.seeds import STARTED, SeedsRun, arguments_of
    from flowrl.runs.config import build_config
    from flowrl.runs.directory import RunDirectory, config_text
    from flowrl.runs.kept import Session
    from flowrl.runs.plan_end import eval_every_of, with_end
    from flowrl.runs.progress import Budget
    from flowrl.runs.run_log import RunLog
    from flowrl.runs.run_schedules import constant_schedules, spent_rate
    from flowrl.runs.sinks import check_sinks, sinks_in
    from flowrl.tools.inserts import inserted
    from flowrl.trainer.loading import plan_file_of
    from flowrl.trainer.plan_file import load_plan_file

    log = ctx.with_resource(RunLog())
    if resume is not None and (Path(resume) / STARTED).is_file():
        if plan is not None or seeds is not None or out is not None:
            raise ConfigError(
                f"{resume} holds several seeds, which go on as they are: give neither PLAN, --seeds nor --out"
            )
        again = arguments_of(ctx, without=("resume", "jobs", "quiet"))
        ctx.exit(SeedsRun.resume(Path(resume), again, jobs or 1, quiet).run())
    if journal:
        options["journal"] = True
    budget = Budget(goal_of(goals), steps, seconds, updates)
    earlier, forked = _earlier(plan, resume, out), dict[str, Any]()
    if earlier is None:
        assert plan is not None
        plan_file = load_plan_file(plan)
        config = _configured(plan_file, {}, **options)
    else:
        plan_file = plan_file_of(earlier, plan)
        config = _configured(plan_file, earlier.values, **options)
        forked = earlier.check(config, build_config(plan_file.Config, earlier.values))
        budget = earlier.budget(budget)  # options that are not set keep their earlier values
        inserts = earlier.inserts(inserts)
    config = attrs.evolve(config, eval_every=eval_every_of(config, budget))
    config = _reporting(config, budget)
    if earlier is None and budget.steps is not None:
        config = config.over(budget.steps)  # a resumed run keeps its schedules
    if debug and config.journal:
        raise ConfigError("--debug runs another plan, one item at a time in one process: leave the journal out")
    if debug or breaks:  # other processes have no terminal, and errors are easier to follow in one
        config = attrs.evolve(config, num_workers=0)
    if earlier is None:
        directory = RunDirectory.choose(plan_file, config, out, sinks)
    else:
        check_sinks(sinks)
        directory = RunDirectory(earlier.path, plan_file, config_text(config), [*sinks_in(earlier.path), *sinks])
    if seeds is not None:
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
    directory.log = log

    def complained(error: Exception) -> None:
        log.keep(logging.ERROR, told(error, whole=True))
        complain(error, whole=debug)

    workers, built = plan_file.build(config)
    try:
        about = workers.about() | _begun(init_from, from_with, earlier, built, workers, config)
        if earlier is None:
            directory.claim()  # undone if the plan cannot run
        else:
            directory.lock()
        ctx.meta["flowrl.directory"] = directory.path
        built = inserted(built, inserts)
        best = directory.path / "policy.pt"
        complete = with_end(built, workers, config, "flowrl run", save=best, **attrs.asdict(budget))
        complete.check()
        first = workers.networks if earlier is None else []
        if earlier is None and (constant := constant_schedules(built, config)):
            first = [*first, f"{constant}: --stop-steps sets one"]
        if earlier is not None and (spent := spent_rate(built, config, budget.steps)):
            logging.getLogger("flowrl").warning("%s --set %s", *spent)
        complete = _watched(complete, taps, breaks, debug=debug)
        title = f"{plan_file.name} {config.env or config['data']} seed {config.seed}"
        session = Session.of(complete, workers, config, title, directory, budget, complain=complained, earlier=earlier)
        session.about = {**about, **({"inserts": [*inserts]} if inserts else {})}
        session.forked, session.first_lines = forked, first
        session.span, session.trace = ctx.meta.get("flowrl.profiled", (None, None))
        code = session.run(ctx.meta["flowrl.command"], quiet=quiet)
    finally:
        workers.close()
        directory.close()
    ctx.exit(code)


@cli.command(cls=OfPlan)
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
    from flowrl.storage.files import json_text

    folder = Path(plan)
    if not folder.is_dir():
        try:
            ctx.meta["flowrl.profiled"] = seconds or PROFILE_SECONDS, None if trace is None else Path(trace)
            ctx.invoke(run, plan=plan, out=out, quiet=True, **options)
        except click.exceptions.Exit as end:
            if end.exit_code != 0:
                raise
        folder = ctx.meta["flowrl.directory"]
    else:
        _check_of_run(ctx, plan, "as_json", "trust")
    found = _profile_of(folder)
    _show(json_text(found.summary()) if as_json else "\n".join(found.lines()))


@cli.command(cls=OfPlan)
@plan_argument()
@plan_options
@click.option("--cost", "costs", metavar="OPERATOR=S", multiple=True, help="Its seconds per item, not those measured.")
@click.option(
    "--way", type=Number(above=0), metavar="S", help="Seconds of a request beside its work; 0.002 by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def simulate(
    ctx: click.Context,
    /,
    plan: str,
    num_workers: int | None,
    costs: tuple[str, ...],
    way: float | None,
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
        _check_of_run(ctx, plan, "as_json", "trust", "num_workers", "costs", "way")
        found = _profile_of(Path(plan))
    else:
        if inserts:
            raise ConfigError(f"--insert {inserts[0]}: simulate takes the plan as it is; put the operator into a file")
        plan_file = load_plan_file(plan)
        config = _configured(plan_file, {}, num_workers=None, **options)
        found = measured(plan_file, config, MEASURED)
    there = simulate(found, num_workers, way, seconds)
    _show(json_text(there.values()) if as_json else "\n".join(there.lines()))


@cli.command(cls=OfPlan)
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
    search = Tuner(plan_file, _configured(plan_file, {}, **options), allow_inexact, most)
    search.run()
    defaults = {field.name: default_of(field) for field in attrs.fields(plan_file.Config)}
    chosen = search.chosen.to_dict()
    _show("\n".join(search.lines()))
    try:
        write_json(file, {name: value for name, value in chosen.items() if value != defaults[name]})
    except OSError as error:
        raise ConfigError(f"--out {file}: {error.strerror or error}") from error
    _show(f"\nflowrl run {plan} --config {file}")


@cli.command(cls=OfPlan)
@plan_argument()
@plan_options
def explain(plan: str, **options: Any) -> None:
    """Show PLAN as a tree, and what the network of its policy is, without running it."""
    from flowrl.inspect.check import schemas_of
    from flowrl.inspect.explain import explain

    built, networks = _built(plan, **options)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    _show("\n".join([explain(built, columns=columns, schemas=schemas_of), *networks]))


@cli.command()
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
    options |= {"trusted": _trusted(trust), "plot": None if plot is None else Path(plot)}
    options["settings"] = pairs_of("--set", settings)
    evaluation = evaluate_given(runs, **options)
    for words in evaluation.left_out:
        _show(f"left out: {words}", err=True)
    _show(json_text(evaluation.values()) if as_json else "\n".join(evaluation.lines()))


@cli.command()
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
    options |= {"env_args": pairs_of("--env-arg", env_args), "trusted": _trusted(trust)}
    _show(record_run(where, Path(out), **options).line())


@cli.command()
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

    trained = load(run, last=last, device="cpu", trusted=_trusted(trust))
    (trained if policy is None else trained.of(policy)).policy.export(out)
    click.echo(out)


@cli.command()
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
        _show("\n".join(RowAccount.of(run).lines()))
        return
    row = stored_row(run, slot, buffer=buffer, trusted=_trusted(trust))
    _show("\n".join(row.lines()))
    if again or film is not None:
        steps = row.play_again(film)
        click.echo(f"played again: {steps} steps, with the stored observations{f', in {film}' if film else ''}")


@cli.command()
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
        _show("\n".join(map(markdown, scores.tables())))
    else:
        files, left_out = plot(paths, x=x, y=y, out=file)
    for words in left_out:
        _show(f"left out: {words}", err=True)
    for written in files:
        click.echo(written)


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN...")
@click.option("--port", type=click.IntRange(0, 65535), default=7007, show_default=True, metavar="N", help="0: any.")
def ui(runs: tuple[str, ...], port: int) -> None:
    """Show run directories and folders of them on a local page, also while they go.

    The page is for this machine alone. Needs nothing of the running processes: it reads what they write.
    """
    from flowrl.tools.ui import serve

    serve([Path(run) for run in runs], port, _show)


@cli.command(cls=OfPlan)
@plan_argument()
@plan_options
def check(plan: str, **options: Any) -> None:
    """Show PLAN with the items on every edge, and all its problems, without running it.

    Exits with 2 if there is a problem.
    """
    from flowrl.inspect.check import examine, explain_checked

    built, _ = _built(plan, **options)
    findings = examine(built)
    _show(explain_checked(built, findings))
    if findings.problems:
        raise PlanError("\n".join(findings.problems))
    click.echo("ok")


@cli.command(cls=OfPlan)
@plan_argument()
@plan_options
@click.argument("file", type=FILE)
def draw(plan: str, file: str, **options: Any) -> None:
    """Draw PLAN to FILE, an .svg picture or .mmd text for Mermaid, without running it."""
    _built(plan, **options)[0].draw(file)


@cli.command()
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


@cli.command()
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


@cli.command(name="replay-item")
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


@cli.command()
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
    _show(json_text(diagnosis.values()) if as_json else "\n".join(diagnosis.lines()))
    ctx.exit(1 if diagnosis.problems else 0)


@cli.command()
@plan_argument()
def settings(plan: str) -> None:
    """Show the settings of PLAN, the name of a built-in plan or a file: for --set, --config or Python.

    Lists the type, default, valid values and meaning of each setting; those of the plan and its policy come first,
    then those of all plans.
    """
    click.echo(settings_of(plan))


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
    from flowrl.runs.resume import EarlierRun

    if out is not None:
        raise ConfigError(f"--out {out}: a resumed run goes on in its own directory, {resume}")
    return EarlierRun.find(resume)


def _begun(
    parents: tuple[str, ...],
    taken: str | None,
    earlier: EarlierRun | None,
    plan: Plan,
    workers: BaseWorkers,
    config: Configuration,
) -> dict[str, Any]:
    """Give a new run the weights that --from names; returns the entry of run.json that says what it began with."""
    from flowrl.runs.init_from import init_from

    if earlier is not None:
        if parents:
            raise ConfigError("--from begins a new run, --resume goes on with one: use only one of them")
        return {key: value for key, value in earlier.about.items() if key == "from"}
    if not parents:
        if taken is not None:
            raise ConfigError(f"--from-with {taken} needs --from RUN")
        return {}
    words = [word.strip() for word in (taken or "").split(",") if word.strip()]
    return {"from": init_from(_parents(parents), words, plan, workers, config)}


def _parents(given: tuple[str, ...]) -> str | dict[str, str]:
    """What --from names: one run, or a table of runs by policy."""
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    return {name: str(run) for name, run in pairs_of("--from", given).items()}


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
    from flowrl.runs.config import build_config, load_config_file
    from flowrl.runs.trust import check_trust, code_in

    values = {} if config_file is None else load_config_file(Path(config_file))
    base = {**saved, **values}
    chosen = pairs_of("--set", settings)
    direct = {key: value for key, value in options.items() if value is not None}
    if wrappers:
        direct["wrappers"] = list(wrappers)
    if twice := [key for key in direct if key in chosen and direct[key] != chosen[key]]:
        raise ConfigError(
            f"{twice[0]} is given twice, as {direct[twice[0]]!r} and by --set as {chosen[twice[0]]!r}: leave one out"
        )
    if env_args:
        earlier = chosen.get("env_args", base.get("env_args", {}))
        direct["env_args"] = {**(earlier if isinstance(earlier, dict) else {}), **pairs_of("--env-arg", env_args)}
    replaced = {*chosen, *direct} - ({"env_args"} if env_args and "env_args" not in chosen else set())
    code = code_in({key: value for key, value in values.items() if key not in replaced})
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


def _built(plan: str, inserts: tuple[str, ...], **options: Any) -> tuple[Plan, list[str]]:
    """Build a plan for inspection only; and what its networks are, in a line each."""
    from flowrl.tools.inserts import inserted
    from flowrl.trainer.plan_file import load_plan_file

    plan_file = load_plan_file(plan)
    workers, built = plan_file.build(_configured(plan_file, {}, **options))
    networks = workers.networks
    workers.close()
    return inserted(built, inserts), networks


def _reporting(config: Configuration, budget: Budget) -> Configuration:
    """Lower `report_every`, if the plan has it, so that results are frequent enough for evaluations and the budget."""
    import attrs

    every = config.to_dict().get("report_every")
    if not isinstance(every, int):
        return config
    bounds = [bound for bound in (config.eval_every, budget.steps) if bound]
    return attrs.evolve(config, report_every=min([every, *bounds]))  # type: ignore[call-arg]


def _watched(plan: Plan, taps: tuple[str, ...], breaks: tuple[str, ...], *, debug: bool) -> Plan:
    """Add printing taps, breakpoints and checks to the plan; they change no result (D4)."""
    from flowrl.engine.operator import summarize
    from flowrl.tools.post_mortem import debugged

    if debug:
        plan = debugged(plan)
    for where in breaks:
        plan = plan.breakpoint(where, site="flowrl run --break")
    for where in taps:

        def show(item: Any, where: str = where) -> None:
            print(printable(f"{where}: {summarize(item)}"), flush=True)  # click would bypass the live display

        plan = plan.tap(where, show, site="flowrl run --tap")
    return plan


def main() -> None:
    """The entry point of the command."""
    if "" not in sys.path:
        sys.path.append("")  # the user's modules, as with `python -m flowrl`
    logging.getLogger("flowrl").addFilter(_printable_record)
    arguments = sys.argv[1:]
    fill_closed()
    faulthandler.enable(2, all_threads=False)  # a crash in C code, of an environment say, names the line
    sys.stdout, sys.stderr = lasting(sys.stdout, 1), lasting(sys.stderr, 2)
    try:
        cli(prog_name="flowrl", args=arguments)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a further Ctrl-C has nothing left to stop
        # A run has its results in its directory; what other commands give is what they print.
        sys.exit(end.code or int(was_lost(sys.stdout) and arguments[:1] != ["run"]))
