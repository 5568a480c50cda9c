"""`flowrl simulate`: what a plan would do with more workers, by the model of its profile, without running it there.

The model has the seconds of each operator for the work of some time, measured here or given. Behind a gather it puts
as many workers as asked for, each with a core, and takes the slowest chain of work. Throughput follows from that; what
is in flight, and how old it becomes, from Little's law: with f requests to each of N workers and X items per second, an
item is processed f · N / X seconds after its worker was asked for it, while f · N − 1 others were processed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowrl.engine.workers.accounts import Account
from flowrl.errors import ConfigError, did_you_mean
from flowrl.inspect.profile import LEAST_GAIN, MOST_CHANGES, NEVER, Profile
from flowrl.runs.config import Configuration
from flowrl.tools.autotune import LATENCY, Trial
from flowrl.trainer.plan_file import PlanFile

#: Seconds that a plan is measured for, and those that it may take to warm up.
MEASURED, WARM_UP = 3.0, 60.0


@attrs.frozen
class Simulation:
    """A plan with some workers, by the model.

    Attributes:
        profile: What all would do in the time of the measured work.
        path: The gather.
    """

    profile: Profile
    path: str

    @property
    def pace(self) -> float:
        """Steps per second, in the counter of the profile."""
        return self.profile.ledger.counters.get(self.profile.counter, 0) / max(self.profile.seconds, 1e-9)

    @property
    def fills(self) -> dict[str, tuple[float, int]]:
        """How full queues are on average, and the most they hold: answers that wait, requests, items made ahead."""
        found, profile = dict[str, tuple[float, int]](), self.profile
        for path, about in profile.ledger.stages.items():
            held = about["in_flight"] * max(about["workers"], 1)
            workers = [each for each in profile.ledger.accounts if each.stage == path]
            if not workers or held < 2:
                continue
            if about["kind"] == "gather_async":
                out = sum(each.trips for each in workers) / profile.seconds
                found[path] = max(0.0, held - out) if self._is_driven else 0.0, held
            elif about["kind"] in ("call", "prefetch"):
                share = workers[0].worked / profile.seconds
                is_slowest = share > 1 - NEVER
                filled = is_slowest if about["kind"] == "call" else not is_slowest
                found[path] = held if filled else share * (about["kind"] == "call"), held
        return found

    @property
    def lag(self) -> float | None:
        """Updates between the weights that made a row and those that first learn from it; None: nothing is learned."""
        counters, about = self.profile.ledger.counters, self.profile.ledger.stages[self.path]
        updates = sum(count for name, count in counters.items() if name.partition("/")[0] == "updates")
        if not updates:
            return None
        if about["kind"] != "gather_async" or not self.workers:
            return 0.0  # it is asked for with the newest weights, and all wait for it
        items = sum(each.calls for each in self.workers)
        return (len(self.workers) * int(about["in_flight"]) - 1) * updates / max(items, 1e-9)

    @property
    def workers(self) -> list[Account]:
        """The accounts of the workers."""
        return [each for each in self.profile.ledger.accounts if each.stage == self.path]

    @property
    def _is_driven(self) -> bool:
        """Whether the run's own thread is never idle."""
        return self.profile.ledger.driver.worked > (1 - NEVER) * self.profile.seconds

    def lines(self) -> list[str]:
        """The simulation as text."""
        profile, driver, workers = self.profile, self.profile.ledger.driver, self.workers
        where = f"{len(workers)} worker{'s' * (len(workers) != 1)}" if workers else "this process alone"
        lines = [f"{self.pace:,.0f} {profile.counter} per second with {where}"]
        lines.append(f"  the run's own thread works {driver.worked / profile.seconds:.0%} of the time")
        if workers:
            lines.append(f"  each worker works {workers[0].worked / profile.seconds:.0%} of the time")
        lines += [f"  {path}: {held:.1f} of {most} are ready or wait" for path, (held, most) in self.fills.items()]
        lines += [] if self.lag is None else [f"  new rows are {self.lag:.1f} updates old when they are learned from"]
        told = [f"{change}: {gain:+.0%}" for change, gain in profile.changes()[:MOST_CHANGES] if gain >= LEAST_GAIN]
        return [*lines, "", profile.sentence(), *([f"What if: {'; '.join(told)}."] if told else [])]

    def values(self) -> dict[str, Any]:
        """The simulation as values for JSON."""
        return {
            "workers": len(self.workers),
            "pace": self.pace,
            "counter": self.profile.counter,
            "fills": {path: {"held": held, "most": most} for path, (held, most) in self.fills.items()},
            "policy_lag": self.lag,
            "cause": self.profile.cause()[0],
            "sentence": self.profile.sentence(),
        }


def measured(plan_file: PlanFile, config: Configuration, seconds: float = MEASURED) -> Profile:
    """The profile of a plan in this process, with as many environments in a group as a worker would have.

    Raises: ConfigError: it does not learn within a minute.
    """
    alone = attrs.evolve(config, num_workers=0, envs_per_worker=config.grouping[1], env_groups=None)
    with Trial(plan_file, alone) as one:
        one.warm_up(WARM_UP, seconds)
        return one.profile


def simulate(
    profile: Profile, workers: int, latency: float | None = None, costs: Mapping[str, float] | None = None
) -> Simulation:
    """The work of a profile with so many workers.

    Args:
        profile: Of a run of any size.
        workers: How many.
        latency: Seconds of a request beside work, where none was measured.
        costs: Seconds per item of operators, by path or its last part, instead of those measured.

    Raises: ConfigError: the plan has no workers to change, or no such operator.
    """
    gathers = [path for path, about in profile.ledger.stages.items() if about.get("part")]
    if len(gathers) != 1:
        has = f"several gathers, {' and '.join(gathers)}" if gathers else "no gather, whose workers could be more"
        raise ConfigError(f"the profile has {has}: simulate knows plans with one")
    known, by_path = {path for each in profile.ledger.accounts for path in each.busy}, dict[str, float]()
    for name, seconds in (costs or {}).items():
        hits = [path for path in known if name in (path, path.rpartition(".")[2])]
        if len(hits) != 1:
            way_out = f"it may be {' or '.join(sorted(hits))}" if hits else did_you_mean(name, known)
            raise ConfigError(f"--cost {name}={seconds:g}: no single operator has this name; {way_out}")
        by_path[hits[0]] = seconds
    return Simulation(
        profile.resized(gathers[0], workers, LATENCY if latency is None else latency, by_path), gathers[0]
    )
