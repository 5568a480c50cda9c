"""`flowrl rerun`: a run once more, in this process, with the decisions that its journal has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from flowrl.actors.actors import HERE
from flowrl.cli.rebuilt import Rebuilt, rebuilt
from flowrl.engine.graph import select
from flowrl.engine.journal import JournalEnds, Replay
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import Saveable
from flowrl.engine.run import Run
from flowrl.envs.managers.subprocess import THREADS
from flowrl.errors import ConfigError, printable
from flowrl.operators.metrics import CLOCK_KEYS, TIMERS
from flowrl.storage.files import plain, read_json
from flowrl.storage.fingerprint import fingerprint
from flowrl.storage.journal import StoredJournal
from flowrl.trainer.config import Configuration
from flowrl.trainer.directory import JOURNAL
from flowrl.trainer.failed_item import described
from flowrl.trainer.plan_end import plan_hash
from flowrl.trainer.run_info import forks_in, read_about, read_results


def rerun(path: str, plan: str | None = None, *, to: str | None = None, breaks: tuple[str, ...] = ()) -> int:
    """Run the plan of a run directory again, as its journal says, and show whether it comes out the same.

    Args:
        plan: The plan, instead of the file that the run was of.
        to: Where to stop: after so many results, or OPERATOR:N.
        breaks: Operators to stop at, at a prompt.

    Returns: the exit code: 0 if everything that the run has written comes out again, 1 if it departs.

    Raises: ConfigError: there is no journal, or it is not of this plan.
    """
    again = Again.of(Path(path))
    if again.replay is None:
        raise ConfigError(f"{path} has no journal: a run writes one with --journal (journal=True)")
    again.run(plan, to, breaks)
    for line in again.lines():
        click.echo(printable(line))
    return 0 if again.same else 1


@attrs.define
class Again:
    """A run directory, and what came of running its plan again.

    Attributes:
        results: The published results, without what a clock has told.
        replay: The decisions of its journal, None without one.
        reached: The number of results that came again.
        differs: The first thing that did not come out the same, in words; "" if everything did.
        stopped: Where it was told to stop, in words.
        parameters: The hashes of the parameters at the end, published and now; None where there is none.
    """

    path: Path
    results: list[str] = attrs.field(repr=False)
    summary: Mapping[str, Any]
    replay: Replay | None
    about: Mapping[str, Any]
    reached: int = 0
    differs: str = ""
    stopped: str = ""
    parameters: tuple[str | None, str | None] = (None, None)

    @classmethod
    def of(cls, path: Path) -> Again:
        """Read what a run has written."""
        about = read_about(path)
        if forks_in(about):
            raise ConfigError(f"{path} was resumed with other settings (a fork): it is no longer one run of one plan")
        results = [_line(result) for result in read_results(path)]
        summary = read_json(path / "summary.json") if (path / "summary.json").is_file() else {}
        file, header, replay = path / JOURNAL, dict[str, Any](), None
        if file.is_file():
            stored = StoredJournal.read(file)
            header, replay = dict(stored.about), Replay(stored.parts)
        return cls(path, results, summary, replay, header)

    @property
    def same(self) -> bool:
        return not self.differs

    def run(self, plan: str | None = None, to: str | None = None, breaks: tuple[str, ...] = ()) -> None:
        """Run the plan again, up to the end of the journal or of the results."""
        with rebuilt(self.path, plan, in_this_process, seconds=None) as again:
            if (known := self.about.get("plan")) not in (None, plan_hash(again.plan)):
                raise ConfigError(
                    f"{self.path / JOURNAL} is the journal of another plan, of hash {known}, and this one has "
                    f"{plan_hash(again.plan)}: run it with the plan as it was, --plan {self.path / 'plan.py'}"
                )
            stop = Stop.at(to)
            complete = stop.watched(again.plan, breaks)
            with complete.run(seed=again.config.seed, decisions=self.replay) as run:
                stop.run = run
                self._follow(run, again, stop)

    def _follow(self, run: Run, again: Rebuilt, stop: Stop) -> None:
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
        if self.reached > len(self.results):
            if self.summary:
                self.differs = f"gives result {self.reached}, and {self.path} has {len(self.results)}"
            return
        then, now = json.loads(self.results[self.reached - 1]), json.loads(line)
        if then != now:
            keys = [key for key in {**then, **now} if then.get(key) != now.get(key)]
            words = ", ".join(f"{key} is {now.get(key)!r} and was {then.get(key)!r}" for key in keys[:3])
            self.differs = f"differs in result {self.reached}: {words}"

    def _compare_end(self, again: Rebuilt) -> None:
        if self.replay is not None and not self.replay.whole:
            return  # the results that came after its last whole entry are unknown to it
        if self.reached < len(self.results):
            self.differs = f"ends after {self.reached} of {len(self.results)} results"
            return
        policy = again.workers.policy
        now = fingerprint(policy.state_dict()) if isinstance(policy, Saveable) else None
        then = self.summary.get("parameters")
        self.parameters = then, now
        if then is not None and then != now:
            self.differs = f"ends with parameters {now}, and they were {then}"

    def lines(self) -> list[str]:
        """What came of it, in words."""
        head = f"{self.path}: {self.reached} results"
        lines = []
        if self.replay is not None:
            head += f", {self.replay.taken:,} of {self.replay.size:,} decisions and items of its journal"
            if not self.replay.whole:
                lines = ["its journal has no end, since the run was killed: this is up to the last entry that is whole"]
        if self.differs:
            return [head, *lines, f"it {self.differs}"]
        if self.stopped:
            return [head, *lines, f"it {self.stopped}"]
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
