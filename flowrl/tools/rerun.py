"""`flowrl rerun` and `flowrl verify`: a run once more, in this process, compared with what it has written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from flowrl.actors.actors import HERE
from flowrl.engine.graph import graph, select
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import Saveable, Worker
from flowrl.engine.recording.journal import JournalEnds, Replay
from flowrl.engine.run import Run
from flowrl.engine.stages import Stage
from flowrl.engine.workers.calls import Call
from flowrl.engine.workers.gather import GatherAsync
from flowrl.envs.managers.subprocess import THREADS
from flowrl.errors import ConfigError, printable
from flowrl.operators.metrics import CLOCK_KEYS, TIMERS
from flowrl.runs.config import Configuration
from flowrl.runs.directory import JOURNAL, processor, versions
from flowrl.runs.failed_item import described
from flowrl.runs.plan_end import plan_hash
from flowrl.runs.run_info import forks_in, read_about, read_results
from flowrl.storage.files import plain, read_json
from flowrl.storage.fingerprint import fingerprint
from flowrl.storage.journal import StoredJournal
from flowrl.tools.reopen import Reopened, reopened

#: The share by which `flowrl verify` lets returns differ on another processor or with other versions.
TOLERANCE = 0.05
#: The entries of a result that must be equal there.
COUNTERS = ("env_steps", "sampled", "trained", "updates", "inserted")


def rerun(path: str, plan: str | None = None, *, to: str | None = None, breaks: tuple[str, ...] = ()) -> int:
    """Run the plan of a run directory again, as its journal says, and show whether it comes out the same.

    Args:
        plan: The plan, instead of the file that the run was of.
        to: Where to stop: after so many results, or OPERATOR:N.
        breaks: Operators to stop at, at a prompt.

    Returns: the exit code: 0 if everything that the run has written comes out again, 1 if it departs.

    Raises: ConfigError: there is no journal, or it is not of this plan.
    """
    again = Rerun.of(Path(path))
    if again.replay is None:
        raise ConfigError(f"{path} has no journal: a run writes one with --journal (journal=True)")
    again.run(plan, to, breaks)
    for line in again.lines():
        click.echo(printable(line))
    return 0 if again.same else 1


def verify(path: str, plan: str | None = None, *, tolerance: float = TOLERANCE) -> int:
    """Run the plan of a run directory again, and show whether the numbers that it has published come out.

    Args:
        plan: The plan, instead of the file that the run was of.
        tolerance: See `Rerun`.

    Returns: the exit code: 0 if they do, 1 if not.

    Raises: ConfigError: the run depends on the clock, and has no journal; or on another plan.
    """
    again = Rerun.of(Path(path))
    here = {**versions(), "processor": processor()}
    then = {**again.about.get("versions", {}), "processor": again.about.get("processor")}
    again.others = [f"{name} was {then.get(name)} and is {now}" for name, now in here.items() if then.get(name) != now]
    again.tolerance = tolerance if again.others else 0.0
    again.run(plan)
    for line in [*again.others, *again.lines()]:
        click.echo(printable(line))
    return 0 if again.same else 1


@attrs.define
class Rerun:
    """A run directory, and what came of running its plan again.

    Attributes:
        results: The published results, without what a clock has told.
        replay: The decisions of its journal, None without one.
        reached: The number of results that came again.
        differs: The first thing that did not come out the same, in words; "" if everything did.
        stopped: Where it was told to stop, in words.
        parameters: The hashes of the parameters at the end, published and now; None where there is none.
        tolerance: 0: all must be the same to the last bit. Else the counters of the last result must be, and its
            returns may differ by this share of the published ones, or by so much below 1.
        others: In words, the versions and the processor that the run had, where these are others here.
    """

    path: Path
    results: list[str] = attrs.field(repr=False)
    summary: Mapping[str, Any]
    replay: Replay | None
    about: Mapping[str, Any]
    tolerance: float = 0.0
    others: list[str] = attrs.field(factory=list)
    last: Mapping[str, Any] = attrs.field(factory=dict)
    reached: int = 0
    differs: str = ""
    stopped: str = ""
    parameters: tuple[str | None, str | None] = (None, None)

    @classmethod
    def of(cls, path: Path) -> Rerun:
        """Read what a run has written."""
        about = read_about(path)
        if forks_in(about):
            raise ConfigError(f"{path} was resumed with other settings (a fork): it is no longer one run of one plan")
        results = [_line(result) for result in read_results(path)]
        try:
            summary = read_json(path / "summary.json") if (path / "summary.json").is_file() else {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path / 'summary.json'} cannot be read: {error}") from error
        if not isinstance(summary, dict):
            raise ConfigError(f"{path / 'summary.json'} is malformed: expected a table of values")
        if not (path / JOURNAL).is_file():
            return cls(path, results, summary, None, about)
        stored = StoredJournal.read(path / JOURNAL)
        return cls(path, results, summary, Replay(stored.parts), {**about, "plan_hash": stored.about.get("plan")})

    @property
    def same(self) -> bool:
        return not self.differs

    def run(self, plan: str | None = None, to: str | None = None, breaks: tuple[str, ...] = ()) -> None:
        """Run the plan again, up to the end of the journal or of the results."""
        with reopened(self.path, plan, in_this_process, seconds=None) as again:
            if (known := self.about.get("plan_hash")) not in (None, plan_hash(again.plan)):
                what = "the run" if self.replay is None else "the journal"
                raise ConfigError(
                    f"{self.path} has {what} of another plan, of hash {known}, and this one has "
                    f"{plan_hash(again.plan)}: run it with the plan as it was, --plan {self.path / 'plan.py'}"
                )
            if self.replay is None and (clocked := by_clock(again.plan, again.config)):
                raise ConfigError(f"{self.path} has no journal, and without one nothing says {clocked}: --journal")
            if self.replay is not None:
                self.replay.compares = not self.tolerance
            stop = Stop.at(to)
            complete = stop.watched(again.plan, breaks)
            with complete.run(seed=again.config.seed, decisions=self.replay) as run:
                stop.run = run
                run.context.bounds.update(again.bounds)
                self._follow(run, again, stop)

    def _follow(self, run: Run, again: Reopened, stop: Stop) -> None:
        try:
            for result in run:
                self._compare(_line(result))
                if self.differs or self.reached in (stop.results, self.replay is None and len(self.results)):
                    break
        except JournalEnds:
            pass
        except Exception as error:
            if self.replay is not None and (where := self.replay.departed()):
                self.differs = f"departs from its journal at {where}"
            elif str(self.summary.get("error", "")).partition("\n")[0] == described(error):
                self.stopped = f"fails again with {described(error)}"
            else:
                self.differs = f"fails with {described(error)}"
            return
        if self.replay is not None and (where := self.replay.departed()):
            self.differs = f"departs from its journal at {where}"
        elif stop.reached or self.reached == stop.results:
            self.stopped = f"stopped at {stop.words}"
        elif not self.differs:
            self._compare_end(again)

    def _compare(self, line: str) -> None:
        """Compare the next result with the published one."""
        self.reached += 1
        self.last = json.loads(line)
        if self.reached > len(self.results):
            if self.summary:
                self.differs = f"gives result {self.reached}, and {self.path} has {len(self.results)}"
            return
        then, now = json.loads(self.results[self.reached - 1]), self.last
        if then != now and not self.tolerance:
            keys = [key for key in {**then, **now} if then.get(key) != now.get(key)]
            words = ", ".join(f"{key} is {now.get(key)!r} and was {then.get(key)!r}" for key in keys[:3])
            self.differs = f"differs in result {self.reached}: {words}"

    def _compare_end(self, again: Reopened) -> None:
        if self.replay is not None and not self.replay.whole:
            return  # the results that came after its last whole entry are unknown to it
        if self.reached < len(self.results):
            self.differs = f"ends after {self.reached} of {len(self.results)} results"
            return
        if self.tolerance:
            self._compare_numbers(json.loads(self.results[-1]), self.last)
            return
        policy = again.workers.policy
        now = fingerprint(policy.state_dict()) if isinstance(policy, Saveable) else None
        then = self.summary.get("parameters")
        self.parameters = then, now
        if then is not None and then != now:
            self.differs = f"ends with parameters {now}, and they were {then}"

    def _compare_numbers(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Compare the counters and the returns of the last result."""
        for name, value in then.items():
            other, by_return = now.get(name), "return" in name
            if not (by_return or name in COUNTERS) or not isinstance(value, int | float):
                continue
            share = self.tolerance if by_return else 0.0
            if not isinstance(other, int | float) or abs(other - value) > share * max(abs(value), 1.0):
                self.differs = f"ends with {name} {other!r}, and it was {value!r}"
                return

    def lines(self) -> list[str]:
        """What came of it, in words."""
        head = f"{self.path}: {self.reached} results"
        lines = []
        if self.replay is not None:
            head += f", {self.replay.taken:,} of {self.replay.size:,} decisions and items of its journal"
            if not self.replay.whole:
                why = "though the run has ended: the file is cut off" if self.summary else "since the run was killed"
                lines = [f"its journal has no end, {why}; this is up to the last entry that is whole"]
        if self.differs:
            return [head, *lines, f"it {self.differs}"]
        if self.stopped:
            return [head, *lines, f"it {self.stopped}"]
        if self.tolerance:
            return [head, *lines, f"the same counters, and returns within {self.tolerance:.0%}"]
        parameters = self.parameters[1]
        return [head, *lines, "the same, bit for bit" + (f", parameters {parameters}" if parameters else "")]


@attrs.define
class Stop:
    """Where to stop: after a number of results, or of items of an operator."""

    words: str = ""
    results: int = -1
    operator: str = ""
    number: int = 0
    reached: bool = False
    run: Run | None = None

    @classmethod
    def at(cls, where: str | None) -> Stop:
        """Read the option --to. Raises: ConfigError: it is neither a number nor OPERATOR:N."""
        if where is None:
            return cls()
        operator, _, number = where.rpartition(":")
        if not (number.isdigit() and int(number) > 0):
            raise ConfigError(f"--to {where}: expected a number of results, or OPERATOR:N for item N of an operator")
        if operator:
            return cls(f"item {number} of {operator}", operator=operator, number=int(number))
        return cls(f"result {number}", results=int(number))

    def watched(self, plan: Plan, breaks: tuple[str, ...]) -> Plan:
        """The plan, which stops there; with breakpoints at operators, that of `--to` from its item on."""
        for where in breaks:
            here = self.operator and select(plan, where) is select(plan, self.operator)
            plan = plan.breakpoint(where, when=_from(self.number) if here else None, site="flowrl rerun --break")
        if self.operator and not breaks:
            is_there = _from(self.number)

            def stop(item: Any) -> None:
                if is_there(item) and self.run is not None:
                    self.reached = True
                    self.run.interrupt()

            plan = plan.tap(self.operator, stop, site="flowrl rerun --to")
        return plan


def by_clock(plan: Plan, config: Configuration) -> str:
    """What a plan decides by the clock, in words; "" if nothing."""
    for node in graph(plan):
        op = node.op
        if isinstance(op, GatherAsync) and config.num_workers:
            return f"in which order {node.name} took what {config.num_workers} workers sent"
        if isinstance(op, Stage) and (op.thread or (isinstance(op, Call) and isinstance(op.worker, Worker))):
            return f"when {node.name} was done"
    return "which environments answered a step" if config.env_manager == "async" else ""


def _from(number: int) -> Callable[[Any], bool]:
    """Whether so many items have passed."""
    seen = itertools.count(1)
    return lambda _: next(seen) >= number


def in_this_process(config: Configuration) -> Configuration:
    """The same workers, as objects of this process, and environments in its threads."""
    if config.env_manager not in ("subprocess", "async"):
        return attrs.evolve(config, address=HERE)
    arguments = {**config.env_manager_args, "start_method": THREADS}
    return attrs.evolve(config, address=HERE, env_manager_args=arguments)


def _line(result: Mapping[str, Any]) -> str:
    """A result as it is published, without what a clock has told."""
    values = plain(result)
    kept = {key: value for key, value in values.items() if key not in CLOCK_KEYS and not key.startswith(TIMERS)}
    return json.dumps(kept)
