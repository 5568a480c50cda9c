"""`flowrl run --seeds N`: one plan under several seeds, each in a process of its own, and what came of all."""

from __future__ import annotations

import json
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

from flowrl.cli.curves import read_results
from flowrl.cli.progress import duration, say
from flowrl.cli.session import EXIT_CODES
from flowrl.cli.statistics import CONFIDENCE, FEWEST_TRIMMED, interquartile_mean, interval
from flowrl.errors import ConfigError
from flowrl.interrupts import handling
from flowrl.storage.files import write_json

#: The outcome of all seeds together is the first of these that one of them has.
WORST_FIRST = ("interrupted", "failed", "budget", "goal", "done")
BAD_INPUT = 2

#: A command in a new process that finds the same modules as this one, whichever way this one was started.
COMMAND = "import sys; sys.path[:] = {path!r}; from flowrl.cli.main import main; main()"


@attrs.define
class SeedsRun:
    """The same run under each of some seeds, in OUT/seed-K, and OUT/summary.json of all.

    Args:
        arguments: Of the command `flowrl`; seed, directory and --quiet are added.
        seeds: Begun in this order.
        folder: OUT.
        jobs: How many run at a time.
        quiet: Show how all ended, and nothing before.
    """

    arguments: Sequence[str]
    seeds: Sequence[int]
    folder: Path
    jobs: int = 1
    quiet: bool = False

    def run(self) -> int:
        """Run all seeds, say and write what came of them, and return the exit code.

        It is 0 if all reached the goal, or are done without one. A seed that fails leaves the others alone.

        Raises:
            ConfigError: the first seed's process refused what was asked for, and said why.
        """
        started = clock()
        with Children() as children, ThreadPoolExecutor(self.jobs) as pool:
            codes = list(pool.map(lambda seed: self._run(children, seed), self.seeds))
        if codes[0] == BAD_INPUT:
            raise ConfigError(f"seed {self.seeds[0]} was refused, for the reason above")
        ended = [self._ended(seed, code) for seed, code in zip(self.seeds, codes)]
        summary = summarise(ended, clock() - started)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "summary.json", summary)
        for line in [*lines(summary), f"in {self.folder}"]:
            say(line)
        return int(summary["exit_code"])

    def _run(self, children: Children, seed: int) -> int | None:
        """The exit code of one seed's process; None if it was not begun any more."""
        shown = self.jobs == 1 and not self.quiet
        if shown and not children.stopping:
            say(f"seed {seed} ({self.seeds.index(seed) + 1} of {len(self.seeds)})")
        own = [f"--seed={seed}", f"--out={self._directory(seed)}", *([] if shown else ["--quiet"])]
        code = children.run([*self.arguments, *own], silent=self.quiet)
        if code == BAD_INPUT and seed == self.seeds[0]:
            children.stopping = True
        return code

    def _directory(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"

    def _ended(self, seed: int, code: int | None) -> dict[str, Any]:
        """What is known of one seed; a process that was killed leaves no summary."""
        directory = self._directory(seed)
        try:
            summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            summary = {}
        outcome = summary.get("outcome", "")
        if EXIT_CODES.get(outcome, BAD_INPUT) != code:  # it says nothing, or the process ended otherwise after it
            outcome = "interrupted" if code in (None, EXIT_CODES["interrupted"]) else "failed"
        ended = {"seed": seed, "outcome": outcome, "exit_code": code, "seconds": summary.get("seconds")}
        results = read_results(directory) if (directory / "metrics.jsonl").exists() else []
        for key in ("env_steps", "episode_return", "eval_return", "confirmed_return"):
            ended[key] = next((result[key] for result in reversed(results) if result.get(key) is not None), None)
        return ended


def given(ctx: click.Context, without: Sequence[str]) -> list[str]:
    """The words that give a command its parameters again, but for some."""
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


class Children:
    """Processes of the command, each in a session of its own: a signal reaches them through this one alone.

    SIGINT, SIGTERM or SIGHUP end them at their next step, the second at once, a third kills them; no other is
    begun after the first.
    """

    _signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.stopping = False
        self._asked = 0
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a signal may come while another one is handled
        # A hangup that is ignored, as nohup has it, stays ignored.
        heard = [n for n in self._signals if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._handling: AbstractContextManager[None] = handling(heard, self._handle)

    def run(self, arguments: Sequence[str], *, silent: bool = False) -> int | None:
        """The exit code of one process when it has ended; None if it was not begun any more."""
        with self._lock:
            if self.stopping:
                return None
            command = [sys.executable, "-c", COMMAND.format(path=sys.path), *arguments]
            output = subprocess.DEVNULL if silent else None
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True)
            self._running.add(child)
        try:
            return child.wait()  # as long as a run takes, whose own waits have deadlines
        finally:
            with self._lock:
                self._running.discard(child)

    def __enter__(self) -> Children:
        self._handling.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handling.__exit__(*error)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        with self._lock:
            self.stopping = True
            self._asked += 1
            for child in self._running:
                child.send_signal(signal.SIGINT if self._asked <= 2 else signal.SIGKILL)


def summarise(ended: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """All seeds together: the outcome, how many reached the goal, and the middle of their figures (S4).

    The steps to the goal are those of the seeds that reached it, which `runs` counts: if some did not, the
    figure is better than the algorithm.
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


def middle(values: Sequence[float | None]) -> dict[str, Any] | None:
    """The interquartile mean of what is known, with its interval; None if nothing is.

    >>> middle([1, 2, None])["mean"], middle([1, 2, 3, 4])["iqm"], middle([7])["low"]
    (1.5, 2.5, None)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = interval([known]) or (None, None)
    name = "iqm" if len(known) >= FEWEST_TRIMMED else "mean"
    return {
        "runs": len(known),
        name: float(interquartile_mean(known)),
        "low": low,
        "high": high,
        "confidence": CONFIDENCE,
    }


def lines(summary: Mapping[str, Any]) -> list[str]:
    """A summary for people: a table of the seeds, then a line for each figure of all."""
    found = [["seed", "outcome", "env steps", "eval return", "seconds"]]
    for seed in summary["seeds"]:
        outcome = "not begun" if seed["exit_code"] is None else seed["outcome"]
        figures = [_figure(seed["env_steps"], 0), _figure(seed["eval_return"], 1), _figure(seed["seconds"], 1)]
        found.append([str(seed["seed"]), outcome, *figures])
    widths = [max(map(len, column)) for column in zip(*found)]
    table = ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in found]
    counts = Counter(seed["outcome"] for seed in summary["seeds"])
    told = [f"{len(summary['seeds'])} seeds: " + ", ".join(f"{n} {_WORDS[name]}" for name, n in counts.items())]
    shown = [("steps to the goal", "steps_to_goal", 0), ("eval return", "eval_return", 1)]
    if summary["eval_return"] is None:
        shown.append(("training return", "episode_return", 1))
    told += [f"{words}: {middle_text(summary[key], digits)}" for words, key, digits in shown if summary[key]]
    return [*table, *told, f"time: {duration(summary['seconds'])}"]


_WORDS = {
    "goal": "reached the goal",
    "budget": "ended before the goal",
    "done": "done",
    "failed": "failed",
    "interrupted": "interrupted",
}


def middle_text(found: Mapping[str, Any], digits: int) -> str:
    """What `middle` found, for people.

    >>> middle_text(middle([1.0, 2.0]), 1), middle_text(middle([7.0]), 1)
    ('mean 1.5, 95 % interval [1.0, 2.0] (2 runs)', 'mean 7.0 (1 run)')
    """
    name = "iqm" if "iqm" in found else "mean"
    runs = f"{found['runs']} run" + ("s" if found["runs"] > 1 else "")
    text = f"{name.upper() if name == 'iqm' else name} {_figure(found[name], digits)}"
    if found["low"] is None:
        return f"{text} ({runs})"
    bounds = f"[{_figure(found['low'], digits)}, {_figure(found['high'], digits)}]"
    return f"{text}, {100 * found['confidence']:g} % interval {bounds} ({runs})"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
