"""What the doctor says of an environment."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import numpy as np

Seconds = np.ndarray[Any, np.dtype[np.float64]]

Level = Literal["ok", "note", "problem"]

#: Draws of which the mean time of the slowest is the mean.
DRAWS = 2_000


@attrs.frozen
class Finding:
    """One sentence or two about one thing, in plain words.

    A problem gives wrong results, or none; a note is what one may want to know.
    """

    level: Level
    about: str
    text: str

    def line(self) -> str:
        """For people."""
        return f"  {self.level:<8} {self.about:<13} {self.text}"


@attrs.frozen
class Times:
    """Measured times of one environment, in seconds; of a VectorEnv, each step is one of all its `num_envs`.

    - `steps`: of every step that was timed; `resets` likewise.
    - `episode`: steps between two resets, the mean; None if no episode ended.
    - `waiting`: the share of its time in which it used no processor.
    """

    steps: Seconds = attrs.field(repr=False, eq=False)
    resets: Seconds = attrs.field(repr=False, eq=False)
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

    def values(self) -> dict[str, Any]:
        """As plain values, in seconds."""
        median, high = np.quantile(self.steps, [0.5, 0.99]).tolist()
        return {
            "step_median": median,
            "step_percentile_99": high,
            "reset_median": float(np.median(self.resets)),
            "waiting": self.waiting,
        }

    def finding(self) -> Finding:
        """For people."""
        found = {name: f"{1e3 * value:.3g} ms" for name, value in self.values().items()}
        what = "a step takes" if self.num_envs == 1 else f"a step of all {self.num_envs} takes"
        text = (
            f"{what} {found['step_median']} (the median; 99th percentile {found['step_percentile_99']}), a reset "
            f"{found['reset_median']}; {100 * self.waiting:.0f} % of it is waiting"
        )
        return Finding("ok", "times", text)


@attrs.frozen
class Suggestion:
    """Which manager, with which arguments, and why; `expected` is steps per second by manager, as estimated."""

    env_manager: str
    env_manager_args: dict[str, Any]
    reason: str
    expected: dict[str, float]


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
            "times": None if self.times is None else self.times.values(),
            "suggestion": None if self.suggestion is None else attrs.asdict(self.suggestion),
        }

    def lines(self) -> list[str]:
        """For people."""
        told = [f"{self.env}: {self.problems or 'no'} problem{'' if self.problems == 1 else 's'}"]
        told += [finding.line() for finding in self.findings]
        if self.suggestion is not None:
            rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in self.suggestion.expected.items())
            told += [
                f"suggested: {self.options()}",
                f"  {self.suggestion.reason}",
                f"  steps/s to expect, without a policy: {rates}",
            ]
        return told

    def options(self) -> str:
        """The suggestion as options of `flowrl run`."""
        if self.suggestion is None:
            return ""
        words = [f"--env-manager {self.suggestion.env_manager}"]
        if args := self.suggestion.env_manager_args:
            inner = ", ".join(f'"{name}": {value}' for name, value in args.items())
            words.append(f"--set 'env_manager_args={{{inner}}}'")
        return " ".join(words)
