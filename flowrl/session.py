"""One run of a plan from the command line: pulled to its end, recorded, shown, and stopped cleanly."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter as clock
from types import FrameType
from typing import Any

import attrs

from flowrl.debugger import is_breakpoint
from flowrl.errors import PlanError
from flowrl.operator import describe
from flowrl.paths import graph
from flowrl.plan import Plan
from flowrl.progress import Budget, progress, say, summary
from flowrl.run_dir import RunDirectory
from flowrl.scheduler import Run

#: Exit code by outcome.
EXIT_CODES = {"done": 0, "goal": 0, "failed": 1, "budget": 3, "interrupted": 130}


@attrs.define
class Session:
    """Runs a plan whose items are result dicts, over a run directory.

    `save` writes the weights of the policy as it is to a path; None if it has none.
    """

    plan: Plan
    seed: int
    title: str
    directory: RunDirectory
    budget: Budget
    save: Callable[[Path], None] | None
    last: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    best: float | None = attrs.field(default=None, init=False)
    confirmed: float | None = attrs.field(default=None, init=False)
    error: Exception | None = attrs.field(default=None, init=False)

    def run(self, command: list[str], *, quiet: bool = False) -> int:
        """Run to the end and return the exit code.

        Raises:
            FlowError: the plan cannot be opened; nothing was written.
        """
        started = clock()
        with self.plan.run(seed=self.seed) as run, Interrupts(run) as interrupts:
            self.directory.create(self.plan.explain(), command)
            self.plan.draw(self.directory.path / "plan.svg")
            hard = False
            try:
                live = not any(is_breakpoint(node) for node in graph(self.plan))  # a prompt needs the terminal
                with progress(self.title, self.budget, quiet=quiet, live=live) as display:
                    for result in run:
                        self._take(result)
                        display.report(result)
                self._save_policy()
            except KeyboardInterrupt:  # asked twice: what is written is whole, the rest is left
                hard = True
            except Exception as error:
                self.error = error
                traceback.print_exception(error)
            outcome = self._outcome(hard or interrupts.asked or run.interrupted)
            seconds = clock() - started
            self.directory.finish(self._summary(outcome, seconds), run.explain())
        say(summary(outcome, self.last, self.best, self.confirmed, seconds, self.directory.path))
        return EXIT_CODES[outcome]

    def _take(self, result: Any) -> None:
        if not isinstance(result, Mapping):
            raise PlanError(f"a plan's items must be result dicts, got {describe(result)} from {self.plan.name}")
        self.last = result
        self.directory.record(result)
        if result.get("best_eval_return") is not None:
            self.best = result["best_eval_return"]
        if result.get("confirmed_return") is not None:
            self.confirmed = result["confirmed_return"]

    def _save_policy(self) -> None:
        """policy_last.pt, and policy.pt where no evaluation has written the best one there."""
        if self.save is None:
            return
        self.save(self.directory.path / "policy_last.pt")
        if not (self.directory.path / "policy.pt").exists():
            self.save(self.directory.path / "policy.pt")

    def _outcome(self, interrupted: bool) -> str:
        if self.error is not None:
            return "failed"
        if self.budget.goal is not None and self.confirmed is not None and self.confirmed >= self.budget.goal:
            return "goal"
        if interrupted:
            return "interrupted"
        return "done" if self.budget.goal is None else "budget"

    def _summary(self, outcome: str, seconds: float) -> dict[str, Any]:
        found = {
            "outcome": outcome,
            "exit_code": EXIT_CODES[outcome],
            "seconds": seconds,
            "stop": attrs.asdict(self.budget),
            "best_eval_return": self.best,
            "confirmed_return": self.confirmed,
            "last": self.last,
        }
        if self.error is not None:
            notes = getattr(self.error, "__notes__", [])
            found["error"] = "\n".join([f"{type(self.error).__name__}: {self.error}", *notes])
        return found


class Interrupts:
    """SIGINT and SIGTERM end a run at its next step, the second one at once; then all is as it was before."""

    _signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, run: Run) -> None:
        self.asked = False
        self._run = run
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # no other one may set handlers
            for number in self._signals:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._run.interrupt()
        # Not print, which refuses to be entered again; nor click, which would write past the live display.
        os.write(2, b"stopping after this step; once more to stop at once\n")
