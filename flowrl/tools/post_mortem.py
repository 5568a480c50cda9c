"""`flowrl replay-item`: the operator that failed in a run gets its item again, under Python's debugger."""

from __future__ import annotations

import pdb
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import click

from flowrl.engine.meter import Meter
from flowrl.engine.operator import describe, load_operator_state, summarize
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import Worker
from flowrl.engine.recording.recorder import Recorder, with_recorder
from flowrl.engine.run import Run
from flowrl.engine.workers.calls import Call
from flowrl.errors import CheckpointError, ConfigError, ContractError, did_you_mean, printable
from flowrl.frames import is_own
from flowrl.inspect.debugger import meter_at, provenance
from flowrl.inspect.explain import relative
from flowrl.inspect.strict import strict
from flowrl.operators.contracts import with_contracts
from flowrl.runs.config import Configuration
from flowrl.runs.failed_item import FOLDER, described
from flowrl.saved import Saved
from flowrl.storage.checkpoint import Checkpoints, load_checkpoint, verify_checkpoint
from flowrl.tools.reopen import reopened


def debugged(plan: Plan) -> Plan:
    """The plan as `flowrl run --debug` runs it: one item in flight, all contracts, and the newest items recorded."""
    return with_recorder(with_contracts(strict(plan)), Recorder())


def replay_item(path: str, plan: str | None, *, debugger: bool) -> int:
    """Replay the failed item of a run, and show what comes of it; returns the exit code.

    0: the operator takes its item. 1: it fails.

    Raises: ConfigError, CheckpointError, PlanError: there is nothing to replay, or not in this plan.
    """
    failed = FailedItem.load(path)
    debugger = debugger and sys.stdin is not None and sys.stdin.isatty()
    with failed.opened(plan) as run:
        meter = failed.meter(run)
        _say(f"{meter.path} ({relative(meter.site)}), item {failed.number}, failed with {failed.error}")
        if failed.has_item:
            _say(summarize(failed.item))
            _say(provenance(failed.item))
            if not failed.exact:
                _say("the item and the state are those after the failure; with --debug a run keeps those before it")
        else:
            _say(f"it had no item: running {failed.begin} to where it failed")
        if failed.made_by:
            maker = failed.meter(run, failed.made_by)
            _say(f"{maker.path} ({relative(maker.site)}) makes it of {describe(failed.made_of)}")
        failed.restore(run)
        try:
            made = failed.replay(run, pdb.runcall if debugger and failed.made_by else _call)
        except BdbQuit:
            return 1
        except Exception as error:
            looked_into = failed.made_by and isinstance(error, ContractError)
            return _failed_again(error, failed.error, debugger=debugger and not looked_into)
    words = f": {failed.made_by or meter.path} makes {describe(made)} of it" if failed.has_item else ""
    _say(f"no error{words}")
    return 0


def _call(function: Any, item: Any) -> Any:
    return function(item)


def _failed_again(error: Exception, before: str, *, debugger: bool) -> int:
    while (trace := error.__traceback__) is not None and trace.tb_frame.f_code.co_filename == __file__:
        error = error.with_traceback(trace.tb_next)
    _say("".join(traceback.format_exception(error)).rstrip(), err=True)
    _say("the same error" if described(error) == before else f"another error than in the run: {before}", err=True)
    if debugger:
        pdb.post_mortem(_own(error.__traceback__))
    return 1


def _own(last: TracebackType | None) -> TracebackType | None:
    """The traceback up to the innermost line of the user's; whole if none is."""
    first, found = last, None
    while last is not None:
        if is_own(last.tb_frame.f_code.co_filename):
            found = last
        last = last.tb_next
    if found is not None:
        found.tb_next = None
    return first


def _say(text: str, *, err: bool = False) -> None:
    if text:
        click.echo(printable(text), err=err)


@attrs.frozen
class FailedItem:
    """What a run kept of its failure.

    Attributes:
        run: The directory of the run.
        about: The operator's path, `number` of the item, `error` in a line, whether there was an item, whether it is
            `exact`: a copy from before the operator got it, with the state of then.
    """

    run: Path
    about: Saved
    parts: Mapping[str, Any] = attrs.field(repr=False)

    @classmethod
    def load(cls, path: str | Path) -> FailedItem:
        """Read that of a run, by its directory or the folder in it. Runs code that the folder names.

        Raises: ConfigError: there is none. CheckpointError: it is damaged.
        """
        path = Path(path)
        folder = path if path.name == FOLDER else path / FOLDER
        if not folder.is_dir():
            what = "has no" if path.is_dir() else "is not there: expected the directory of a run with a"
            raise ConfigError(f"{path} {what} {FOLDER}: a run writes it when one of its operators fails")
        if not (folder.parent / "run.json").is_file():
            raise ConfigError(f"{folder} is not in the directory of its run, from which its plan comes")
        about = Saved(verify_checkpoint(folder).get("about", {}), f"{folder}")
        return cls(folder.parent, about, load_checkpoint(folder, trusted=True))

    @property
    def operator(self) -> str:
        path: str = self.about.get("operator", str)
        return path

    @property
    def number(self) -> int:
        return self.about.count("number")

    @property
    def exact(self) -> bool:
        return bool(self.about.get("exact", bool))

    @property
    def begin(self) -> str:
        """Where a source begins, in words."""
        name = self.about.get("checkpoint", str | None)
        return "from the beginning" if name is None else f"from {name}"

    @property
    def has_item(self) -> bool:
        return bool(self.about.get("has_item", bool))

    @property
    def item(self) -> Any:
        return self.parts["item"]["item"]

    @property
    def error(self) -> str:
        words: str = self.about.get("error", str)
        return words

    @contextmanager
    def opened(self, plan: str | None = None) -> Iterator[Run]:
        """A run of the plan in this process, with one worker per group of environments, in its state at its beginning.

        Args:
            plan: The plan, instead of the file that the run was of.

        Raises: ConfigError, PlanError: the plan cannot be built any more.
        """
        with reopened(self.run, plan, _in_one_process) as again:
            complete = debugged(again.plan) if self.about.get("debug", bool) else again.plan
            with complete.run(seed=again.config.seed) as run:
                run.context.bounds.update(again.bounds)
                yield run

    @property
    def made_by(self) -> str:
        """The path of the operator whose item broke a contract; "" if none did, or a source made it."""
        return self.about.get("made_by", str | None) or ""

    @property
    def made_of(self) -> Any:
        """The item that this operator made it of."""
        return self.parts["item"]["made_of"]["item"]

    def restore(self, run: Run) -> None:
        """Bring a run into the state in which the operator got its item, or into that of the last checkpoint.

        Raises: ConfigError, CheckpointError: this plan has no such operator, or another state.
        """
        meter = self.meter(run)
        if self.has_item:
            for name, saved in self.parts.get("resources", {}).items():
                if name not in run.resources:
                    raise CheckpointError(f"this plan has no {name}, which {self.operator} used in {self.run}")
                run.resources[name].load_state_dict(saved)
            run.context.metrics.load_state_dict(self.parts["state"]["counters"])
            _load(meter, self.parts["state"])
            if self.made_by:
                _load(self.meter(run, self.made_by), self.parts["item"]["made_of"])
        elif (name := self.about.get("checkpoint", str | None)) is not None:
            path = self.run / "checkpoints" / name
            state = Checkpoints(path.parent).load(path, trusted=True)
            state.pop("session", None)
            run.load_state_dict(state)

    def replay(self, run: Run, call: Callable[[Any, Any], Any]) -> Any:
        """Give the operator its item again; of a source, run to where it failed.

        An item that broke a contract is made again first: `call` calls the operator that made it with its item.

        Returns: What the operator makes of it, now without an error. Raises: What it raises.
        """
        meter = self.meter(run)
        if not self.has_item:
            for _ in run:
                if meter.items + meter.skipped >= self.number:
                    break
            return None
        for item in self.parts["item"]["earlier"] if meter.verb == "tap" else ():
            meter.op(item)  # a contract compares an item with those before it
        if not self.made_by:
            return _applied(meter, self.item, _call)
        maker = self.meter(run, self.made_by)
        made = _applied(maker, self.made_of, call)
        for each in made if maker.verb == "combine" else [made]:
            meter.op(each)
        return made

    def meter(self, run: Run, path: str | None = None) -> Meter:
        """The operator that failed, or that at a path, in a run. Raises: ConfigError: this plan has none there."""
        path = path or self.operator
        meter = meter_at(run, path, self.about.get("worker", int | None))
        if meter is None:
            known = did_you_mean(path, run.paths.values())
            raise ConfigError(f"this plan has no operator {path}, which failed in {self.run}; {known}")
        return meter


def _in_one_process(config: Configuration) -> Configuration:
    """The same groups of environments, in this process."""
    if not config.num_workers:
        return config
    groups = config.env_groups or config.num_workers
    envs = config.num_workers * config.envs_per_worker
    return attrs.evolve(config, num_workers=0, envs_per_worker=envs, env_groups=groups, address=None)


def _load(meter: Meter, state: Mapping[str, Any]) -> None:
    """Load the state of an operator, and that of its random streams."""
    load_operator_state(meter.op, state["operator"])
    if state["seeds"]:
        meter.context.seeds.load_state_dict(state["seeds"])


def _applied(meter: Meter, item: Any, call: Callable[[Any, Any], Any]) -> Any:
    """What an operator makes of an item."""
    op = meter.op
    if isinstance(op, Call):
        if isinstance(op.worker, Worker):
            raise ConfigError(f"{meter.path} asks another process, {op.worker!r}, which is not here to fail again")
        return call(attrgetter(op.method)(op.worker), item)
    made = call(op, item)
    return list(made) if meter.verb == "combine" else made
