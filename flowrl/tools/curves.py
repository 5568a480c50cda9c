"""Learning curves: results read back from run directories, grouped by plan and configuration, on a common grid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from flowrl.errors import ConfigError, did_you_mean
from flowrl.runs.config import Configuration, build_config, load_config_file
from flowrl.runs.run_info import read_about, read_results
from flowrl.settings import resumable
from flowrl.tools.statistics import FEWEST_TRIMMED, interquartile_mean, interval

#: Points of the grid on which the runs of a group are compared.
POINTS = 200
#: Configuration keys in which runs of one group may differ: they do not change the average result of a seed.
SAME_GROUP = {"seed", "report_every"} | resumable(Configuration, "free", "rounding")

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@attrs.frozen
class RunRecord:
    """The record of a run in its directory: the plan's name, the configuration, the results so far."""

    path: Path
    plan: str
    config: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]] = attrs.field(repr=False)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Raises ConfigError for a directory whose files are missing or malformed."""
        config = load_config_file(path / "config.json")
        build_config(Configuration, {name: config[name] for name in ("env", "env_args") if name in config})
        return cls(path, read_about(path)["plan"], config, read_results(path))

    def numbers(self, *keys: str) -> Numbers:
        """The values `[keys, results]` of some keys, from the results that have a number for each of them."""
        rows = [[result.get(key) for key in keys] for result in self.results]
        complete = [row for row in rows if all(isinstance(value, (int, float)) for value in row)]
        return np.array(complete, dtype=float).reshape(-1, len(keys)).T


@attrs.frozen
class Curve:
    """The runs of one group: a line `[2, n]` of x and y per run, and their middle on the common grid.

    `middle` and the bounds `low` and `high` are `[points]`: the interquartile mean, or mean of fewer than 4
    runs, and its interval. They cover the x that all runs share, and are None if they share none, or for a
    single run.
    """

    label: str
    lines: Sequence[Numbers]
    grid: Numbers | None
    middle: Numbers | None
    low: Numbers | None
    high: Numbers | None

    @property
    def statistic(self) -> str:
        """The statistic of `middle`, in words.

        >>> Curve("dqn", [np.zeros((2, 3))] * 5, None, None, None, None).statistic
        'IQM of 5 runs'
        """
        runs = len(self.lines)
        if runs == 1:
            return "1 run"
        return f"{'IQM' if runs >= FEWEST_TRIMMED else 'mean'} of {runs} runs"


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run directories among `paths`, and those inside other folders, sorted by folder; each once.

    Raises:
        ConfigError: a path that is no folder, or holds no run.
    """
    runs: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path} is {'a file' if path.exists() else 'not there'}; expected a run directory")
        inside = [path] if is_run(path) else sorted(file.parent for file in path.rglob("metrics.jsonl"))
        if not inside:
            raise ConfigError(f"{path} is no run directory and holds none: there is no metrics.jsonl")
        runs |= {run.resolve(): run for run in inside if run.resolve() not in runs}
    return list(runs.values())


def curves(runs: Sequence[RunRecord], x: str, y: str) -> list[Curve]:
    """A curve of `y` over `x` for each group of runs that share plan and configuration, except for the seed.

    Raises:
        ConfigError: no run has numbers for a key, or a run has no result with both.
    """
    for key in (x, y):
        known = {name for run in runs for result in run.results for name, value in result.items() if _number(value)}
        if key not in known:
            raise ConfigError(f"no number {key!r} in the results; {did_you_mean(key, known)}")
    for run in runs:
        if run.numbers(x, y).size == 0:
            raise ConfigError(f"{run.path} has no result with {x!r} and {y!r}")
    return [_curve(label, members, x, y) for label, members in grouped(runs).items()]


def grouped(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs by plan and configuration, except for the seed, under labels that tell the groups apart."""
    groups = _groups(runs)
    firsts = [members[0] for members in groups]
    labels = [", ".join([f"{run.plan} {_task(run)}", *words]) for run, words in zip(firsts, _differences(firsts))]
    return dict(zip(labels, groups))


def by_algorithm(runs: Sequence[RunRecord]) -> dict[str, dict[str, list[RunRecord]]]:
    """Group runs by plan, and the settings that differ in one environment; then by environment.

    So a plan with other settings in each environment is one algorithm.
    """
    groups = _groups(runs)
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for members, words in zip(groups, _differences([members[0] for members in groups])):
        found.setdefault(", ".join([members[0].plan, *words]), {})[_task(members[0])] = members
    return found


def _curve(label: str, runs: Sequence[RunRecord], x: str, y: str) -> Curve:
    lines = [run.numbers(x, y) for run in runs]
    lines = [line[:, np.argsort(line[0], kind="stable")] for line in lines]
    start, end = max(line[0, 0] for line in lines), min(line[0, -1] for line in lines)
    if len(lines) == 1 or start > end:
        return Curve(label, lines, None, None, None, None)
    grid = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(grid, *line) for line in lines])
    low, high = interval([values]) or (None, None)
    return Curve(label, lines, grid, interquartile_mean(values, axis=0), low, high)


def _groups(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """The runs that share plan and configuration, except for the seed."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_group(run), []).append(run)
    return list(groups.values())


def _differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Of each run the settings that differ among those of its plan and environment."""
    differences = []
    for run in runs:
        alike = [other for other in runs if (other.plan, _task(other)) == (run.plan, _task(run))]
        keys = sorted({key for other in alike for key in other.config} - SAME_GROUP - {"env", "env_args"})
        differ = [key for key in keys if any(other.config.get(key) != run.config.get(key) for other in alike)]
        differences.append([f"{key}={run.config.get(key)}" for key in differ])
    return differences


def _task(run: RunRecord) -> str:
    """The environment with its arguments, for tasks may differ in these alone."""
    args = ", ".join(f"{key}={value}" for key, value in sorted(run.config.get("env_args", {}).items()))
    return f"{run.config.get('env')}{args and f'[{args}]'}"


def _group(run: RunRecord) -> str:
    """Plan and settings; one that is null is as one that there was not yet."""
    settings = {key: value for key, value in run.config.items() if key not in SAME_GROUP and value is not None}
    return json.dumps([run.plan, settings], sort_keys=True)


def is_run(path: Path) -> bool:
    """Whether this is the directory of a run, and not a folder of runs."""
    return (path / "metrics.jsonl").exists() or (path / "config.json").exists()


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))
