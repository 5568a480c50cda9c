"""Results: the end of a plan."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, SupportsFloat

import attrs
import numpy as np

from flowrl.engine.context import Context
from flowrl.engine.merge import FromBranch
from flowrl.engine.operator import context, describe, operator, runtime, state
from flowrl.engine.plan import Plan
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.schema import UNKNOWN, Schema
from flowrl.errors import SchemaError
from flowrl.learners.training import LAG

if TYPE_CHECKING:
    from flowrl.rollout import Workers

log = logging.getLogger("flowrl")

#: The quantiles of staleness in a result, by the suffix of their names.
QUANTILES = {"p50": 0.5, "p90": 0.9, "max": 1.0}
#: Records of every episode.
EPISODES = ("episode_return", "episode_length")
#: Records of whether an episode was won, None if nobody says: of the environment, and of an agent or learner.
WINS = ("success_rate", "win_rate")
#: The number of recent episodes in the means `episode_return` and `episode_length`, and in shares of wins.
RECENT_EPISODES = 100
#: Env steps without a finished episode after which the log warns (T10).
LONG_WITHOUT_EPISODE = 100_000

#: Env steps between results if a plain dict has no `report_every`.
REPORT_EVERY = 1_000

#: Keys of a result that depend on the clock, as do those that begin with `TIMERS`; all others follow from the seed.
CLOCK_KEYS = ("seconds", "steps_per_second", "eval_seconds", "eval_share")
TIMERS = "timers/"


#: Joins the name of a scalar and that of the branch that emitted it, in `Report.sums`.
OF_BRANCH = " of branch "


@operator
class Report:
    """Learner's scalars -> a result every `every` env steps (or other `unit`), and one at the end.

    Another one comes with the first item that reaches a bound of the run's budget. Until the first env step, as where a
    plan begins with demonstrations, there is one every `every` updates. Items that are not dicts, such as stored
    experience, only advance that clock.

    A result has the run's counters by name; the finished `episodes` so far; `episode_return` (raw, S1) and
    `episode_length`, means of the last 100 episodes, None before the first; `success_rate`, the share of wins among
    those of these episodes that say (`info["is_success"]`), with `judged`, the share that says (S9), of agents and
    learners `win_rate/NAME` with `judged/NAME`; `ratio`, the rows sampled per row inserted since the last result; the
    means since then of the learner's scalars, and of numbers that operators record under other names
    (`context.record("entropy", 0.7)`); `policy_lag`, the mean number of versions by which the weights that collected a
    row are older than those that learned from it, with `policy_lag_p50`, `policy_lag_p90` and `policy_lag_max`;
    `seconds` that the run has been open, and `steps_per_second` since the last result, in the unit, both without the
    time of evaluation. If names collide, the earlier in this list wins, but the learner's scalars win over all. If the
    plan has several learners, each has its own scalars, counters and lags, such as `loss/ppo` and `updates/dqn` (F16);
    so have plain functions in branches of `Concurrently` directly before, once two of them emit a scalar of one name.
    With `timers`, a result has the seconds since the last one that each operator of this process was busy, as
    `timers/OPERATOR`.

    Raises: SchemaError for a scalar that is not a number.
    Emits: nothing or one dict per item. State: recent episodes, when the next result is due, sums since the last.
    """

    verb = "combine"
    by_branch = True
    provides = ("results", "env_steps", "updates")
    clocked = (*CLOCK_KEYS, TIMERS)
    every: int = attrs.field(validator=attrs.validators.ge(1))
    unit: str = "env_steps"
    timers: bool = False
    context: Context = context()
    recent: dict[str, deque[float | None]] = state(factory=lambda: {})
    episodes: int = state(default=0)
    due: int = state(default=attrs.Factory(lambda self: self.every, takes_self=True))
    last: dict[str, int] = state(factory=dict)
    last_episode: int = state(default=0)
    sums: dict[str, tuple[float, int]] = state(factory=dict)
    _reported: float = runtime(default=0.0)
    _busy: dict[str, float] = runtime(factory=dict)

    def schema(self, given: Schema) -> Schema:
        if "results" in given.words:
            raise SchemaError("Report takes scalars, but its input has results: is there a Report before it?")
        return UNKNOWN  # the scalars and counters of the run

    def __call__(self, scalars: Any) -> list[dict[str, Any]]:
        if isinstance(scalars, dict):
            of_branch = f"{OF_BRANCH}{scalars.branch}" if isinstance(scalars, FromBranch) else ""
            for name, value in scalars.items():
                if value.__class__ is not float and not issubclass(type(value), SupportsFloat):
                    raise SchemaError(_no_number(name, value))
                key = name + of_branch if of_branch else name
                total, count = self.sums.get(key, (0.0, 0))
                self.sums[key] = (total + value, count + 1)
        return [self.result()] if self._is_due(self.context.counters) else []

    def _is_due(self, counters: Mapping[str, int]) -> bool:
        if (now := counters.get(self.unit, 0)) >= self.due:
            return True
        if not now and counters.get("updates", 0) // self.every > self.last.get("updates", 0) // self.every:
            return True
        bounds = self.context.bounds
        return bool(bounds) and any(self.last.get(name, 0) < most <= counters.get(name, 0) for name, most in bounds)

    def finish(self) -> list[dict[str, Any]]:
        heard = any(count for _, count in self.sums.values())
        return [self.result()] if heard or self.context.counters != self.last else []

    def result(self) -> dict[str, Any]:
        """The current result; resets the sums."""
        from flowrl.envs.infos import rate_of

        counters, now = dict(self.context.counters), self.context.watch.since_open
        since = {unit: n - self.last.get(unit, 0) for unit, n in counters.items()}
        self._take_episodes(counters.get("env_steps", 0))
        # Counted where they end: the records do not keep all of very many between two results.
        result: dict[str, Any] = {**counters, "episodes": counters.get("episodes", self.episodes)}
        if counters.get("updates"):
            result.setdefault(self.unit, 0)
        for name, values in self.recent.items():
            kind, slash, whose = name.partition("/")
            mean, told = rate_of(values)
            if kind not in WINS:
                result[name] = mean
            elif mean is not None:
                result |= {name: mean, f"judged{slash}{whose}": told / len(values)}
        if since.get("inserted"):
            result["ratio"] = since.get("sampled", 0) / since["inserted"]
        for name in [name for name in self.context.metrics.records if name.partition("/")[0] == LAG]:
            result |= lags_in(self.context.metrics.drain(name), name.removeprefix(LAG))
        result |= {name: mean for name, mean in self._take_others().items() if name not in result}
        result |= self._take_means()
        result |= self._timed() if self.timers else {}
        result["seconds"] = self.context.watch.training
        result["steps_per_second"] = since.get(self.unit, 0) / max(now - self._reported, 1e-9)
        self.last, self._reported = counters, now
        self.due = (counters.get(self.unit, 0) // self.every + 1) * self.every
        return result

    def _take_means(self) -> dict[str, float]:
        """Means of the scalars since the last result; those that several branches have emitted so far by branch."""
        sums, self.sums = self.sums, {key: (0.0, 0) for key in self.sums if OF_BRANCH in key}
        parts = {key: key.partition(OF_BRANCH) for key in sums}
        emitters = Counter(name for name, _, _ in parts.values())
        return {
            f"{name}/{branch}" if branch and emitters[name] > 1 else name: total / count
            for (name, _, branch), (total, count) in zip(parts.values(), sums.values())
            if count
        }

    def _timed(self) -> dict[str, float]:
        """Seconds since the last result that each operator here was busy."""
        meters = [meter for stage in self.context.stages for meter in stage.meters() if meter.verb != "tap"]
        before, self._busy = self._busy, {meter.path: meter.busy for meter in meters}
        return {f"{TIMERS}{path}": busy - before.get(path, 0.0) for path, busy in self._busy.items()}

    def _take_others(self) -> dict[str, float]:
        """Means of the numbers recorded since the last result, without those of episodes."""
        ledger, means = self.context.metrics, {}
        for name in [name for name in ledger.records if not _of_episodes(name)]:
            numbers = [float(value) for value in ledger.drain(name) if isinstance(value, Real)]
            if numbers:
                means[name] = float(np.mean(numbers))
        return means

    def _take_episodes(self, env_steps: int) -> None:
        for name in dict.fromkeys([*EPISODES, *filter(_of_episodes, self.context.metrics.records)]):
            values = self.context.metrics.drain(name)
            self.recent.setdefault(name, deque(maxlen=RECENT_EPISODES)).extend(values)
            if name == "episode_return" and values:
                self.episodes += len(values)
                self.last_episode = env_steps
        if env_steps - self.last_episode >= LONG_WITHOUT_EPISODE:
            log.warning("no episode has ended in %d env steps", env_steps - self.last_episode)
            self.last_episode = env_steps


def _of_episodes(record: str) -> bool:
    """Whether a record is of whole episodes, or of those of one agent: `episode_return/prey` (M4)."""
    return record.partition("/")[0] in (*EPISODES, *WINS)


def _no_number(name: str, value: Any) -> str:
    """Why a scalar cannot be averaged, and the way out."""
    way_out = "remove it in an operator before Report"
    if name.partition("/")[0] == "priorities":
        way_out = "put UpdatePriorities(buffer) after the learning step, which writes them back"
    return f"Report averages numbers, but {name!r} is a {describe(value)}: {way_out}"


def StandardMetricsReporting(train_op: Plan, workers: Workers, config: Any) -> Plan:
    """The usual end of an algorithm: a stream of results, one every `config["report_every"]` env steps.

    A plan without an environment counts updates instead, see `Workers.clock`. For a plain dict without that key the
    interval is `REPORT_EVERY`. `config["report_timers"]` adds the time of each operator. For a result see `Report`.
    """
    plain = isinstance(config, Mapping) and "report_every" not in config
    every = REPORT_EVERY if plain else config["report_every"]
    timers = config.get("report_timers", False) if isinstance(config, Mapping) else config["report_timers"]
    return train_op.combine(Report(every, unit=WorkersContract(workers).clock, timers=timers))


def lags_in(recorded: list[Any], of: str = "") -> dict[str, float]:
    """Mean and quantiles of the staleness of all recorded rows (see `flowrl.learners.training.lags`); `of` ends names.

    >>> lags_in([np.array([0, 0, 1]), np.array([3])])
    {'policy_lag': 1.0, 'policy_lag_p50': 0.0, 'policy_lag_p90': 3.0, 'policy_lag_max': 3.0}
    """
    lags = np.concatenate(recorded) if recorded else np.empty(0)
    if not len(lags):
        return {}
    # A lag that occurred, not an interpolated one.
    found = np.quantile(lags, list(QUANTILES.values()), method="inverted_cdf")
    return {LAG + of: float(lags.mean())} | {f"{LAG}_{name}{of}": float(lag) for name, lag in zip(QUANTILES, found)}
