"""Scores of single runs by algorithm and task, and the tables of them that the field asks for (S4, S7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import attrs
import numpy as np

from flowrl.errors import ConfigError, did_you_mean
from flowrl.runs.progress import score_text
from flowrl.tools.curves import Numbers, RunRecord, by_algorithm
from flowrl.tools.statistics import (
    CONFIDENCE,
    interquartile_mean,
    interval,
    performance_profile,
    probability_of_improvement,
    tolerance_interval,
)

#: Rows of cells, the first row the header.
Table = Sequence[Sequence[str]]
#: The confidence of all intervals, as the tables say it.
SURE = f"{100 * CONFIDENCE:g} %"
#: Resamples of the bands of a profile, which are many numbers each.
RESAMPLES = 500


@attrs.frozen
class PerformanceProfile:
    """The share `[points]` of runs that score above each threshold, and the bounds of its interval, if there are."""

    algorithm: str
    thresholds: Numbers
    share: Numbers
    low: Numbers | None
    high: Numbers | None


@attrs.frozen
class ScoreTable:
    """A score for each run.

    Attributes:
        runs: Of each algorithm and task.
        scale: The scores of a task that become 0 and 1, such as those of random actions and of the goal. Without a
            scale scores are as they are, which makes sense of one task alone.
    """

    runs: Mapping[str, Mapping[str, Sequence[float]]]
    scale: Mapping[str, tuple[float, float]] = attrs.field(factory=dict)

    @classmethod
    def read(cls, runs: Sequence[RunRecord], key: str, scale: Mapping[str, tuple[float, float]]) -> ScoreTable:
        """The last number of each run under a key of its results.

        Raises: ConfigError: a run has no such number; the runs are of several environments, or of one with an unknown
            name, and there is no scale for one of them.
        """
        for run in runs:
            if run.numbers(key).size == 0:
                known = {name for result in run.results for name in result}
                raise ConfigError(f"{run.path} has no number {key!r} in its results; {did_you_mean(key, known)}")
        found = {
            algorithm: {task: [float(run.numbers(key)[0, -1]) for run in members] for task, members in tasks.items()}
            for algorithm, tasks in by_algorithm(runs).items()
        }
        tasks = sorted({task for each in found.values() for task in each})
        if unknown := scale.keys() - set(tasks):
            name = min(unknown)
            raise ConfigError(f"--scale {name}: no run is of that environment; {did_you_mean(name, tasks)}")
        if missing := [task for task in tasks if task not in scale and (scale or len(tasks) > 1)]:
            raise ConfigError(
                f"scores of {len(tasks)} environments need one scale: give --scale {missing[0]}=LOW,HIGH, the scores "
                "that become 0 and 1, such as those of random actions and of the best that is known"
            )
        return cls(found, scale)

    def normalized(self, algorithm: str) -> dict[str, Numbers]:
        """The scores of an algorithm on the scale, by task."""
        return {
            task: (np.asarray(scores, dtype=float) - low) / (high - low)
            for task, scores in self.runs[algorithm].items()
            for low, high in [self.scale.get(task, (0.0, 1.0))]
        }

    def profiles(self, points: int) -> list[PerformanceProfile]:
        """The performance profile of each algorithm, on common thresholds."""
        everything = np.concatenate([task for algorithm in self.runs for task in self.normalized(algorithm).values()])
        margin = 0.02 * (np.ptp(everything) or 1.0)
        thresholds = np.linspace(everything.min() - margin, everything.max() + margin, points)
        profiles = []
        for algorithm in self.runs:
            above = [task[:, None] > thresholds for task in self.normalized(algorithm).values()]
            low, high = interval(above, performance_profile, resamples=RESAMPLES) or (None, None)
            profiles.append(PerformanceProfile(algorithm, thresholds, performance_profile(*above, axis=0), low, high))
        return profiles

    def by_task(self) -> Table:
        """A row for each algorithm in each task: the interquartile mean, and the bounds of single runs."""
        rows = [["task", "algorithm", "runs", "IQM", f"{SURE} interval", f"single runs (share, at {SURE})"]]
        for algorithm, tasks in self.runs.items():
            for task, scores in tasks.items():
                single = tolerance_interval(scores)
                bounds = "-" if single is None else f"{between(single)} ({np.floor(100 * single.coverage):.0f} %)"
                mean = score_text(interquartile_mean(scores))
                rows.append([task, algorithm, f"{len(scores)}", mean, between(interval([scores])), bounds])
        return rows

    def over_tasks(self) -> Table:
        """A row for each algorithm: the interquartile mean of its scores on the scale in all its tasks."""
        rows = [["algorithm", "tasks", "runs", "IQM on the scale", f"{SURE} interval"]]
        for algorithm in self.runs:
            tasks = list(self.normalized(algorithm).values())
            runs = sum(map(len, tasks))
            mean = f"{interquartile_mean(np.concatenate(tasks)):.3f}"
            rows.append([algorithm, f"{len(tasks)}", f"{runs}", mean, between(interval(tasks))])
        return rows

    def improvements(self) -> Table:
        """A row for each two algorithms with a task in common: how probable it is that the first scores more."""
        rows = [["algorithm", "improves on", "tasks", "probability", f"{SURE} interval"]]
        for first, second in combinations(self.runs, 2):
            ours, theirs = self.normalized(first), self.normalized(second)
            shared = [task for task in ours if task in theirs]
            if not shared:
                continue
            scores = [found[task] for found in (ours, theirs) for task in shared]
            probability = f"{probability_of_improvement(*scores):.3f}"
            bounds = between(interval(scores, probability_of_improvement))
            rows.append([first, second, f"{len(shared)}", probability, bounds])
        return rows

    def tables(self) -> list[Table]:
        """All tables that say something."""
        tables = [self.by_task(), *([self.over_tasks()] if self.scale else []), self.improvements()]
        return [table for table in tables if len(table) > 1]


def between(bounds: Sequence[float] | None) -> str:
    """The two bounds of an interval as text.

    >>> between((-0.5, 300)), between(None)
    ('-0.500 .. 300.0', '-')
    """
    return "-" if bounds is None else f"{score_text(bounds[0])} .. {score_text(bounds[1])}"


def markdown(rows: Table) -> str:
    """A table of padded cells, the first row its header."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |" for cells in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]) + "\n"
