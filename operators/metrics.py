"""The end of a plan: results."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from numbers import Real
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from flowrl.engine.context import Context
from flowrl.engine.operator import context, operator, runtime, state
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.errors import SchemaError
from flowrl.learners.training import LAG

if TYPE_CHECKING:
    from flowrl.rollout import BaseWorkers

log = logging.getLogger("flowrl")

#: The quantiles of staleness that a result has, by the end of their names.
QUANTILES = {"p50": 0.5, "p90": 0.9, "max": 1.0}
#: What is recorded of every episode.
EPISODES = ("episode_return", "episode_length")
#: The episodes over which `episode_return` and `episode_length` are averaged.
RECENT_EPISODES = 100
#: Env steps without a finished episode after which the log says so (T10).
LONG_WITHOUT_EPISODE = 100_000

#: Env steps between results where a plain dict says nothing.
REPORT_EVERY = 1_000

#: Keys of a result that depend on the clock; all others follow from the seed.
CLOCK_KEYS = ("seconds", "steps_per_second")


@operator
class Report:
    """Learner's scalars -> a result every `every` env steps, or whatever else `unit` counts, and one at the end.

    Items that are no dicts, such as experience that was stored, only move that clock.

    A result has the run's counters by their names; `episodes` finished so far; `episode_return` (raw, S1) and
    `episode_length`, means of the last 100, None before the first; `ratio`, the rows sampled per row inserted
    since the last result; the means of the learner's scalars since then, and of the numbers that operators have
    recorded under any other name (`context.record("entropy", 0.7)`); of the rows that were learned from, by how many
    versions the weights that made them are older than those that learned: the mean `policy_lag`, and its quantiles
    `policy_lag_p50`, `policy_lag_p90` and `policy_lag_max`; `seconds` that the run has been open and
    `steps_per_second` since the last result, of what the unit counts. Of two with one name, what comes later here is
    left out, but for the learner's scalars.

    Emits: nothing or one dict for an item. State: recent episodes, when the next is due, sums since the last.
    """

    verb = "combine"
    provides = ("results", "env_steps", "updates")
    every: int = attrs.field(validator=attrs.validators.ge(1))
    unit: str = "env_steps"
    context: Context = context()
    recent: dict[str, deque[float]] = state(factory=lambda: {})
    episodes: int = state(default=0)
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    last: dict[str, int] = state(factory=dict)
    last_episode: int = state(default=0)
    sums: dict[str, tuple[float, int]] = state(factory=dict)
    _reported: float = runtime(factory=clock)

    def schema(self, given: Schema) -> Schema:
        if "results" in given.words:
            raise SchemaError("Report makes results of scalars, but these are results: is there a Report before this?")
        return UNKNOWN  # the scalars and counters that there are

    def __call__(self, scalars: Any) -> list[dict[str, Any]]:
        if isinstance(scalars, dict):
            for name, value in scalars.items():
                total, count = self.sums.get(name, (0.0, 0))
                self.sums[name] = (total + value, count + 1)
        if self.context.counters.get(self.unit, 0) < self.due:
            return []
        return [self.result()]

    def finish(self) -> list[dict[str, Any]]:
        return [self.result()] if self.context.counters != self.last else []

    def result(self) -> dict[str, Any]:
        """The result as of now; sums begin anew."""
        counters, now = dict(self.context.counters), clock()
        since = {unit: n - self.last.get(unit, 0) for unit, n in counters.items()}
        self._take_episodes(counters.get("env_steps", 0))
        # Counted where they end: of very many between two results not all are kept in the records.
        result: dict[str, Any] = {**counters, "episodes": counters.get("episodes", self.episodes)}
        for name, values in self.recent.items():
            result[name] = float(np.mean(values)) if values else None
        if since.get("inserted"):
            result["ratio"] = since.get("sampled", 0) / since["inserted"]
        result |= lags_in(self.context.metrics.drain(LAG))
        result |= {name: mean for name, mean in self._take_others().items() if name not in result}
        result |= {name: total / count for name, (total, count) in self.sums.items()}
        result["seconds"] = self.context.watch.seconds
        result["steps_per_second"] = since.get(self.unit, 0) / max(now - self._reported, 1e-9)
        self.last, self.sums, self._reported = counters, {}, now
        self.due = (counters.get(self.unit, 0) // self.every + 1) * self.every
        return result

    def _take_others(self) -> dict[str, float]:
        """Means of what was recorded since the last result, but for episodes and what is no number."""
        ledger, means = self.context.metrics, {}
        for name in [name for name in ledger.records if name not in EPISODES]:
            numbers = [float(value) for value in ledger.drain(name) if isinstance(value, Real)]
            if numbers:
                means[name] = float(np.mean(numbers))
        return means

    def _take_episodes(self, env_steps: int) -> None:
        for name in EPISODES:
            values = self.context.metrics.drain(name)
            self.recent.setdefault(name, deque(maxlen=RECENT_EPISODES)).extend(values)
            if name == "episode_return" and values:
                self.episodes += len(values)
                self.last_episode = env_steps
        if env_steps - self.last_episode >= LONG_WITHOUT_EPISODE:
            log.warning("no episode has ended in %d env steps", env_steps - self.last_episode)
            self.last_episode = env_steps


def StandardMetricsReporting(train_op: Plan, workers: BaseWorkers, config: Any) -> Plan:
    """The usual end of an algorithm: a stream of results, one every `config["report_every"]` env steps.

    Of a plan without an environment they are updates, see `BaseWorkers.clock`. A plain dict without that key gives one
    every `REPORT_EVERY`. See `Report` for what a result holds.
    """
    plain = isinstance(config, Mapping) and "report_every" not in config
    every = REPORT_EVERY if plain else config["report_every"]
    return train_op.combine(Report(every, unit=WorkersContract(workers).clock))


def lags_in(recorded: list[Any]) -> dict[str, float]:
    """Mean and quantiles of staleness over all rows that were recorded (see `flowrl.learners.training.lags`).

    >>> lags_in([np.array([0, 0, 1]), np.array([3])])
    {'policy_lag': 1.0, 'policy_lag_p50': 0.0, 'policy_lag_p90': 3.0, 'policy_lag_max': 3.0}
    """
    lags = np.concatenate(recorded) if recorded else np.empty(0)
    if not len(lags):
        return {}
    # One that occurred, not one between two.
    found = np.quantile(lags, list(QUANTILES.values()), method="inverted_cdf")
    return {LAG: float(lags.mean())} | {f"{LAG}_{name}": float(lag) for name, lag in zip(QUANTILES, found)}
