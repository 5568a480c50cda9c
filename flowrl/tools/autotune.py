"""`flowrl autotune`: the fastest settings of a plan that learn the same, by short runs that a model chooses.

A setting that changes the pace alone is *exact*: parameters stay equal to the last bit (E8). Others are tried only if
asked for, and listed with what they change.

Two runs are compared side by side, in turns of a moment, so that whatever else the machine does slows both. From the
given settings on, the search goes to whichever neighbor, a value of one setting, is faster. The measured profile
foresees the pace of each neighbor, the learner included: the best one is tried first, and one that would be much
slower is not tried.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter as clock
from typing import Any, NamedTuple

import attrs
import torch

from flowrl.blas import blas_threads
from flowrl.engine.graph import graph
from flowrl.engine.labels import learns
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import Saveable
from flowrl.engine.recording.ledger import ledger
from flowrl.engine.run import Run
from flowrl.engine.workers.gather import GatherAsync
from flowrl.envs import EnvFactory
from flowrl.envs.managers.supervisor import cores
from flowrl.errors import ConfigError, FlowError
from flowrl.inspect.profile import NO_CHANGE, Change, Profile
from flowrl.runs.config import Configuration
from flowrl.storage.fingerprint import fingerprint
from flowrl.tools.doctor import Times
from flowrl.tools.doctor.probe import Probe, dispose, measured
from flowrl.tools.doctor.report import step_seconds
from flowrl.tools.rerun import by_clock
from flowrl.trainer.plan_file import PlanFile

#: Seconds for all measurements, of one turn of a run, and of the environment alone.
MOST_SECONDS, TURN, PROBE = 60.0, 0.5, 2.0
#: Turns of two runs that are compared, and after how many a clear answer ends it; the ratio that is clear.
TURNS, EARLY, CLEAR = 9, 3, 1.3
#: Share of all seconds after which a comparison has taken long enough.
LONG = 0.12
#: Gain below which the settings that are there, or the simpler ones, stay.
WORTH = 1.05
#: Gain that the model must foresee for a neighbor to be tried: it may be wrong.
HOPE = -0.15
#: Share of the seconds after which no run is begun, and the seconds that one with other processes on Ray needs.
LAST, RAY_SECONDS = 0.8, 25.0
#: Seconds of a request to another process beside its work, as long as none was measured.
LATENCY = 2e-3

Settings = dict[str, Any]
#: The options that are chosen, by number, one of each knob.
Point = tuple[int, ...]
#: Arguments of managers of other processes that set their number.
SIZE = "envs_per_process"


@attrs.frozen
class Choice:
    """Values of settings that belong together, and what they change of the results; "": nothing (E8)."""

    settings: Settings
    changes: str = ""

    def __str__(self) -> str:
        values = {**self.settings, **self.settings.get("env_manager_args", {})}
        return ", ".join(f"{name}={value}" for name, value in values.items() if name != "env_manager_args")


@attrs.frozen
class Knob:
    """Options that exclude each other, the simplest first; the given settings are one of them."""

    options: tuple[Choice, ...]
    given: int

    @classmethod
    def of(cls, given: Settings, others: Sequence[Choice]) -> Knob:
        """The knob with the given settings, and others, which change nothing if they are the same."""
        options = [Choice(given) if each.settings == given else each for each in others]
        if Choice(given) not in options:
            options.insert(0, Choice(given))
        return cls(tuple(options), options.index(Choice(given)))


def knobs(config: Configuration, plan: Plan) -> list[Knob]:
    """What can be chosen for a plan: first what changes no result, and with each other option what it changes."""
    arrives = any(isinstance(node.op, GatherAsync) for node in graph(plan))
    found = [_managers(config), _workers(config, arrives)] if config.clock == "env_steps" else []

    def add(name: str, values: Sequence[Any], changes: str = "") -> None:
        found.append(Knob.of({name: config[name]}, [Choice({name: each}, changes) for each in values]))

    if "prefetch" in config.to_dict():
        add("prefetch", (0, 2, 8))
    rounding, ahead = "the last bits of what is computed", "how old the weights are that act and the rows that learn"
    powers = [2**power for power in range(cores().bit_length())]
    add("act_backend", ("torch", "numpy"), rounding)
    add("torch_threads", powers, rounding)
    for name, matters in {
        "in_flight": config.num_workers,
        "draws_in_flight": config.num_workers,
        "learn_in_flight": config.to_dict().get("num_learners"),
    }.items():
        if matters and name in config.to_dict():
            add(name, (1, 2, 4), ahead)
    return [knob for knob in found if len(knob.options) > 1]


def _managers(config: Configuration) -> Knob:
    """Managers of environments and their processes. A VectorEnv of its own makes other streams, and stays (T3)."""
    kind, args, size = config.env_manager, dict(config.env_manager_args), config.grouping[1]
    rest = {key: value for key, value in args.items() if key != SIZE}

    def option(other: str, changes: str = "", **more: int) -> Choice:
        return Choice({"env_manager": other, "env_manager_args": {**rest, **more}}, changes)

    moved = "which environments answer a step first, and so the order of rows"
    found = list[Choice]()
    if kind != "vector":
        changes = moved if kind == "async" else ""
        counts = sorted({2**power for power in range(1, size.bit_length())} | {size}) if size > 1 else []
        found = [option("local", changes), option("thread", changes)]
        found += [option("subprocess", changes, **{SIZE: -(-size // count)}) for count in counts]
        found += [option("async", moved)] if size > 1 else []
    return Knob.of({"env_manager": kind, "env_manager_args": args}, found)


def _workers(config: Configuration, arrives: bool) -> Knob:
    """Processes that sample, and groups. The same groups give the same stream (D2), but not as it arrives."""
    (groups, size), found = config.grouping, list[Choice]()

    def option(count: int, parts: int) -> Settings:
        return {"num_workers": count, "envs_per_worker": groups * size // max(count, 1), "env_groups": parts}

    for count in range(groups * size + 1):
        if count > 2 * max(cores(), config.num_workers) or (groups * size) % max(count, 1):
            continue
        for parts in sorted({groups, max(count, 1)}):
            changes = ["which environments act together, and their random streams"] if parts != groups else []
            changes += ["in which order fragments arrive"] if arrives and count != config.num_workers else []
            alone = count == 1 and not arrives  # a process for which this one would only wait
            if not alone and parts % max(count, 1) == 0 and not (parts > groups and count == 0):
                found.append(Choice(option(count, parts), " and ".join(changes)))
    return Knob.of(option(config.num_workers, groups), found)


def shortened(config: Configuration) -> Configuration:
    """The settings of a short run that does at its beginning what the plan does later: it reports and learns early."""
    values = config.to_dict()
    rows = values.get("fragment_steps", 1) * config.num_envs
    changed: Settings = {"report_every": max(rows, values.get("train_batch_size", 1))}
    changed["learning_starts"] = max(rows, 2 * values.get("batch_size", 1))
    changed |= {"random_steps": 0, "journal": False, "report_timers": False}
    least = {name: min(values[name], each) for name, each in changed.items() if name in values}
    return attrs.evolve(config, **least)


class Trial:
    """A run of a plan with some settings, pulled for a moment at a time; a context manager.

    Attributes:
        parameters: A hash of its parameters after the warm-up; "" if they follow the clock.
        profile: Of its first turn.
    """

    def __init__(self, plan_file: PlanFile, config: Configuration) -> None:
        self.config, self.parameters = shortened(config), ""
        self.workers, self.plan = plan_file.build(self.config)
        #: Whether others work while it is not pulled, and whether what it learns depends on when.
        self.clocked = bool(by_clock(self.plan, self.config))
        self.repeats = not self.clocked or bool(config.to_dict().get("prefetch"))
        self.profile: Profile
        self._run: Run
        self._open = ExitStack()
        self._open.callback(self.workers.close)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def warm_up(self, seconds: float, span: float = 0.0) -> None:
        """Open the run, pull until it has learned, and take the profile of a turn, or of `span` seconds.

        Raises: ConfigError: that takes longer.
        """
        self._run = run = self._open.enter_context(self.plan.run(seed=self.config.seed))
        timer = threading.Timer(max(0.0, seconds), run.interrupt)
        timer.start()
        try:
            next(run)
            while learns(self.plan) and not any(name.startswith("updates") for name in run.counters):
                next(run)
            if self.repeats and isinstance(self.workers.policy, Saveable):
                self.parameters = fingerprint(self.workers.policy.state_dict())
            next(run)
            before = ledger(run)
            self.turn(span)
            self.profile = Profile(ledger(run).since(before), counter=self.config.clock)
        except StopIteration:
            raise ConfigError(f"it had not learned and reported after {seconds:.0f} s") from None
        finally:
            timer.cancel()
            timer.join()

    def turn(self, span: float = 0.0) -> Measurement:
        """Pull for a moment, or for `span` seconds. What others have made ready meanwhile does not count."""
        torch.set_num_threads(self.config.torch_threads)  # of the process, which has several trials
        blas_threads(self.config.torch_threads)
        if self.clocked:
            next(self._run)
        counter = self.config.clock
        began, steps = clock(), self._run.counters.get(counter, 0)
        while clock() < began + (span or TURN):
            next(self._run)
        return Measurement(self._run.counters[counter] - steps, clock() - began)


class Measurement(NamedTuple):
    """Steps, and the seconds that they took."""

    steps: float
    seconds: float

    @property
    def pace(self) -> float:
        """Steps per second."""
        return self.steps / max(self.seconds, 1e-9)


def total(turns: Iterable[Measurement]) -> Measurement:
    """Several turns as one: a long step counts in it, as in a run, where the median turn would leave it out."""
    return Measurement(*map(sum, zip(*turns)))


@attrs.define
class Candidate:
    """What is known of a point: its pace beside that of the given settings, as foreseen and as measured, and a word."""

    options: str
    changes: str
    foreseen: float | None = None
    measured: float | None = None
    words: str = ""

    def line(self) -> str:
        """The row as a line of a table."""
        numbers = ["" if each is None else f"{each:.2f}" for each in (self.measured, self.foreseen)]
        changes = f"  changes {self.changes}" if self.changes and self.measured is not None else ""
        return f"{numbers[0]:>8}  {numbers[1]:>8}  {self.options}{f'  ({self.words})' if self.words else ''}{changes}"


@attrs.define
class Tuner:
    """Looks for the fastest settings of a plan.

    Args:
        allow_inexact: Also those that change the last bits, or the order.
        seconds: For all measurements.
    """

    plan_file: PlanFile
    config: Configuration
    allow_inexact: bool = False
    seconds: float = MOST_SECONDS
    knobs: list[Knob] = attrs.field(init=False, factory=list)
    rows: dict[Point, Candidate] = attrs.field(init=False, factory=dict)
    given: Profile | None = attrs.field(init=False, default=None)
    pace: float = attrs.field(init=False, default=0.0)  #: of the given settings, per second
    took: float = attrs.field(init=False, default=0.0)
    best: Point = attrs.field(init=False, default=())
    _repeats: bool = attrs.field(init=False, default=True)
    _times: Times | None = attrs.field(init=False, default=None)
    _began: float = attrs.field(init=False, factory=clock)

    def run(self) -> None:
        """Search. Raises: FlowError: the given settings themselves cannot be run in this time."""
        current = ExitStack()
        try:
            trial = current.enter_context(Trial(self.plan_file, self.config))
            self._began = clock()  # building the first plan imports what it needs
            self.knobs = knobs(self.config, trial.plan)
            self.best = tuple(knob.given for knob in self.knobs)
            trial.warm_up(self._left())
            self._repeats = trial.repeats
            self.given, self._times = trial.profile, self._probe()
            self.pace = trial.turn().pace
            self.rows[self.best] = Candidate("as given", "", None, 1.0)
            while found := self._next(trial):
                point, foreseen = found
                row = self.rows[point] = self._row(point, foreseen)
                with ExitStack() as opened:
                    tried = self._tried(row, point, trial, opened)
                    if tried is not None and self._is_better(row, point, trial, tried):
                        current.close()
                        current, trial, self.best = opened.pop_all(), tried, point
        finally:
            current.close()
        self.took = clock() - self._began

    @property
    def chosen(self) -> Configuration:
        """The configuration with the fastest settings."""
        return self.at(self.best)

    def at(self, point: Point) -> Configuration:
        """The configuration of a point."""
        settings: Settings = {}
        for knob, number in zip(self.knobs, point):
            settings |= knob.options[number].settings if number != knob.given else {}
        return attrs.evolve(self.config, **settings)

    def neighbors(self, point: Point) -> Iterator[Point]:
        """The points where one knob stands otherwise, the simplest options first."""
        for i, knob in enumerate(self.knobs):
            for number, option in enumerate(knob.options):
                if number != point[i] and (self.allow_inexact or not option.changes):
                    yield (*point[:i], number, *point[i + 1 :])

    def changed(self, point: Point) -> list[Choice]:
        """The options of a point that are not the given ones."""
        return [knob.options[number] for knob, number in zip(self.knobs, point) if number != knob.given]

    def _left(self) -> float:
        return self._began + self.seconds - clock()

    def _row(self, point: Point, foreseen: float | None) -> Candidate:
        options = self.changed(point)
        changes = " and ".join(each.changes for each in options if each.changes)
        beside = self.rows[self.best].measured or 1.0
        return Candidate(", ".join(map(str, options)) or "as given", changes, foreseen and foreseen * beside)

    def _next(self, trial: Trial) -> tuple[Point, float | None] | None:
        """The neighbor to try next, and its pace beside the best one, if the model says one."""
        found = list[tuple[bool, float, Point, float | None]]()
        for point in self.neighbors(self.best):
            if point not in self.rows or self.rows[point].words in (_SLOW, _LATE):
                foreseen = self.foreseen(trial.profile, point)
                on_ray = bool(self.at(point).num_workers)
                found.append((on_ray, -(foreseen or 1.0), point, foreseen))
        for on_ray, _, point, foreseen in sorted(found, key=lambda each: each[:2]):
            late = self._left() < max(self.seconds * (1 - LAST), RAY_SECONDS * on_ray)
            if late or (foreseen is not None and foreseen < 1 + HOPE):
                row = self.rows[point] = self._row(point, foreseen)
                row.words = _LATE if late else _SLOW
            else:
                return point, foreseen
        return None

    def _tried(self, row: Candidate, point: Point, trial: Trial, opened: ExitStack) -> Trial | None:
        """A trial of a point, warm; None if it cannot run, or learns something else."""
        try:
            tried = opened.enter_context(Trial(self.plan_file, self.at(point)))
            tried.warm_up(self._left())
        except Exception as error:  # of the environment, which may not bear another process
            row.words = f"refused: {error}".partition("\n")[0]
            return None
        if not row.changes and "" not in (known := {trial.parameters, tried.parameters}) and len(known) > 1:
            row.words = "left out: parameters differ"
            return None
        return tried

    def _is_better(self, row: Candidate, point: Point, trial: Trial, tried: Trial) -> bool:
        """Compare two trials in turns."""
        turns: dict[Trial, list[Measurement]] = {trial: [], tried: []}
        for turn in range(TURNS):
            for each in [trial, tried] if turn % 2 else [tried, trial]:
                turns[each].append(each.turn())
            ratios = [mine.pace / max(other.pace, 1e-9) for mine, other in zip(turns[tried], turns[trial])]
            clear = min(ratios) > CLEAR or max(ratios) < 1 / CLEAR
            long = total(turns[trial]).seconds + total(turns[tried]).seconds > self.seconds * LONG
            if ((clear or long) and len(ratios) >= EARLY) or self._left() < 0:
                break
        ratio = total(turns[tried]).pace / total(turns[trial]).pace
        row.measured = ratio * (self.rows[self.best].measured or 1.0)
        i = next(i for i, number in enumerate(point) if number != self.best[i])
        simpler = point[i] < self.best[i] != self.knobs[i].given or point[i] == self.knobs[i].given
        return ratio > 1 / WORTH if simpler else ratio > WORTH and statistics.median(ratios) > 1

    # -- the model

    def foreseen(self, profile: Profile, point: Point) -> float | None:
        """The pace of a neighbor of the best point beside its own, by its profile; None: the model does not know."""
        old, new, seconds = self.at(self.best), self.at(point), profile.modeled(NO_CHANGE)
        gather = next((path for path, about in profile.ledger.stages.items() if "part" in about), None)
        if new.to_dict().get("prefetch") != old.to_dict().get("prefetch"):
            busy = list(profile.ledger.driver.busy.items())
            names = [path.rpartition(".")[2] for path, _ in busy]
            if old["prefetch"] or "TrainOneStep" not in names:
                return None
            read = sum(spent for _, spent in busy[: names.index("TrainOneStep")])
            return seconds / max(seconds - read, read)
        if gather is None:
            return None
        if (new.num_workers, new.grouping) != (old.num_workers, old.grouping):
            if new.grouping != old.grouping:
                return None
            resized = profile.resized(gather, new.num_workers, latency=LATENCY)
            return seconds / max(resized.modeled(NO_CHANGE), self._work(resized) / cores())
        if (new.env_manager, new.env_manager_args) != (old.env_manager, old.env_manager_args) and self._times:
            act = profile.ledger.stages[gather]["part"][0]
            steps = profile.ledger.counters.get("env_steps", 0) / old.grouping[1]
            before, now = (self._step_seconds(each) for each in (old, new))
            spent = sum(each.busy.get(act, 0.0) for each in profile.ledger.accounts)
            share = min(1.0, steps * before / max(spent, 1e-9))
            return 1 + profile.gain(Change(act, 1 / max(1 - share + share * now / before, 0.02)))
        return None

    def _step_seconds(self, config: Configuration) -> float:
        assert self._times is not None
        size = config.grouping[1]
        each = config.env_manager_args.get(SIZE) or -(-size // min(cores(), size))
        return step_seconds(self._times, size, cores(), config.env_manager, each)

    def _work(self, profile: Profile) -> float:
        """Seconds of a processor, those that environments wait left out."""
        waiting = 0.0 if self._times is None else self._times.waiting
        acting = {path for about in profile.ledger.stages.values() for path in about.get("part", [])[:1]}
        spent = sum(each.busy.get(path, 0.0) for each in profile.ledger.accounts for path in acting)
        return sum(each.worked for each in profile.ledger.accounts) - waiting * spent

    def _probe(self) -> Times | None:
        """The times of one environment alone; None for a VectorEnv or a game, which are stepped otherwise."""
        config = self.config
        if config.clock != "env_steps" or config.env_manager == "vector":
            return None
        factory = EnvFactory(config.env, config.env_args, config.wrappers, bool(config.agents))
        try:
            with ExitStack() as made:
                made.callback(dispose, env := factory())
                return measured(Probe(factory, 1_000, min(PROBE, self.seconds / 10)).episodes(env))
        except FlowError:
            return None

    # -- the report

    def lines(self) -> list[str]:
        """What was tried, the choice, and why."""
        assert self.given is not None
        unit = self.config.clock
        lines = [f"{self.pace:,.0f} {unit} per second as given; {self.took:.0f} s of calibration", ""]
        lines.append(f"{'measured':>8}  {'foreseen':>8}  times the given pace")
        order = sorted(self.rows.values(), key=lambda row: -(row.measured or 0.0))
        lines += [row.line() for row in order]
        lines += ["", f"As given: {self.given.sentence()}"]
        best = self.rows[self.best]
        options = self.changed(self.best)
        if options:
            lines.append(f"Chosen: {', '.join(map(str, options))}: {best.measured:.2f} times the given pace.")
        else:
            lines.append(f"Chosen: the given settings; nothing that was tried is {WORTH - 1:.0%} faster.")
        changes = [f"{each}: {each.changes}" for each in options if each.changes]
        equal = "Parameters stay equal to the last bit."
        if not self._repeats:
            equal = (
                "The parameters of this plan follow the clock with any settings; what an environment does is the same."
            )
        lines += [f"Changes {'; '.join(changes)}."] if changes else [equal]
        if not self.allow_inexact:
            others = [each for knob in self.knobs for each in knob.options if each.changes]
            if others:
                lines += ["", "Not tried, as it changes results (--allow-inexact):"]
                by_change: dict[str, list[str]] = {}
                for each in others:
                    by_change.setdefault(each.changes, []).append(str(each))
                lines += [f"  {'; '.join(names)}: {changes}" for changes, names in by_change.items()]
        return lines


_SLOW, _LATE = "not tried: foreseen to be slower", "not tried: no time left"
