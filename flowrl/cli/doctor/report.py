"""What the doctor reports: findings, times, and the manager that they suggest."""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
import numpy as np

Level = Literal["ok", "note", "problem"]

#: Draws of which the mean time of the slowest is the mean.
DRAWS = 2_000
#: Seconds that it costs, beside the environment's own time (benchmarks/env_managers.py shows them): a step in this
#: process; waking a process; handing a step to one that nobody waits for; waking a thread.
IN_PROCESS, PROCESS, ANSWER, THREAD = 3e-6, 8e-5, 2e-4, 5e-5
#: How much faster a manager must be to be suggested in place of a simpler one.
WORTH = 1.25
#: The share of its time that an environment must wait for threads to be of use.
WAITS = 0.5


@attrs.frozen
class Finding:
    """One sentence or two about one thing. A problem gives wrong results, or none; a note is good to know."""

    level: Level
    about: str
    text: str


@attrs.frozen
class Times:
    """Measured times of one environment, in seconds; of a VectorEnv, each step is one of all its `num_envs`.

    - `steps`: of every step that was timed; `resets` likewise.
    - `episode`: steps between two resets, the mean; None if no episode ended.
    - `waiting`: the share of its time in which it used no processor.
    """

    steps: np.ndarray[Any, np.dtype[np.float64]] = attrs.field(repr=False, eq=False)
    resets: np.ndarray[Any, np.dtype[np.float64]] = attrs.field(repr=False, eq=False)
    episode: float | None
    waiting: float
    num_envs: int = 1

    @property
    def mean(self) -> float:
        """Of a step, with its share of a reset."""
        return float(self.steps.mean() + (self.resets.mean() / self.episode if self.episode else 0.0))

    def slowest(self, groups: int, each: int = 1) -> float:
        """The mean time of the slowest of some groups that step `each` environments one after the other."""
        drawn = np.random.default_rng(0).choice(self.steps, (DRAWS, groups, each))
        return float(drawn.sum(axis=2).max(axis=1).mean())

    def values(self) -> dict[str, float]:
        """As plain values, in seconds."""
        median, high = np.quantile(self.steps, [0.5, 0.99]).tolist()
        reset = float(np.median(self.resets))
        return {"step_median": median, "step_percentile_99": high, "reset_median": reset, "waiting": self.waiting}

    def finding(self) -> Finding:
        """For people."""
        median, high, reset, _ = map(_ms, self.values().values())
        what = "a step takes" if self.num_envs == 1 else f"a step of all {self.num_envs} takes"
        text = f"{what} {median} (the median; 99th percentile {high}), a reset {reset}"
        return Finding("ok", "times", f"{text}; {100 * self.waiting:.0f} % of it is waiting")


@attrs.frozen
class Suggestion:
    """Which manager, with which arguments, and why; `expected` is steps per second by manager, as estimated."""

    env_manager: str
    env_manager_args: dict[str, Any]
    reason: str
    expected: dict[str, float]


def suggest(times: Times, num_envs: int, cores: int, native: Times | None = None) -> Suggestion:
    """The simplest manager that is nearly as fast as any.

    Args:
        times: Of a single environment.
        num_envs: That are stepped together.
        cores: For this process and others.
        native: Times of the environment's own vectorised implementation, if it has one.
    """
    mean, work, slowest = times.mean, times.mean * (1 - times.waiting), times.slowest(num_envs)
    takes, waits = f"a step takes {_ms(mean)}", times.waiting > WAITS
    # Of each manager, from the simplest on: steps per second, why, its arguments.
    reason = f"{takes}, and waking a process about {_ms(PROCESS)}: nothing is gained"
    ways: dict[str, tuple[float, str, dict[str, Any]]] = {"local": (1 / (mean + IN_PROCESS), reason, {})}
    if native is not None:
        seconds = native.mean
        reason = f"its own vectorised implementation steps {native.num_envs} in {_ms(seconds)}"
        ways["vector"] = native.num_envs / seconds, reason, {}
    for size in (math.ceil(num_envs / min(cores, num_envs)), 1):
        processes = math.ceil(num_envs / size)
        seconds = max(times.slowest(processes, size), num_envs * work / cores) + processes * PROCESS
        if "subprocess" not in ways or num_envs / seconds > ways["subprocess"][0]:
            how = "wait at the same time" if waits else f"share the work on {cores} cores"
            reason = f"{takes}: {processes} processes {how}"
            ways["subprocess"] = num_envs / seconds, reason, {"envs_per_process": size}
    if waits:
        reason = f"it waits {100 * times.waiting:.0f} % of its time, which threads do at the same time"
        ways["thread"] = num_envs / (max(slowest, num_envs * work) + num_envs * THREAD), reason, {}
    reason = (
        f"the slowest of {num_envs} steps takes {_ms(slowest)}, {slowest / mean:.1f} times the mean: nobody "
        "waits for it; the order of what is collected follows the clock then"
    )
    ways["async"] = min(num_envs / (mean + ANSWER), cores / (work + ANSWER), 1 / ANSWER), reason, {}
    best = "local"
    for kind, (rate, *_) in ways.items():
        if rate > WORTH * ways[best][0]:
            best = kind
    _, reason, args = ways[best]
    return Suggestion(best, args, reason, {kind: rate for kind, (rate, *_) in ways.items()})


@attrs.frozen
class Diagnosis:
    """All that was found, in the order in which it was looked for."""

    env: str
    findings: tuple[Finding, ...]
    times: Times | None = None
    suggestion: Suggestion | None = None

    @property
    def problems(self) -> int:
        """How many."""
        return sum(finding.level == "problem" for finding in self.findings)

    def values(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "env": self.env,
            "problems": self.problems,
            "findings": [attrs.asdict(finding) for finding in self.findings],
            "times": self.times and self.times.values(),
            "suggestion": self.suggestion and attrs.asdict(self.suggestion),
        }

    def lines(self) -> list[str]:
        """For people."""
        told = [f"{self.env}: {self.problems or 'no'} problem{'' if self.problems == 1 else 's'}"]
        told += [f"  {each.level:<8} {each.about:<13} {each.text}" for each in self.findings]
        if self.suggestion is not None:
            rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in self.suggestion.expected.items())
            told += [f"suggested: {self.options()}", f"  {self.suggestion.reason}"]
            told += [f"  steps/s to expect, without a policy: {rates}"]
        return told

    def options(self) -> str:
        """The suggestion as options of `flowrl run`."""
        if self.suggestion is None:
            return ""
        args = ", ".join(f'"{name}": {value}' for name, value in self.suggestion.env_manager_args.items())
        how = f" --set 'env_manager_args={{{args}}}'" if args else ""
        return f"--env-manager {self.suggestion.env_manager}{how}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
