"""The command `flowrl`. Commands import heavy packages only when they run, so that help answers at once."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

import click

from flowrl._version import __version__
from flowrl.cli.output import fill_closed, in_a_line, is_env_fault, lost_output, message_of, notes_text, unclosable
from flowrl.errors import FlowError, printable

#: The commands, and the files that have them.
COMMANDS = {
    **dict.fromkeys(("explain", "check", "draw", "settings", "list"), "flowrl.cli.plans"),
    "run": "flowrl.cli.run",
    **dict.fromkeys(("profile", "simulate"), "flowrl.cli.profile"),
    "autotune": "flowrl.cli.autotune",
    **dict.fromkeys(("evaluate", "export"), "flowrl.cli.evaluate"),
    **dict.fromkeys(("record", "show"), "flowrl.cli.record"),
    **dict.fromkeys(("plot", "ui"), "flowrl.cli.plot"),
    **dict.fromkeys(("rerun", "verify", "replay-item"), "flowrl.cli.rerun"),
    "doctor": "flowrl.cli.doctor",
}
#: The exit code after Ctrl-C.
INTERRUPTED = 130


class BadInput(click.ClickException):
    """A request that cannot be carried out; reported in one message, before any work."""

    exit_code = 2


class _Files(Mapping[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        found = vars(importlib.import_module(COMMANDS[name])).values()
        return next(each for each in found if isinstance(each, click.Command) and each.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


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
            raise _refusal(ctx, error)(printable("\n".join([str(error), *notes_text(error)]))) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if in_a_line(error) is None and not is_env_fault(error):
                raise
            words = message_of(error, whole="--debug" in ctx.meta["flowrl.command"])
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


@click.group(cls=_Commands, commands=cast(Any, _Files()), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flowrl")
def cli() -> None:
    """Reinforcement learning as lazy dataflow plans."""


def _printable_record(record: logging.LogRecord) -> bool:
    """A filter that lets all records of the log through, as text that a terminal only shows."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def main() -> None:
    """The entry point of the command."""
    if "" not in sys.path:
        sys.path.append("")  # the user's modules, as with `python -m flowrl`
    logging.getLogger("flowrl").addFilter(_printable_record)
    arguments = sys.argv[1:]
    fill_closed()
    faulthandler.enable(2, all_threads=False)  # a crash in C code, of an environment say, names the line
    sys.stdout, sys.stderr = unclosable(sys.stdout, 1), unclosable(sys.stderr, 2)
    try:
        cli(prog_name="flowrl", args=arguments)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a further Ctrl-C has nothing left to stop
        # A run has its results in its directory; what other commands give is what they print.
        sys.exit(end.code or int(lost_output(sys.stdout) and arguments[:1] != ["run"]))
