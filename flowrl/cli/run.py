"""`flowrl run`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
import click

from flowrl.cli.output import complain, message_of
from flowrl.cli.parameters import (
    FOLDER,
    Count,
    Number,
    OfPlan,
    ReturnGoal,
    SinkName,
    configured,
    goal_of,
    pairs_of,
    plan_argument,
    plan_options,
)
from flowrl.errors import ConfigError, printable
from flowrl.settings import STEPS

if TYPE_CHECKING:
    from flowrl.engine.plan import Plan
    from flowrl.rollout import Workers
    from flowrl.runs.config import Configuration
    from flowrl.runs.directory import RunDirectory
    from flowrl.runs.progress import Budget
    from flowrl.runs.resume import EarlierRun
    from flowrl.trainer.plan_file import PlanFile

log = logging.getLogger("flowrl")


@click.command(cls=OfPlan)
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
    resume: str | None,
    out: str | None,
    seeds: int | None,
    jobs: int | None,
    quiet: bool,
    init_from: tuple[str, ...],
    from_with: str | None,
    taps: tuple[str, ...],
    **options: Any,
) -> None:
    """Run PLAN, the name of a built-in plan or a file, or go on with a run, or begin with the weights of one (--from).

    A resumed run keeps its plan, settings and --stop options, and goes on bit for bit in its directory. You may change
    the --stop options, and what changes no parameter, such as eval_every, eval_episodes and checkpoint_every; learning
    rates and schedules too, as a fork that RUN records. Resuming runs the code that RUN names and holds.

    Exits with 0 when the goal was reached or none was set, 1 when the run failed, 2 for bad input, 3 when the
    budget ended before the goal, and 130 after Ctrl-C.
    """
    from flowrl.cli.seeds import STARTED, SeedsRun, arguments_of

    if resume is not None and (Path(resume) / STARTED).is_file():
        if plan is not None or seeds is not None or out is not None:
            raise ConfigError(
                f"{resume} holds several seeds, which go on as they are: give neither PLAN, --seeds nor --out"
            )
        again = arguments_of(ctx, without=("resume", "jobs", "quiet"))
        ctx.exit(SeedsRun.resume(Path(resume), again, jobs or 1, quiet).run())
    request = RunRequest.of(ctx, plan, resume=resume, out=out, **options)
    if seeds is not None:
        ctx.exit(request.keep_seeds(ctx, seeds, jobs or 1, quiet=quiet))
    if jobs is not None:
        raise ConfigError(f"--jobs {jobs} is the number of --seeds that run at a time; add --seeds N")
    ctx.exit(request.keep(ctx, quiet=quiet, parents=init_from, taken=from_with, taps=taps))


@attrs.frozen
class RunRequest:
    """The run that a command asks for, before anything is built."""

    plan_file: PlanFile
    config: Configuration
    budget: Budget
    directory: RunDirectory
    earlier: EarlierRun | None  #: to go on with
    forked: Mapping[str, Any]  #: settings that differ from its
    inserts: Sequence[str]
    breaks: Sequence[str]
    debug: bool

    @classmethod
    def of(
        cls,
        ctx: click.Context,
        plan: str | None,
        *,
        resume: str | None = None,
        out: str | None = None,
        sinks: Sequence[str] = (),
        goals: Sequence[str] = (),
        steps: int | None = None,
        seconds: float | None = None,
        updates: int | None = None,
        inserts: Sequence[str] = (),
        breaks: Sequence[str] = (),
        debug: bool = False,
        journal: bool = False,
        **options: Any,
    ) -> Self:
        """Read the options of `flowrl run`. Raises: FlowError: what they say cannot be run."""
        from flowrl.runs.config import build_config
        from flowrl.runs.directory import RunDirectory
        from flowrl.runs.plan_end import for_budget
        from flowrl.runs.progress import Budget
        from flowrl.runs.run_log import RunLog
        from flowrl.trainer.loading import plan_file_of
        from flowrl.trainer.plan_file import load_plan_file

        log = ctx.with_resource(RunLog())  # from here on, what is said is for log.txt
        if journal:
            options["journal"] = True
        budget = Budget(goal_of(goals), steps, seconds, updates)
        earlier, forked = _earlier(plan, resume, out), dict[str, Any]()
        if earlier is None:
            assert plan is not None
            plan_file = load_plan_file(plan)
            config = for_budget(configured(plan_file, {}, **options), budget)
            if budget.steps is not None:
                config = config.over(budget.steps)
        else:
            plan_file = plan_file_of(earlier, plan)
            config = configured(plan_file, earlier.values, **options)
            forked = earlier.check(config, build_config(plan_file.Config, earlier.values))
            budget = earlier.budget(budget)  # options that are not set keep their earlier values
            inserts = earlier.inserts(tuple(inserts))
            config = for_budget(config, budget)  # its schedules keep their length
        if debug and config.journal:
            raise ConfigError("--debug runs another plan, one item at a time in one process: leave the journal out")
        if debug or breaks:  # other processes have no terminal, and errors are easier to follow in one
            config = attrs.evolve(config, num_workers=0)
        if earlier is None:
            directory = RunDirectory.choose(plan_file, config, out, sinks)
        else:
            directory = RunDirectory.of_earlier(earlier.path, plan_file, config, sinks)
        directory.log = log
        return cls(plan_file, config, budget, directory, earlier, forked, inserts, breaks, debug)

    def keep_seeds(self, ctx: click.Context, seeds: int, jobs: int, *, quiet: bool) -> int:
        """Run it under several seeds, each in a process; returns the exit code."""
        from flowrl.cli.seeds import SeedsRun, arguments_of

        if self.earlier is not None:
            raise ConfigError("--seeds begins new runs, --resume goes on with one: use only one of them")
        arguments = arguments_of(ctx, without=("seeds", "jobs", "seed", "out", "quiet"))
        each = range(self.config.seed, self.config.seed + seeds)
        try:
            self.directory.claim()
            return SeedsRun(arguments, each, self.directory.path, jobs, quiet).run()
        finally:
            self.directory.close()

    def keep(
        self,
        ctx: click.Context,
        *,
        quiet: bool,
        parents: tuple[str, ...] = (),
        taken: str | None = None,
        taps: Sequence[str] = (),
        **seen: Any,
    ) -> int:
        """Run it in its directory to the end; returns the exit code.

        Args:
            parents: What --from names, and `taken` what --from-with does.
            seen: Attributes of `KeptRun` for a profile.
        """
        from flowrl.runs.kept import KeptRun
        from flowrl.runs.plan_end import COMMAND
        from flowrl.runs.run_schedules import constant_schedules, late_start, spent_rate
        from flowrl.tools.inserts import inserted

        config, directory = self.config, self.directory

        def complained(error: Exception) -> None:
            if directory.log is not None:
                directory.log.keep(logging.ERROR, message_of(error, whole=True))
            complain(error, whole=self.debug)

        workers, built = self.plan_file.build(config)
        try:
            about = {"from": self._parent(parents, taken, built, workers), "inserts": [*self.inserts]}
            built = inserted(built, self.inserts)
            if self.earlier is not None and (spent := spent_rate(built, config, self.budget.steps)):
                log.warning("%s --set %s", *spent)
            kept = KeptRun.open(
                built,
                workers,
                config,
                f"{self.plan_file.name} {config.env or config['data']} seed {config.seed}",
                directory,
                self.budget,
                origin=COMMAND,
                command=ctx.meta["flowrl.command"],
                about={name: value for name, value in about.items() if value},
                watch=lambda plan: _watched(plan, taps, self.breaks, debug=self.debug),
                show=(lambda _: None) if quiet else click.echo,
                earlier=self.earlier,
                forked=self.forked,
                complain=complained,
                **seen,
            )
            if self.earlier is None and not quiet:
                if constant := constant_schedules(built, config):
                    constant += ": --stop-steps sets one"
                for line in filter(None, [*workers.networks, constant, late_start(config, self.budget.steps)]):
                    click.echo(line)
            return kept.to_end(quiet=quiet)
        finally:
            workers.close()
            directory.close()

    def _parent(
        self, parents: tuple[str, ...], taken: str | None, plan: Plan, workers: Workers
    ) -> dict[str, Any] | None:
        """Give a new run the weights that --from names; returns the entry of run.json that says what it began with."""
        from flowrl.runs.init_from import init_from

        if self.earlier is not None:
            if parents:
                raise ConfigError("--from begins a new run, --resume goes on with one: use only one of them")
            return self.earlier.about.get("from")
        if not parents:
            if taken is not None:
                raise ConfigError(f"--from-with {taken} needs --from RUN")
            return None
        words = [word.strip() for word in (taken or "").split(",") if word.strip()]
        return init_from(_sources(parents), words, plan, workers, self.config)


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


def _sources(given: tuple[str, ...]) -> str | dict[str, str]:
    """What --from names: one run, or a table of runs by policy."""
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    return {name: str(run) for name, run in pairs_of("--from", given).items()}


def _watched(plan: Plan, taps: Sequence[str], breaks: Sequence[str], *, debug: bool) -> Plan:
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
