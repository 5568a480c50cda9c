"""`flowrl run --seeds N`: one plan under several seeds, each in a separate process, with a common summary."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter as clock
from types import FrameType
from typing import Any

import attrs
import click

from flowrl.errors import ConfigError
from flowrl.interrupts import die_with, handling
from flowrl.runs.kept import EXIT_CODES
from flowrl.runs.progress import duration
from flowrl.runs.run_info import read_results
from flowrl.saved import fits
from flowrl.storage.files import read_json, write_json
from flowrl.tools.statistics import figure, middle, middle_text

#: The common outcome is the first of these that any seed has.
WORST_FIRST = ("interrupted", "failed", "budget", "goal", "done")
BAD_INPUT = 2
#: The file in OUT with the arguments and the seeds.
STARTED = "seeds.json"

#: Runs the command, or a script, in a new process with the same modules as this one, however this one was started.
COMMAND = "import sys; sys.path[:] = {path!r}; from flowrl.cli.seeds import begin; begin({script!r})"


@attrs.define
class SeedsRun:
    """One run per seed, in OUT/seed-K, and OUT/summary.json of them all.

    Args:
        arguments: Arguments of the command `flowrl`, without seed, directory and --quiet.
        seeds: Seeds, in the order of their start.
        folder: OUT.
        jobs: Number of runs at a time.
        quiet: Show only the common summary.
        again: Arguments that resume a seed which has begun; None: all are new.
    """

    arguments: Sequence[str]
    seeds: Sequence[int]
    folder: Path
    jobs: int = 1
    quiet: bool = False
    again: Sequence[str] | None = None

    @classmethod
    def resume(cls, folder: Path, again: Sequence[str], jobs: int, quiet: bool) -> SeedsRun:
        """The seeds of an earlier command in OUT: those that have begun go on, the others begin.

        Raises:
            ConfigError: the folder does not say which seeds it is of.
        """
        file = folder / STARTED
        try:
            started = read_json(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} does not say how its seeds were started: {error}") from error
        arguments, each = started.get("arguments"), started.get("seeds")
        if not fits(arguments, list[str]) or not fits(each, list[int]) or not each:
            raise ConfigError(f"{file} is malformed: it has no arguments or no seeds")
        return cls(arguments, each, folder, jobs, quiet, again)

    def run(self) -> int:
        """Run all seeds, print and write the summary, and return the exit code.

        The code is 0 if all reached the goal, or ended without one. A failed seed does not stop the others.

        Raises:
            ConfigError: the first seed's process rejected the arguments, and printed why.
        """
        started = clock()
        if self.again is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / STARTED, {"arguments": list(self.arguments), "seeds": list(self.seeds)})
        with ChildProcesses() as children, ThreadPoolExecutor(self.jobs) as pool:
            codes = list(pool.map(lambda seed: self._run(children, seed), self.seeds))
        if codes[0] == BAD_INPUT:
            if self.again is None:
                (self.folder / STARTED).unlink(missing_ok=True)
            raise ConfigError(f"seed {self.seeds[0]} was rejected, for the reason above")
        ended = [self._ended(seed, code) for seed, code in zip(self.seeds, codes)]
        summary = summarise(ended, clock() - started)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "summary.json", summary)
        for line in [*lines(summary), f"in {self.folder}"]:
            click.echo(line)
        return int(summary["exit_code"])

    def _run(self, children: ChildProcesses, seed: int) -> int | None:
        """Run one seed's process and return its exit code; None if it was not started."""
        shown = self.jobs == 1 and not self.quiet
        if shown and not children.stopping:
            click.echo(f"seed {seed} ({self.seeds.index(seed) + 1} of {len(self.seeds)})")
        code = children.run([*self._command(seed), *([] if shown else ["--quiet"])], silent=self.quiet)
        if code == BAD_INPUT and seed == self.seeds[0]:
            children.stopping = True
        return code

    def _command(self, seed: int) -> list[str]:
        directory = self._directory(seed)
        if self.again is not None and (directory / "run.json").is_file():
            return [*self.again, f"--resume={directory}"]
        return [*self.arguments, f"--seed={seed}", f"--out={directory}"]

    def _directory(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"

    def _ended(self, seed: int, code: int | None) -> dict[str, Any]:
        """The entry of one seed in the summary; a killed process leaves none of its own."""
        directory = self._directory(seed)
        try:
            summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            summary = {}
        outcome = summary.get("outcome", "")
        if EXIT_CODES.get(outcome, BAD_INPUT) != code:  # no summary, or the process failed after writing it
            outcome = "interrupted" if code in (None, EXIT_CODES["interrupted"]) else "failed"
        ended = {"seed": seed, "outcome": outcome, "exit_code": code, "seconds": summary.get("seconds")}
        results = read_results(directory) if (directory / "metrics.jsonl").exists() else []
        for key in ("env_steps", "episode_return", "eval_return", "confirmed_return"):
            ended[key] = next((result[key] for result in reversed(results) if result.get(key) is not None), None)
        return ended


def arguments_of(ctx: click.Context, without: Sequence[str]) -> list[str]:
    """The arguments that repeat a command, without some of its parameters."""
    words = [str(ctx.info_name)]
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name))
        if value is None or value is False or param.name in without:
            continue
        if isinstance(param, click.Argument):
            words.append(str(value))
        elif isinstance(param, click.Option) and param.is_flag:
            words.append(param.opts[0])
        else:
            words += [f"{param.opts[0]}={each}" for each in (value if param.multiple else [value])]
    return words


def begin(script: str | None) -> None:
    """Run a script, or the command, as a child process, whose standard input is a pipe that ends with the parent."""
    die_with(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if script is None:
        runpy.run_module("flowrl", run_name="__main__")
    else:
        runpy.run_path(script, run_name="__main__")


class ChildProcesses:
    """Processes of the command, each in a separate session: signals reach them through this process alone.

    On Linux none outlives this process; its newest checkpoint stays.

    The first SIGINT, SIGTERM or SIGHUP ends them at their next step and starts no others, the second ends them at
    once, a third kills them.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._asked = 0
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a signal may arrive while another one is handled
        heard = [signal.SIGINT, signal.SIGTERM]
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
            heard.append(signal.SIGHUP)
        self._handling: AbstractContextManager[None] = handling(heard, self._handle)

    def run(self, arguments: Sequence[str], *, silent: bool = False) -> int | None:
        """Run the command with these arguments to its end and return the exit code; None if it was not started."""
        # Without a timeout: the waits inside a run have deadlines.
        return self.run_script(None, arguments, silent=silent, timeout=None)

    def run_script(
        self, script: str | None, arguments: Sequence[str], *, silent: bool, timeout: float | None
    ) -> int | None:
        """Run a script of Python, or the command if it is None, see `run`; after `timeout` seconds it is killed."""
        with self._lock:
            if self.stopping:
                return None
            command = [sys.executable, "-c", COMMAND.format(path=sys.path, script=script), *arguments]
            output = subprocess.DEVNULL if silent else None
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, start_new_session=True)
            self._running.add(child)
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()
        finally:
            with self._lock:
                self._running.discard(child)
            if child.stdin is not None:
                child.stdin.close()

    def __enter__(self) -> ChildProcesses:
        self._handling.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handling.__exit__(*error)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        with self._lock:
            self.stopping = True
            self._asked += 1
            for child in self._running:
                if self._asked > 2:
                    child.kill()
                elif sys.platform != "win32":  # there Ctrl-C reaches every process of the console
                    child.send_signal(signal.SIGINT)


def summarise(ended: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Summarise all seeds: the outcome, how many reached the goal, and the middle of their figures (S4).

    `steps_to_goal` covers only the seeds that reached the goal, which `runs` counts: if some did not, the figure
    flatters the algorithm.
    """
    outcome = next(name for name in WORST_FIRST if any(seed["outcome"] == name for seed in ended))
    reached = [seed for seed in ended if seed["outcome"] == "goal"]
    return {
        "outcome": outcome,
        "exit_code": EXIT_CODES[outcome],
        "seconds": seconds,
        "reached_goal": len(reached),
        "steps_to_goal": middle([seed["env_steps"] for seed in reached]),
        "eval_return": middle([seed["eval_return"] for seed in ended]),
        "episode_return": middle([seed["episode_return"] for seed in ended]),
        "seeds": list(ended),
    }


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary as text: a table of the seeds, then a line for each common figure."""
    rows = [["seed", "outcome", "env steps", "eval return", "seconds"]]
    for seed in summary["seeds"]:
        outcome = "not begun" if seed["exit_code"] is None else seed["outcome"]
        figures = [figure(seed["env_steps"], 0), figure(seed["eval_return"], None), figure(seed["seconds"], 1)]
        rows.append([str(seed["seed"]), outcome, *figures])
    widths = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]
    counts = Counter(seed["outcome"] for seed in summary["seeds"])
    totals = [f"{len(summary['seeds'])} seeds: " + ", ".join(f"{n} {_WORDS[name]}" for name, n in counts.items())]
    shown = [("steps to the goal", "steps_to_goal", 0), ("eval return", "eval_return", None)]
    if summary["eval_return"] is None:
        shown.append(("training return", "episode_return", None))
    totals += [f"{words}: {middle_text(summary[key], digits)}" for words, key, digits in shown if summary[key]]
    return [*table, *totals, f"time: {duration(summary['seconds'])}"]


_WORDS = {
    "goal": "reached the goal",
    "budget": "ended before the goal",
    "done": "done",
    "failed": "failed",
    "interrupted": "interrupted",
}
