"""The doctor's report: findings, times, and the suggested manager."""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
import numpy as np

Level = Literal["ok", "note", "problem"]

#: Samples for the mean time of the slowest of several steps.
DRAWS = 2_000
#: Overheads in seconds, beside the environment's own time (measured by benchmarks/env_managers.py): a step in this
#: process; waking a process; passing a step to an asynchronous process; waking a thread.
IN_PROCESS, PROCESS, ANSWER, THREAD = 3e-6, 8e-5, 2e-4, 5e-5
#: Speed-up over a simpler manager that justifies suggesting another one.
WORTH = 1.25
#: Share of waiting from which threads pay.
WAITS = 0.5


@attrs.frozen
class Finding:
    """A sentence or two about one topic. A problem leads to wrong results, or none; a note is good to know."""

    level: Level
    about: str
    text: str


@attrs.frozen
class Times:
    """Measured times of one environment, in seconds; a step of a VectorEnv steps all its `num_envs`.

    - `steps`: time of every step; `resets` likewise.
    - `episode`: mean number of steps between two resets; None if no episode ended.
    - `waiting`: share of the time without use of a processor.
    """

    steps: np.ndarray[Any, np.dtype[np.float64]] = attrs.field(repr=False, eq=False)
    resets: np.ndarray[Any, np.dtype[np.float64]] = attrs.field(repr=False, eq=False)
    episode: float | None
    waiting: float
    num_envs: int = 1

    @property
    def mean(self) -> float:
        """Mean time of a step, with its share of a reset."""
        return float(self.steps.mean() + (self.resets.mean() / self.episode if self.episode else 0.0))

    def slowest(self, groups: int, each: int = 1) -> float:
        """The mean time of the slowest of `groups` groups that step `each` environments one after the other."""
        samples = np.random.default_rng(0).choice(self.steps, (DRAWS, groups, each))
        return float(samples.sum(axis=2).max(axis=1).mean())

    def values(self) -> dict[str, float]:
        """The times as plain values, in seconds."""
        median, high = np.quantile(self.steps, [0.5, 0.99]).tolist()
        reset = float(np.median(self.resets))
        return {"step_median": median, "step_percentile_99": high, "reset_median": reset, "waiting": self.waiting}

    def finding(self) -> Finding:
        """The times as a finding."""
        median, high, reset, _ = map(_ms, self.values().values())
        what = "a step takes" if self.num_envs == 1 else f"a step of all {self.num_envs} takes"
        text = f"{what} {median} (the median; 99th percentile {high}), a reset {reset}"
        return Finding("ok", "times", f"{text}; {100 * self.waiting:.0f} % of it is waiting")


@attrs.frozen
class Suggestion:
    """A manager, its arguments and the reason; `expected` is the estimated steps per second by manager."""

    env_manager: str
    env_manager_args: dict[str, Any]
    reason: str
    expected: dict[str, float]


def step_seconds(times: Times, num_envs: int, cores: int, kind: str, each: int = 1) -> float:
    """Expected seconds of one step of `num_envs` environments, without a policy.

    Args:
        times: Times of a single environment.
        num_envs: Number of environments that step together.
        cores: Cores for this process and others.
        kind: The manager, but "vector".
        each: Environments per process, of "subprocess".
    """
    work = times.mean * (1 - times.waiting)
    if kind == "subprocess":
        processes = math.ceil(num_envs / each)
        return max(times.slowest(processes, each), num_envs * work / cores) + processes * PROCESS
    if kind == "thread":
        return max(times.slowest(num_envs), num_envs * work) + num_envs * THREAD
    if kind == "async":
        return num_envs / min(num_envs / (times.mean + ANSWER), cores / (work + ANSWER), 1 / ANSWER)
    return num_envs * (times.mean + IN_PROCESS)


def suggest(times: Times, num_envs: int, cores: int, native: Times | None = None) -> Suggestion:
    """The simplest manager that is nearly as fast as the fastest.

    Args:
        times, num_envs, cores: See `step_seconds`.
        native: Times of the environment's own vectorized implementation, if it has one.
    """
    mean, slowest = times.mean, times.slowest(num_envs)
    takes, waits = f"a step takes {_ms(mean)}", times.waiting > WAITS

    def rate(kind: str, each: int = 1) -> float:
        return num_envs / step_seconds(times, num_envs, cores, kind, each)

    # Per manager, the simplest first: steps per second, the reason, its arguments.
    reason = f"{takes}, and waking a process about {_ms(PROCESS)}: nothing is gained"
    ways: dict[str, tuple[float, str, dict[str, Any]]] = {"local": (rate("local"), reason, {})}
    if native is not None:
        seconds = native.mean
        reason = f"its own vectorized implementation steps {native.num_envs} in {_ms(seconds)}"
        ways["vector"] = native.num_envs / seconds, reason, {}
    for size in (math.ceil(num_envs / min(cores, num_envs)), 1):
        processes = math.ceil(num_envs / size)
        if "subprocess" not in ways or rate("subprocess", size) > ways["subprocess"][0]:
            how = "wait at the same time" if waits else f"share the work on {cores} cores"
            reason = f"{takes}: {processes} processes {how}"
            ways["subprocess"] = rate("subprocess", size), reason, {"envs_per_process": size}
    if waits:
        reason = f"it waits {100 * times.waiting:.0f} % of its time, and threads wait at the same time"
        ways["thread"] = rate("thread"), reason, {}
    reason = (
        f"the slowest of {num_envs} steps takes {_ms(slowest)}, {slowest / mean:.1f} times the mean, and the others "
        "do not wait for it; the order of the collected steps then depends on timing"
    )
    ways["async"] = rate("async"), reason, {}
    best = "local"
    for kind, (steps, *_) in ways.items():
        if steps > WORTH * ways[best][0]:
            best = kind
    _, reason, args = ways[best]
    return Suggestion(best, args, reason, {kind: steps for kind, (steps, *_) in ways.items()})


@attrs.frozen
class Diagnosis:
    """All findings, in the order of the checks."""

    env: str
    findings: tuple[Finding, ...]
    times: Times | None = None
    suggestion: Suggestion | None = None

    @property
    def problems(self) -> int:
        """Number of problems."""
        return sum(finding.level == "problem" for finding in self.findings)

    def values(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        return {
            "env": self.env,
            "problems": self.problems,
            "findings": [attrs.asdict(finding) for finding in self.findings],
            "times": self.times and self.times.values(),
            "suggestion": self.suggestion and attrs.asdict(self.suggestion),
        }

    def lines(self) -> list[str]:
        """The report, line by line."""
        lines = [f"{self.env}: {self.problems or 'no'} problem{'' if self.problems == 1 else 's'}"]
        lines += [f"  {each.level:<8} {each.about:<13} {each.text}" for each in self.findings]
        if self.suggestion is not None:
            rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in self.suggestion.expected.items())
            lines += [f"suggested: {self.options()}", f"  {self.suggestion.reason}"]
            lines += [f"  expected steps/s, without a policy: {rates}"]
        return lines

    def options(self) -> str:
        """The suggestion as options of `flowrl run`."""
        if self.suggestion is None:
            return ""
        args = ", ".join(f'"{name}": {value}' for name, value in self.suggestion.env_manager_args.items())
        how = f" --set 'env_manager_args={{{args}}}'" if args else ""
        return f"--env-manager {self.suggestion.env_manager}{how}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
