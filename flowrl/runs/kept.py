"""A run that is kept in a directory: opened, pulled with its results recorded and shown, and stopped cleanly."""

from __future__ import annotations

import logging
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter as clock
from typing import Any, Self, SupportsInt

import attrs
import click

from flowrl.engine.context import Stopwatch
from flowrl.engine.graph import graph
from flowrl.engine.operator import state_fields
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import Saveable
from flowrl.engine.recording.journal import Recording
from flowrl.engine.recording.trace import Trace
from flowrl.engine.run import Run
from flowrl.errors import CheckpointError, ConfigError, NotFinite, notes_of
from flowrl.inspect.debugger import is_breakpoint
from flowrl.inspect.profile import Profile
from flowrl.inspect.profiler import Profiler
from flowrl.interrupts import Interrupts
from flowrl.policies.protocols import HasWeights
from flowrl.rollout import Workers, WorkerSet
from flowrl.runs.config import Configuration
from flowrl.runs.directory import JOURNAL, PROFILE, RunDirectory, config_text
from flowrl.runs.failed_item import keep_failed_item
from flowrl.runs.plan_end import END, ORIGINS, Origin, as_result, own_eval_every, plan_hash, with_ending
from flowrl.runs.progress import CLOCKS, STOPPED, Budget, Progress, progress, summary
from flowrl.runs.resume import EarlierRun, step_of
from flowrl.runs.run_info import counts_of_budgets, described, in_words, read_results
from flowrl.runs.until import evaluation_in
from flowrl.saved import Saved
from flowrl.storage.checkpoint import Checkpoints, save_checkpoint
from flowrl.storage.files import plain, write, write_json
from flowrl.storage.fingerprint import fingerprint
from flowrl.storage.journal import JournalFile, is_current

log = logging.getLogger("flowrl")

#: Env steps between checkpoints if neither the configuration nor evaluations determine them.
CHECKPOINT_EVERY = 10_000

#: Seconds after `--stop-seconds` for which a run may go on to its next result.
LAST_RESULT_SECONDS = 30.0

#: Seconds between two looks at where the time of a run goes, and the most of its time that they may take.
LOOK_SECONDS, LOOK_SHARE = 1.0, 0.005

#: The scores in a saved session, with their types.
_SESSION = {"last": dict[str, Any], "best": float | None, "confirmed": float | dict[str, float] | None}

#: Exit code by outcome.
EXIT_CODES = {"done": 0, "goal": 0, "failed": 1, "budget": 3, "interrupted": 130}


@attrs.define(kw_only=True)
class KeptRun:
    """A run whose items are result dicts, kept in a directory: `open` is the one way in which it begins or goes on.

    The command line then calls `to_end`; a `Trainer` calls `pull` as often as it trains, and `end`.

    `plan` has an end that evaluates, see `with_ending`; `forked` are the settings that differ from those of the
    `earlier` run, see `flowrl.runs.run_info.Changes`; `about` are further entries of run.json.
    """

    run: Run
    plan: Plan
    workers: Workers  #: with the policy that is saved
    config: Configuration
    title: str
    directory: RunDirectory
    budget: Budget
    origin: Origin
    earlier: EarlierRun | None = None  #: which it resumes; None for a new one
    forked: Mapping[str, Any] = attrs.field(factory=dict)
    about: Mapping[str, Any] = attrs.field(factory=dict)
    complain: Callable[[Exception], None] | None = None  #: prints an error
    span: float | None = None  #: seconds after which the first result ends it, for a profile
    trace: Path | None = None  #: the file of a trace of it
    tracer: Trace | None = None  #: which listens for that
    journal: Recording | None = None  #: of what the run decides
    last: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    best: float | None = attrs.field(default=None, init=False)
    evaluation: Mapping[str, Any] = attrs.field(factory=dict, init=False)  #: entries of the newest one
    confirmed: dict[str, float] = attrs.field(factory=dict, init=False)  #: entries of the newest confirmation
    error: Exception | None = attrs.field(default=None, init=False)
    words: str = attrs.field(default="", init=False)  #: how it ended, in a line
    ended: bool = attrs.field(default=False, init=False)
    _results: int = attrs.field(default=0, init=False)
    _whole: bool = attrs.field(default=False, init=False)  # whether there is a checkpoint since the last result
    _complete: bool = attrs.field(default=True, init=False)  # whether the rest of the directory knows of it too
    _due: float = attrs.field(default=0, init=False)  # the step of the next checkpoint
    _due_offline: float = attrs.field(default=0, init=False)  # ... and the update, as long as there are no steps
    _saved: float = attrs.field(factory=clock, init=False)  # when the last one was taken
    _stand_in: tuple[int, int] | None = attrs.field(default=None, init=False)
    _overdue: bool = attrs.field(default=False, init=False)
    _begun: float = attrs.field(default=0.0, init=False)  # when it was last pulled
    _writer: threading.Thread | None = attrs.field(default=None, init=False)  # of the newest checkpoint
    _profiler: Profiler | None = attrs.field(default=None, init=False)
    _journaled: int = attrs.field(default=0, init=False)  # size of the journal that a resumed run goes on with
    _journal: JournalFile | None = attrs.field(default=None, init=False)

    @classmethod
    def open(
        cls,
        plan: Plan,
        workers: Workers,
        config: Configuration,
        title: str,
        directory: RunDirectory,
        budget: Budget,
        *,
        origin: Origin,
        command: Sequence[str],
        about: Mapping[str, Any],
        earlier: EarlierRun | None = None,
        watch: Callable[[Plan], Plan] = lambda plan: plan,
        show: Callable[[str], object] = lambda _: None,
        **more: Any,
    ) -> Self:
        """Open a run of a plan in a directory: create its files, or restore the state of the earlier run.

        Args:
            plan: The algorithm alone; evaluation, the confirmation of a goal and what ends the run are added.
            command: What started it, for run.json.
            watch: Adds what changes no result, such as taps, to the plan with its end.
            show: Prints a line of how it begins.
            more: Further attributes.

        Raises:
            FlowError: the plan has a problem, the directory is in use, or the state of the earlier run does not fit;
                nothing was written.
        """
        config = attrs.evolve(config, eval_every=own_eval_every(plan, workers, config, budget))
        directory.config_text = config_text(config)
        with ExitStack() as undo:
            undo.callback(directory.close)
            directory.claim() if earlier is None else directory.lock()
            stops = attrs.asdict(budget) if origin.ends else {"goal": budget.goal}
            plan = with_ending(plan, workers, config, origin.site, save=directory.path / "policy.pt", **stops)
            plan.check()
            plan = watch(plan)
            journal = _journal_of(config, directory, earlier)
            tracer = None if more.get("trace") is None else Trace()
            run = plan.run(seed=config.seed, decisions=journal, observer=tracer)
            undo.callback(run.close)
            kept = cls(
                run=run,
                plan=plan,
                workers=workers,
                config=config,
                title=title,
                directory=directory,
                budget=budget,
                origin=origin,
                about={**workers.about(), **about, "plan_hash": plan_hash(plan)},
                earlier=earlier,
                journal=journal,
                tracer=tracer,
                **more,
            )
            kept._begin(command, show)
            undo.pop_all()
        return kept

    def to_end(self, *, quiet: bool = False) -> int:
        """Run to the end and return the exit code."""
        try:
            with self.run, Interrupts(self.run) as interrupts:
                outcome = self.pull(interrupts, None if self.span is None else self._spent, quiet=quiet)
                if self.tracer is not None and self.trace is not None:
                    self._write_trace(self.tracer.text(self.run), self.trace)
        finally:
            self._close()
        click.echo(self.words)
        return EXIT_CODES[outcome]

    def pull(
        self,
        interrupts: Interrupts,
        reached: Callable[[Mapping[str, Any]], bool] | None = None,
        *,
        quiet: bool = False,
        final: bool = True,
    ) -> str:
        """Pull results until the plan ends, one has `reached` what is wanted, or a signal comes; record and show them.

        Afterwards the directory is complete and closed; unless `final`, only if the run failed or was interrupted.
        Returns the outcome; `error` is what made it fail, and `ended` is whether the plan ended or was interrupted.
        """
        self.run.context.bounds.update(self.budget.counts(self.config.clock))
        self.directory.reopen(attrs.asdict(self.budget), self._results)
        self.error, hard, self.ended, self._overdue = None, False, False, False
        live = not any(is_breakpoint(node) for node in graph(self.plan))  # a prompt needs the terminal
        earlier = self.run.context.watch.seconds
        self._profiler, self._begun = self._profiler or Profiler(self.run, self.config.clock), clock()
        try:
            shown = progress(
                self.title,
                self.budget,
                quiet=quiet,
                live=live,
                earlier=earlier,
                counter=self.config.clock,
                plan=self.plan,
            )
            with shown as display, self._time_limit(), self._watched(display):
                for result in self.run:
                    self._profiler.count_result()
                    self._take(result)
                    display.report(self.last)
                    # At the end, save before the plan closes: then it may go on with a larger budget.
                    if self.run.ending or self._is_due():
                        self._checkpoint()
                    if reached is not None and reached(self.last):
                        break
                else:
                    self.ended = True
            if not (final or self.ended or interrupts.asked):
                return "done"
            if not self._whole or self.run.interrupted:
                self._checkpoint()
            self._save_policy()
        except KeyboardInterrupt:  # the second signal: files are complete, the rest is dropped
            hard = True
        except Exception as error:
            self.error = error
            self._await_checkpoint()
            self._keep_batches(error)
            self._keep_item(error)
            if self.complain is not None:
                self.complain(error)
            self._keep_policy()
        outcome = self._outcome(hard or interrupts.asked or (self.run.interrupted and not self._overdue))
        return self._finish(outcome)

    def end(self) -> None:
        """Complete and close the directory of a run that is pulled no further."""
        if not self._complete:
            if not self._whole:
                self._checkpoint()
            self._save_policy()
            self._finish(self._outcome(False))
        self._close()
        if self.directory.log is not None:
            self.directory.log.close()

    def _close(self) -> None:
        self._await_checkpoint()
        self.directory.close()
        if self._journal is not None:
            self._journal.close()

    def _finish(self, outcome: str) -> str:
        """Write how the run went, and close the directory."""
        self._await_checkpoint()
        self._complete = True
        watch = self.run.context.watch
        early = outcome in STOPPED  # the last result is then older than the end
        last = {**self.last, self.config.clock: self._steps()} if early else self.last
        try:
            if self.journal is not None and self.error is None:
                self.journal.end()
            self._write_journal()
            self.directory.finish(self._summary(outcome, watch), self.run.explain(), self._profile().values())
        except ConfigError as error:
            self.error, outcome = error, "failed"
            if self.complain is not None:
                self.complain(error)
        scores, place = (self.best, self.confirmed.get("confirmed_return")), self.directory.path
        words = summary(outcome, last, *scores, watch.seconds, place, self.config.clock, watch.evaluation)
        self.words = words + self._way_on(outcome)
        return outcome

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """End a run that has no result when `--stop-seconds` are over: a worker may hang."""

        def end() -> None:
            self._overdue = True
            log.warning("no result since %g s were over: the run ends without", self.span or self.budget.seconds)
            self.run.interrupt()

        bounds = [] if self.budget.seconds is None else [self.budget.seconds - self.run.context.watch.seconds]
        bounds += [] if self.span is None else [self.span]
        if not bounds:
            yield
            return
        left = max(0.0, min(bounds)) + LAST_RESULT_SECONDS
        timer = threading.Timer(min(left, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _begin(self, command: Sequence[str], show: Callable[[str], object]) -> None:
        """Create the files of a new run, or restore the state of the earlier one."""
        about, clock_, directory = dict(self.about), self.config.clock, self.directory
        stop, explained = attrs.asdict(self.budget), self.plan.explain()
        if self.earlier is None:
            directory.create(explained, command, stop, more=about)
        else:
            if begun := self.earlier.has_checkpoint:
                self._load(self.earlier.checkpoint)
                self._whole = True
            self.run.context.bounds.update(counts_of_budgets(self.earlier.about, clock_))
            if again := self._made_again():
                about["again"] = again
            if self.forked:
                about["fork"] = {clock_: self._steps(), "settings": self.forked}
            directory.create(explained, command, stop, more=about, earlier=self.earlier.about, results=self._results)
            at = f"resumed at {self._steps():,} {CLOCKS[clock_]}" + self._cut()
            at += f", with {in_words(self.forked)}" if self.forked else ""
            at += f"; {again:,} later ones are made again" if again else ""
            show(at if begun else "no checkpoint yet: beginning anew")
        self.plan.draw(directory.path / "plan.svg")
        if self.journal is not None:
            header = {"plan": about["plan_hash"], "seed": self.config.seed}
            self._journal = JournalFile(directory.path / JOURNAL, header, self._journaled)
        # A run without a checkpoint takes one at its first result: from then on a kill leaves a policy and a state.
        if self._whole:
            self._set_due()
        self._saved = clock()

    def _made_again(self) -> int:
        """The steps of the earlier run's last result since the checkpoint."""
        assert self.earlier is not None
        if not (self.earlier.path / "metrics.jsonl").exists():
            return 0
        results = read_results(self.earlier.path)
        return max(0, int(results[-1].get(self.config.clock, 0)) - self._steps()) if results else 0

    def _load(self, chosen: Path | None) -> None:
        """Load the state of a checkpoint."""
        try:
            # A run's own checkpoint is as trustworthy as the plan file beside it, which runs too.
            state = self._checkpoints.load(chosen, trusted=True)
            if "session" not in state:
                raise CheckpointError(f"{chosen or self._checkpoints.latest()} was not written by flowrl run")
            session = Saved(state.pop("session"), "the saved session")
            last, best, confirmed = (session.get(name, kind) for name, kind in _SESSION.items())
            evaluation = session.get("evaluation", dict[str, Any], otherwise=evaluation_in(last))
            results, seconds = session.count("results"), session.get("seconds", float, least=0)
            journaled, loads = session.get("journal", tuple[int, int], otherwise=(0, 0))
            evaluated = session.get("eval_seconds", float, otherwise=0.0, least=0)
            policy, operators = (
                session.get("policy", bytes | None),
                Saved(state, "the saved run").get("operators", dict),
            )
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._offer(chosen)}") from error
        fresh = self.run.state_dict()["operators"]
        for path in self._added() - operators.keys():  # of an option that is new
            operators[path] = fresh[path]
        for path in [path for path in operators.keys() - fresh.keys() if END.fullmatch(path)]:  # of one that is gone
            del operators[path]
        if self.journal is not None:
            self.journal.begin(loads)
            self._journaled = journaled
        self.run.load_state_dict(state)
        if not isinstance(confirmed, dict):  # of an earlier version
            confirmed = {} if confirmed is None else {"confirmed_return": confirmed}
        self.last, self.best, self.confirmed, self.evaluation = last, best, confirmed, evaluation
        self._results, watch = results, self.run.context.watch
        watch.earlier_training, watch.earlier_evaluation = seconds, evaluated
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
        return "" if before is None else f"; to go on from there: {self.origin.way_on(before)}"

    def _added(self) -> set[str]:
        """Paths of the stateful operators that options of the command added to the plan."""
        run = self.run
        return {run.paths[id(n)] for n in graph(run.plan) if n.site.startswith(ORIGINS) and state_fields(n.op)}

    def _cut(self) -> str:
        sets = [each for each in self.run.resources.values() if isinstance(each, WorkerSet)]
        cut = sum(each.lost.get("cut_episodes", 0) for each in sets)
        return f"; {cut} episodes that could not be saved were cut" if cut else ""

    def _checkpoint(self) -> None:
        """Save everything: the state is copied, and written while the run goes on (D12); the first one is waited for.

        If that fails, the run goes on, and the earlier checkpoints remain.
        """
        self._await_checkpoint()
        self._whole = True
        self._set_due()
        run, step = self.run, self._steps()
        try:
            self.directory.flush()
            state = run.state_dict()
            session = {
                "results": self._results,
                "seconds": run.context.watch.training,
                "eval_seconds": run.context.watch.evaluation,
                "last": plain(self.last),
                "best": self.best,
                "evaluation": plain(self.evaluation),
                "confirmed": self.confirmed,
                "policy": self._policy.read_bytes() if self._has_best() else None,
                "journal": self._end_journal_part(),
            }
            about = {"plan": self.title, "operators": sorted(run.paths.values()), "counters": dict(run.counters)}
            about["policy"] = described(run, self.workers)
            state["session"] = session
        except Exception as error:
            self._without_checkpoint(step, error)
        else:
            self._writer = threading.Thread(target=self._write, args=(state, about, step), name="checkpoint")
            self._writer.start()
            if self._checkpoints.latest() is None:
                self._await_checkpoint()
        self._saved = clock()

    def _write_journal(self) -> None:
        """Write what was noted, so that it survives a kill."""
        if self.journal is not None and self._journal is not None:
            with self.directory.writing():
                self._journal.write(self.journal.drain())

    def _end_journal_part(self) -> tuple[int, int]:
        """End a part of the journal behind a state that a resumed run goes on from.

        Returns: the size of the file, and the number of states that the run has loaded.
        """
        if self.journal is None or self._journal is None:
            return 0, 0
        self.journal.settle()
        self._write_journal()
        self.journal.renumber()
        with self.directory.writing():
            return self._journal.end_part(), self.journal.loads

    def _write(self, state: Mapping[str, Any], about: Mapping[str, Any], step: int) -> None:
        try:
            self._checkpoints.save(state, about, step=step)
        except Exception as error:
            self._without_checkpoint(step, error)

    @staticmethod
    def _without_checkpoint(step: int, error: Exception) -> None:
        log.warning("no checkpoint at %d steps: %s: %s", step, type(error).__name__, error)

    def _await_checkpoint(self) -> None:
        """Wait until the newest checkpoint is on the disk."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    @staticmethod
    def _write_trace(text: str, path: Path) -> None:
        try:
            write(path, text)
        except OSError as error:
            raise ConfigError(f"the trace cannot be written to {path}: {error.strerror or error}") from error

    def _spent(self, _: Mapping[str, Any]) -> bool:
        return self.span is not None and clock() - self._begun >= self.span

    def _profile(self) -> Profile:
        assert self._profiler is not None, "pull() comes first"
        return self._profiler.profile()

    @contextmanager
    def _watched(self, display: Progress) -> Iterator[None]:
        """Write and show where the time goes and what the run waits for, about every second while it goes."""

        def look(_: Run) -> float:
            began = clock()
            try:
                profile = self._profile()
                with suppress(OSError):  # a full disk, which ends no training; `finish` complains
                    write_json(self.directory.path / PROFILE, profile.values())
                display.look(profile)
            except Exception as error:  # of an operator that says why it waits, say
                log.warning("the run is looked at no more: %s: %s", type(error).__name__, error)
                return math.inf
            return max(LOOK_SECONDS, (clock() - began) / LOOK_SHARE)

        self.run.watch(look)
        try:
            yield
        finally:
            self.run.watch(None)

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the policy to a path; None for a policy without weights."""
        return self.workers.save_policy if isinstance(self.workers.policy, HasWeights) else None

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.directory.path / "checkpoints", self.config.checkpoint_keep)

    @property
    def _policy(self) -> Path:
        return self.directory.path / "policy.pt"

    def _steps(self) -> int:
        counter = self.config.clock
        reported = self.last.get(counter)
        return max(self.run.counters.get(counter, 0), int(reported) if isinstance(reported, SupportsInt) else 0)

    def _is_due(self) -> bool:
        seconds = self.config.checkpoint_seconds
        late = seconds is not None and clock() - self._saved >= seconds
        early = not self._steps() and self.run.counters.get("updates", 0) >= self._due_offline
        return late or early or self._steps() >= self._due

    def _set_due(self) -> None:
        """Set when the next checkpoint is due: in steps, and in updates as long as there are none."""
        config = self.config
        by_time = config.checkpoint_seconds is not None
        every = config.checkpoint_every or (math.inf if by_time else config.eval_every or CHECKPOINT_EVERY)
        self._due = (self._steps() // every + 1) * every
        self._due_offline = (self.run.counters.get("updates", 0) // every + 1) * every

    def _take(self, item: Any) -> None:
        plan = self.plan
        while plan.site.startswith(ORIGINS) and plan.inputs:  # operators of options pass items on
            plan = plan.inputs[0]
        self.last = result = as_result(item, plan)
        self.directory.record(result)
        self._results += 1
        self._whole = self._complete = False
        self._write_journal()
        self.evaluation = evaluation_in(result) or self.evaluation
        newest = {name: score for name, score in result.items() if name.startswith("confirmed_return")}
        best = result.get("best_eval_return")
        if newest or best not in (None, self.best):  # a better policy has not the confirmation of the one before
            self.confirmed = newest
        self.best = self.best if best is None else best

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

    def _keep_item(self, error: Exception) -> None:
        """Try to save the item at which an operator failed."""
        try:
            kept = keep_failed_item(self.run, error, self.directory.path)
            if kept and not any(note.startswith("in environment ") for note in notes_of(error)):  # has its own way out
                error.add_note(f"to run it again: flowrl replay-item {shlex.quote(str(self.directory.path))}")
        except Exception as failed:  # nothing may hide the error of the run
            log.warning("the item could not be saved: %s: %s", type(failed).__name__, failed)

    def _has_best(self) -> bool:
        """Whether policy.pt comes from an evaluation."""
        return self._policy.exists() and self._written() != self._stand_in

    def _written(self) -> tuple[int, int]:
        """Identity of the current policy.pt: every save writes a new file."""
        stat = self._policy.stat()
        return stat.st_ino, stat.st_mtime_ns

    def _way_on(self, outcome: str) -> str:
        latest = self._checkpoints.latest()
        if outcome not in STOPPED or latest is None:
            return ""
        return f"; to go on from step {step_of(latest):,}: {self.origin.way_on(self.directory.path)}"

    def _outcome(self, interrupted: bool) -> str:
        if self.error is not None:
            return "failed"
        wanted = self.budget.wanted
        if wanted and all(self.confirmed.get(name, -math.inf) >= least for name, least in wanted.items()):
            return "goal"
        if interrupted:
            return "interrupted"
        return "done" if self.budget.goal is None else "budget"

    def _summary(self, outcome: str, watch: Stopwatch) -> dict[str, Any]:
        policy = self.workers.policy
        values = {
            "outcome": outcome,
            "exit_code": EXIT_CODES[outcome],
            "seconds": watch.training,
            "eval_seconds": watch.evaluation,
            "stop": attrs.asdict(self.budget),
            "best_eval_return": self.best,
            "confirmed_return": self.confirmed.get("confirmed_return"),
            "evaluation": self.evaluation,
            "last": self.last,
            "parameters": fingerprint(policy.state_dict()) if isinstance(policy, Saveable) else None,
        }
        if self.error is not None:
            values["error"] = "\n".join([f"{type(self.error).__name__}: {self.error}", *notes_of(self.error)])
        return values


def _journal_of(config: Configuration, directory: RunDirectory, earlier: EarlierRun | None) -> Recording | None:
    """The journal of a run, if it has one. Raises: ConfigError: that of the earlier run cannot be read."""
    if not config.journal:
        return None
    file = directory.path / JOURNAL
    if earlier is None or not earlier.has_checkpoint or is_current(file):
        return Recording()
    # No later part of it can be followed without the first one.
    log.warning("%s has another version of the format: the run goes on, and notes nothing more in it", file)
    return None
