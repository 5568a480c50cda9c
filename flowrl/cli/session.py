"""A run of a plan from the command line: pulls it to its end, records and shows results, and stops it cleanly."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsInt

import attrs
import click

from flowrl.cli.directory import RunDirectory
from flowrl.cli.output import complain
from flowrl.cli.progress import CLOCKS, Budget, progress, summary
from flowrl.cli.resume import EarlierRun, step_of
from flowrl.engine.graph import graph
from flowrl.engine.operator import state_fields
from flowrl.engine.plan import Plan
from flowrl.engine.run import Run
from flowrl.errors import CheckpointError, ConfigError, NotFinite, notes_of
from flowrl.inspect.debugger import is_breakpoint
from flowrl.interrupts import Interrupts
from flowrl.rollout import WorkerSet
from flowrl.saved import Saved
from flowrl.storage.checkpoint import Checkpoints, save_checkpoint
from flowrl.storage.files import plain, write
from flowrl.trainer.trainer import as_result

log = logging.getLogger("flowrl")

#: Env steps between checkpoints if neither the configuration nor evaluations determine them.
CHECKPOINT_EVERY = 10_000

#: Seconds after `--stop-seconds` for which a run may go on to its next result.
LAST_RESULT_SECONDS = 30.0

#: The scores in a saved session, with their types.
_SESSION = {"last": dict[str, Any], "best": float | None, "confirmed": float | None}

#: Exit code by outcome.
EXIT_CODES = {"done": 0, "goal": 0, "failed": 1, "budget": 3, "interrupted": 130}


@attrs.define(kw_only=True)
class Session:
    """Runs a plan whose items are result dicts in a run directory, with a checkpoint every `checkpoint_every` steps.

    `counter` is the clock of the budget and of `checkpoint_every`; `workers` are the workers' entries in run.json;
    `save` writes the policy's weights to a path, None for a policy without weights; `earlier` is the run to resume,
    None for a new one.
    """

    plan: Plan
    seed: int
    title: str
    directory: RunDirectory
    budget: Budget
    save: Callable[[Path], None] | None
    checkpoint_every: int = CHECKPOINT_EVERY
    earlier: EarlierRun | None = None
    counter: str = "env_steps"
    workers: Mapping[str, Any] = attrs.field(factory=dict)
    last: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    best: float | None = attrs.field(default=None, init=False)
    confirmed: float | None = attrs.field(default=None, init=False)
    error: Exception | None = attrs.field(default=None, init=False)
    _results: int = attrs.field(default=0, init=False)
    _due: int = attrs.field(default=0, init=False)
    _stand_in: tuple[int, int] | None = attrs.field(default=None, init=False)
    _overdue: bool = attrs.field(default=False, init=False)

    def run(self, command: list[str], *, quiet: bool = False) -> int:
        """Run to the end and return the exit code.

        Raises:
            FlowError: the plan cannot be opened, or the state of the earlier run does not fit; nothing was written.
        """
        try:
            with self.plan.run(seed=self.seed) as run, Interrupts(run) as interrupts:
                self._open(run, command, quiet)
                live = not any(is_breakpoint(node) for node in graph(self.plan))  # a prompt needs the terminal
                earlier, hard = run.context.watch.earlier, False
                try:
                    shown = progress(
                        self.title, self.budget, quiet=quiet, live=live, earlier=earlier, counter=self.counter
                    )
                    with shown as display, self._time_limit(run):
                        for result in run:
                            self._take(result)
                            display.report(result)
                            # At the end, save before the plan closes: then it may go on with a larger budget.
                            if run.ending or self._steps(run) >= self._due:
                                self._checkpoint(run)
                    if not run.ending:
                        self._checkpoint(run)
                    self._save_policy()
                except KeyboardInterrupt:  # the second signal: files are complete, the rest is dropped
                    hard = True
                except Exception as error:
                    self.error = error
                    self._keep_batches(error)
                    complain(error)
                    self._keep_policy()
                outcome = self._outcome(hard or interrupts.asked or (run.interrupted and not self._overdue))
                seconds = run.context.watch.seconds
                early = outcome in ("interrupted", "failed")  # the last result is then older than the end
                last = {**self.last, self.counter: self._steps(run)} if early else self.last
                try:
                    self.directory.finish(self._summary(outcome, seconds), run.explain())
                except ConfigError as error:
                    self.error, outcome = error, "failed"
                    complain(error)
        finally:
            self.directory.close()
        scores, place = (self.best, self.confirmed), self.directory.path
        click.echo(summary(outcome, last, *scores, seconds, place, self.counter) + self._way_on(outcome))
        return EXIT_CODES[outcome]

    @contextmanager
    def _time_limit(self, run: Run) -> Iterator[None]:
        """End a run that has no result when `--stop-seconds` are over: a worker may hang."""

        def end() -> None:
            self._overdue = True
            log.warning("no result since %g s were over: the run ends without", self.budget.seconds)
            run.interrupt()

        if self.budget.seconds is None:
            yield
            return
        left = max(0.0, self.budget.seconds - run.context.watch.seconds) + LAST_RESULT_SECONDS
        timer = threading.Timer(min(left, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _open(self, run: Run, command: list[str], quiet: bool) -> None:
        """Begin the run, or restore the state of the earlier one."""
        stop, explained = attrs.asdict(self.budget), self.plan.explain()
        if self.earlier is None:
            self.directory.create(explained, command, stop, workers=self.workers)
        else:
            if begun := self.earlier.has_checkpoint:
                self._load(run, self.earlier.checkpoint)
            earlier = self.earlier.about
            self.directory.create(
                explained, command, stop, workers=self.workers, earlier=earlier, results=self._results
            )
            if not quiet:
                at = f"resumed at {self._steps(run):,} {CLOCKS[self.counter]}" + self._cut(run)
                click.echo(at if begun else "no checkpoint yet: beginning anew")
        self.plan.draw(self.directory.path / "plan.svg")
        self._due = self._next_due(run)

    def _load(self, run: Run, chosen: Path | None) -> None:
        """Load the state of a checkpoint."""
        try:
            # A run's own checkpoint is as trustworthy as the plan file beside it, which runs too.
            state = self._checkpoints.load(chosen, trusted=True)
            if "session" not in state:
                raise CheckpointError(f"{chosen or self._checkpoints.latest()} was not written by flowrl run")
            session = Saved(state.pop("session"), "the saved session")
            last, best, confirmed = (session.get(name, kind) for name, kind in _SESSION.items())
            results, seconds = session.count("results"), session.get("seconds", float, least=0)
            policy, operators = (
                session.get("policy", bytes | None),
                Saved(state, "the saved run").get("operators", dict),
            )
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._offer(chosen)}") from error
        fresh = run.state_dict()["operators"]
        for path in self._added(run) - operators.keys():  # of an option that is new
            operators[path] = fresh[path]
        run.load_state_dict(state)
        self.last, self.best, self.confirmed = last, best, confirmed
        self._results, run.context.watch.earlier = results, seconds
        with self.directory.writing():
            self._checkpoints.rewind(chosen or self._checkpoints.paths()[-1])
            # The best policy at the checkpoint: a later evaluation may have replaced it.
            if policy is not None:
                write(self._policy, policy)
            elif self.save is not None and self._policy.exists():  # written after the checkpoint, which had none
                self.save(self._policy)
                self._stand_in = self._written()

    def _offer(self, chosen: Path | None) -> str:
        latest = chosen or self._checkpoints.latest()
        before = None if latest is None else self._checkpoints.before(latest)
        return "" if before is None else f"; to go on from there: flowrl run --resume {shlex.quote(str(before))}"

    @staticmethod
    def _added(run: Run) -> set[str]:
        """Paths of the stateful operators that options of the command added to the plan."""
        return {run.paths[id(n)] for n in graph(run.plan) if n.site.startswith("flowrl run") and state_fields(n.op)}

    @staticmethod
    def _cut(run: Run) -> str:
        cut = sum(each.lost.get("cut_episodes", 0) for each in run.resources.values() if isinstance(each, WorkerSet))
        return f"; {cut} episodes that could not be saved were cut" if cut else ""

    def _checkpoint(self, run: Run) -> None:
        """Save everything. If that fails, the run goes on, and the earlier checkpoints remain."""
        self._due = self._next_due(run)
        try:
            self.directory.flush()
            session = {
                "results": self._results,
                "seconds": run.context.watch.seconds,
                "last": plain(self.last),
                "best": self.best,
                "confirmed": self.confirmed,
                "policy": self._policy.read_bytes() if self._has_best() else None,
            }
            about = {"plan": self.title, "operators": sorted(run.paths.values()), "counters": dict(run.counters)}
            self._checkpoints.save({**run.state_dict(), "session": session}, about, step=self._steps(run))
        except Exception as error:
            log.warning("no checkpoint at %d steps: %s: %s", self._steps(run), type(error).__name__, error)

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.directory.path / "checkpoints")

    @property
    def _policy(self) -> Path:
        return self.directory.path / "policy.pt"

    def _steps(self, run: Run) -> int:
        reported = self.last.get(self.counter)
        return max(run.counters.get(self.counter, 0), int(reported) if isinstance(reported, SupportsInt) else 0)

    def _next_due(self, run: Run) -> int:
        return (self._steps(run) // self.checkpoint_every + 1) * self.checkpoint_every

    def _take(self, item: Any) -> None:
        plan = self.plan
        while plan.site.startswith("flowrl run") and plan.inputs:  # operators of options pass items on
            plan = plan.inputs[0]
        self.last = result = as_result(item, plan)
        self.directory.record(result)
        self._results += 1
        if result.get("best_eval_return") is not None:
            self.best = result["best_eval_return"]
        if result.get("confirmed_return") is not None:
            self.confirmed = result["confirmed_return"]

    def _save_policy(self) -> None:
        """Write policy_last.pt, and policy.pt unless it holds the best policy of an evaluation."""
        if self.save is None:
            return
        self.save(self.directory.path / "policy_last.pt")
        if not self._has_best():
            self.save(self._policy)

    def _keep_policy(self) -> None:
        """Try to save the policy of a failed run."""
        try:
            self._save_policy()
        except Exception as error:
            log.warning("the policy could not be saved: %s: %s", type(error).__name__, error)

    def _keep_batches(self, error: Exception) -> None:
        """Try to save the rows from which something that is not finite came (X1)."""
        if not isinstance(error, NotFinite) or not error.batches:
            return
        path = self.directory.path / "not_finite"
        try:
            save_checkpoint(path, {"batches": list(error.batches)})
            read = f"flowrl.storage.checkpoint.load_checkpoint({str(path)!r})['batches']"
            error.add_note(f"its rows are saved; to look at them: {read}")
        except CheckpointError as failed:
            log.warning("the rows could not be saved: %s", failed)

    def _has_best(self) -> bool:
        """Whether policy.pt comes from an evaluation."""
        return self._policy.exists() and self._written() != self._stand_in

    def _written(self) -> tuple[int, int]:
        """Identity of the current policy.pt: every save writes a new file."""
        stat = self._policy.stat()
        return stat.st_ino, stat.st_mtime_ns

    def _way_on(self, outcome: str) -> str:
        latest = self._checkpoints.latest()
        if outcome not in ("interrupted", "failed") or latest is None:
            return ""
        return f"; to go on from step {step_of(latest):,}: flowrl run --resume {shlex.quote(str(self.directory.path))}"

    def _outcome(self, interrupted: bool) -> str:
        if self.error is not None:
            return "failed"
        if self.budget.goal is not None and self.confirmed is not None and self.confirmed >= self.budget.goal:
            return "goal"
        if interrupted:
            return "interrupted"
        return "done" if self.budget.goal is None else "budget"

    def _summary(self, outcome: str, seconds: float) -> dict[str, Any]:
        values = {
            "outcome": outcome,
            "exit_code": EXIT_CODES[outcome],
            "seconds": seconds,
            "stop": attrs.asdict(self.budget),
            "best_eval_return": self.best,
            "confirmed_return": self.confirmed,
            "last": self.last,
        }
        if self.error is not None:
            values["error"] = "\n".join([f"{type(self.error).__name__}: {self.error}", *notes_of(self.error)])
        return values
