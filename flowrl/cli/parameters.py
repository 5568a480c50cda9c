"""What commands take: types of parameters, the options of a plan, and what their text means."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from flowrl.errors import ConfigError
from flowrl.settings import COUNT

if TYPE_CHECKING:
    from flowrl.rollout.evaluation import Goal
    from flowrl.runs.config import Configuration
    from flowrl.runs.trust import Trust
    from flowrl.trainer.plan_file import PlanFile

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Paths, which the shell completes.
FILE, FOLDER = click.Path(), click.Path(file_okay=False)

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
    click.option(
        "--insert",
        "inserts",
        metavar="NODE=OP",
        multiple=True,
        help="Add an operator after another: NODE=module:op, or NODE=Name(ARGS) of flowrl.operators.",
    ),
    click.option(
        "--config", "config_file", type=FILE, metavar="FILE", help="Values from a .json, .toml or .yaml file."
    ),
    TRUST,
)


class Count(click.ParamType[int]):
    """A positive whole number, also written as 5e4 or 50_000, and at most `most` (X4)."""

    name = "count"

    def __init__(self, most: int = COUNT) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
            if number == int(number) and number >= 1:
                if number > self.most:
                    self.fail(f"{value!r} is more than {self.most:,}, the most.", param, ctx)
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


class ReturnGoal(click.ParamType[str]):
    """A return to reach, or AGENT=RETURN."""

    name = "goal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        Number().convert(value.rpartition("=")[2], param, ctx)
        return str(value)


class PlanName(click.ParamType[str]):
    """The name of a built-in plan, which the shell completes, or the path of a file."""

    name = "plan"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from flowrl.trainer.plan_file import builtin_plans

        plans = [(name, doc) for name, doc in builtin_plans().items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=doc) for name, doc in plans] or [CompletionItem(incomplete, type="file")]


class SinkName(click.ParamType[str]):
    """The name of a sink, which the shell completes."""

    name = "sink"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from flowrl.runs.sinks import SINKS

        return [CompletionItem(name) for name in SINKS if name.startswith(incomplete)]


class OfPlan(click.Command):
    """A command with a plan, whose settings are part of the help: `flowrl run ppo --help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(arg in ctx.help_option_names for arg in args):  # which ends parsing
            others = [arg for arg in args if arg not in ctx.help_option_names]
            with suppress(click.UsageError):
                ctx.meta["flowrl.plan"] = self.make_parser(ctx).parse_args(others)[0].get("plan")
        return super().parse_args(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        plan = ctx.meta.get("flowrl.plan")
        more = (
            settings_of(plan)
            if isinstance(plan, str)
            else f"flowrl {ctx.info_name} PLAN --help shows the settings of PLAN, too."
        )
        return f"{super().get_help(ctx)}\n\n{more}"


def settings_of(plan: str) -> str:
    """The settings of a plan as tables."""
    from rich.console import Console
    from rich.table import Table

    from flowrl.runs.config import default_of, sections, type_text
    from flowrl.trainer.plan_file import load_plan_file

    # A terminal breaks long lines; a file or a pipe gets one line per setting.
    console = Console(width=None if sys.stdout.isatty() else 400, markup=False, highlight=False)
    lines: list[str] = []
    for title, fields in sections(load_plan_file(plan).Config):
        table = Table("setting", "type", "default", "values", "meaning", box=None, padding=(0, 2, 0, 0))
        for field in fields:
            about = field.metadata.get("range", ""), field.metadata.get("meaning", "")
            table.add_row(field.name, type_text(field.type), repr(default_of(field)), *about)
        with console.capture() as captured:
            console.print(title, table, "", sep="\n")
        lines += [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(lines).rstrip()


def plan_options(command: _Command) -> _Command:
    """Give a command the options of a plan."""
    for option in reversed(PLAN_OPTIONS):
        command = option(command)
    return command


def plan_argument(*, required: bool = True) -> Callable[[_Command], _Command]:
    """Give a command PLAN."""
    return click.argument("plan", type=PlanName(), required=required)


def goal_of(goals: Sequence[str]) -> Goal | None:
    """What `--stop-return` asks for."""
    by_agent = {agent: float(least) for agent, _, least in (goal.rpartition("=") for goal in goals)}
    if len(by_agent) < len(goals) or ("" in by_agent and len(by_agent) > 1):
        raise ConfigError(f"--stop-return {' '.join(goals)}: expected one number, or AGENT=NUMBER once for each agent")
    return by_agent.get("", by_agent or None)


def seconds_of(name: str, value: Any) -> float:
    """The seconds of a --cost."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"--cost {name}={value}: expected seconds, a finite number of at least 0")
    return float(value)


def scales_of(texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """The lowest and highest return of each environment in the texts of `--scale`."""
    scales = {}
    for text in texts:
        env, _, ends = text.rpartition("=")
        try:
            low, high = map(float, ends.split(","))
        except ValueError:
            low = high = 0.0
        if not env or not math.isfinite(low - high) or low == high:
            raise ConfigError(f"--scale {text!r}: expected ENV=LOW,HIGH, two different numbers")
        scales[env] = low, high
    return scales


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """Keys and values in the texts KEY=VALUE of an option."""
    from flowrl.runs.config import parse_value

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{option} {text!r}: expected KEY=VALUE")
        pairs[key.strip()] = parse_value(value)
    return pairs


def configured(
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
    check_trust(config_file, code, trusted(trust))
    try:
        return build_config(plan_file.Config, base, chosen, direct)
    except ConfigError as error:
        if not values:
            raise
        build_config(plan_file.Config, saved, chosen, direct)  # raises if the error is not the file's
        raise ConfigError(f"{config_file}: {error}") from error


def trusted(trust: bool) -> Trust:
    """Whether to run code that a file names: as --trust says, else as the user answers at a terminal."""

    def asked(words: str) -> bool:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"{words}; if you trust it, add --trust")
        click.confirm(f"{words}. Run it?", abort=True, err=True)
        click.get_current_context().params["trust"] = True  # of each of --seeds, too
        return True

    return trust or asked
