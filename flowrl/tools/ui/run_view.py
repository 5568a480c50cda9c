"""What the page shows of a run: read from its directory alone, and of a file that grows only what is new."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import attrs
import numpy as np

from flowrl.engine.workers.accounts import Account
from flowrl.errors import ConfigError
from flowrl.inspect.profile import LEAST_GAIN, MOST_CHANGES, Profile
from flowrl.runs.directory import PROFILE
from flowrl.storage.files import opened, parse_json, read_file, read_json
from flowrl.tools.curves import Numbers, find_runs

#: Most points of a curve, bars of a histogram, keys of results, films, and bytes of the log.
POINTS, BARS, MOST_KEYS, MOST_FILMS, LOG_BYTES = 600, 20, 1_000, 60, 4_000
#: Numbers of a run's newest result in the list of runs.
NUMBERS = ("episode_return", "best_eval_return", "steps_per_second", "seconds")
#: How the keys of results begin whose values are counted, see `flowrl.learners.training.LAG`: that would import torch.
LAG = "policy_lag"
#: Counts of versions are smaller; larger numbers have no bars of width 1.
LARGEST_LAG = 2**53
#: Bytes of results that are read at a time.
CHUNK = 2**24
#: Levels of folders in which films are looked for, and folders that hold none.
FILM_LEVELS, WITHOUT_FILMS = 3, ("checkpoints", "failed_item", "wandb")
#: Seconds between two searches for new runs in folders.
SEARCH_SECONDS = 5.0


@attrs.define
class Column:
    """The numbers of one key of the results: in which results they are, and their values."""

    index: array[int] = attrs.field(factory=lambda: array("q"))
    value: array[float] = attrs.field(factory=lambda: array("d"))

    def add(self, index: int, value: float) -> None:
        self.index.append(index)
        self.value.append(value)


@attrs.define
class Results:
    """The results in a metrics.jsonl, by column."""

    path: Path
    columns: dict[str, Column] = attrs.field(factory=dict)
    count: int = 0
    problem: str = ""
    _file: tuple[int, int] = (0, 0)  #: device and inode of the file
    _offset: int = 0

    def read_on(self) -> None:
        """Read the lines that are new: all, if the file is another one, as of a resumed run."""
        try:
            if not self.path.resolve().is_relative_to(self.path.parent.resolve()):
                raise OSError(errno.ELOOP, "it is a link to another place")
            with opened(self.path) as file:
                now = os.fstat(file.fileno())
                if (now.st_dev, now.st_ino) != self._file or now.st_size < self._offset:
                    self.columns, self.count, self.problem, self._offset = {}, 0, "", 0
                    self._file = now.st_dev, now.st_ino
                file.seek(self._offset)
                while end := (chunk := file.read(CHUNK)).rfind(b"\n") + 1:
                    for line in chunk[:end].splitlines():
                        self._take(line)
                    self._offset += end
                    file.seek(self._offset)
        except FileNotFoundError:
            pass  # yet to come
        except OSError as error:
            self.problem = f"{self.path.name}: {error.strerror}"

    def _take(self, line: bytes) -> None:
        self.count += 1
        try:
            items = parse_json(line).items()
        except (ValueError, AttributeError):
            self.problem = f"{self.path.name}, line {self.count} is no result"
            return
        for key, value in items:
            number = type(value) in (int, float) and abs(value) < 1e300  # not NaN either
            if number and (key in self.columns or len(self.columns) < MOST_KEYS):
                self.columns.setdefault(key, Column()).add(self.count, float(value))

    def curve(self, x: str, y: str) -> Numbers:
        """The points `[2, n]` of the results that have both, at most `POINTS`; of very many the extremes."""
        if x not in self.columns or y not in self.columns:
            return np.empty((2, 0))
        left, right = self.columns[x], self.columns[y]
        _, of_x, of_y = np.intersect1d(left.index, right.index, assume_unique=True, return_indices=True)
        return thinned(np.stack([np.array(left.value)[of_x], np.array(right.value)[of_y]]))


def thinned(points: Numbers, most: int = POINTS) -> Numbers:
    """At most so many of the points `[2, n]`: from each of equal stretches the lowest and the highest, in their order.

    >>> thinned(np.array([range(8), [0, 1, 0, 9, 0, 0, -5, 0]], float), 4)
    array([[ 0.,  3.,  4.,  6.],
           [ 0.,  9.,  0., -5.]])
    """
    count = points.shape[1]
    if count <= most:
        return points
    bounds = np.linspace(0, count, most // 2 + 1).astype(int)
    chosen = [
        start + place
        for start, end in pairwise(bounds)
        for place in sorted({int(points[1, start:end].argmin()), int(points[1, start:end].argmax())})
    ]
    return points[:, chosen]


def histogram(values: Sequence[float]) -> dict[str, Any]:
    """Bars of about equal width over the values: their edges, and how many values are in each.

    >>> histogram([0, 0, 1, 3])
    {'edges': [0, 1, 2, 3, 4], 'counts': [2, 1, 0, 1]}
    """
    data = np.asarray(values, float)
    low, high = math.floor(data.min()), math.floor(data.max()) + 1
    width = max(1, math.ceil((high - low) / BARS)) if np.all(data == np.round(data)) else (high - low) / BARS
    counts, edges = np.histogram(data, low + width * np.arange(math.ceil((high - low) / width) + 1))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


@attrs.define
class RunView:
    """One run directory. `name` is how the page calls it."""

    path: Path
    name: str
    results: Results = attrs.field(default=attrs.Factory(lambda self: Results(self.path / "metrics.jsonl"), True))
    _curves: dict[tuple[str, str], tuple[int, Any]] = attrs.field(factory=dict)

    def line(self) -> dict[str, Any]:
        """What the list of runs says of it."""
        self.results.read_on()
        about, summary = self._json("run.json"), self._json("summary.json")
        config = self._json("config.json")
        newest = {key: column.value[-1] for key, column in self.results.columns.items()}
        return {
            "name": self.name,
            "plan": str(about.get("plan", "")),
            "env": str(config.get("env") or config.get("data") or ""),
            "seed": str(config.get("seed", "")),
            "started": str(about.get("started", "")),
            "steps": newest.get("env_steps", newest.get("updates")),
            **{key: newest.get(key) for key in NUMBERS},
            "results": self.results.count,
            **self._state(summary),
        }

    def list_line(self) -> dict[str, Any]:
        """`line`, also where a file makes its reader stumble: it takes no other run from the page."""
        try:
            line = self.line()
            json.dumps(line, allow_nan=False)
            return line
        except Exception as error:
            why = f"its files cannot be read: {type(error).__name__}"
            empty = dict.fromkeys(("plan", "env", "seed", "started"), "") | dict.fromkeys(NUMBERS)
            return {"name": self.name, **empty, "steps": None, "results": 0, "state": "ended", "why": why, "heard": 0.0}

    def details(self) -> dict[str, Any]:
        """What the page says of the run that is chosen."""
        line = self.line()
        profile, words = self._profile()
        problems = [words for words in (self.results.problem, words) if words]
        return {
            **line,
            "problems": problems,
            "plan_version": self._changed("plan.svg"),
            "profile": None if profile is None else _shown(profile),
            "newest": {key: column.value[-1] for key, column in sorted(self.results.columns.items())},
            "lags": {
                key: histogram(values)
                for key, column in sorted(self.results.columns.items())
                if key.startswith(LAG) and (values := [each for each in column.value if abs(each) < LARGEST_LAG])
            },
            "films": list(self.films()),
            "log": self._log(),
        }

    def curve(self, x: str, y: str) -> list[list[float]]:
        """The x and the y of a learning curve."""
        self.results.read_on()
        count, curve = self._curves.get((x, y), (-1, None))
        if count != self.results.count:
            if len(self._curves) > 16:
                self._curves.clear()
            curve = self.results.curve(x, y).tolist()
            self._curves[x, y] = self.results.count, curve
        return list(curve)

    def films(self) -> dict[str, Path]:
        """The newest films in it, by their place in it, in the order of their names."""
        newest = sorted(self._films(), reverse=True)[:MOST_FILMS]
        return {str(file.relative_to(self.path)): file for file in sorted(file for _, file in newest)}

    def _films(self) -> Iterator[tuple[float, Path]]:
        """The films in it, with when each was written; no link to what is elsewhere."""
        root = self.path.resolve()
        for folder, folders, files in os.walk(self.path):
            level = len(Path(folder).relative_to(self.path).parts)
            folders[:] = [each for each in folders if each not in WITHOUT_FILMS and level < FILM_LEVELS]
            for file in (Path(folder, name) for name in files if name.endswith(".mp4")):
                with suppress(OSError):  # it was deleted
                    if file.is_file() and file.resolve().is_relative_to(root):
                        yield file.stat().st_mtime, file

    def picture(self) -> bytes:
        """The drawn plan. Raises: OSError."""
        return read_file(self._own("plan.svg"))

    def _own(self, name: str) -> Path:
        """A file of the run. Raises: FileNotFoundError: it is a link to what is elsewhere."""
        file = self.path / name
        if not file.resolve().is_relative_to(self.path.resolve()):
            raise FileNotFoundError(f"{name} is a link to another place")
        return file

    def _state(self, summary: dict[str, Any]) -> dict[str, Any]:
        """How it is: its `state` in a word, `why` it failed, and when something was last `heard` of it."""
        heard = max(self._changed(name) for name in ("run.json", "metrics.jsonl", PROFILE, "summary.json"))
        if summary:
            error = str(summary.get("error", "")).partition("\n")[0]
            return {"state": str(summary.get("outcome", "ended")), "why": error, "heard": heard}
        profile, _ = self._profile()
        gone = profile is not None and is_gone(profile.ledger.driver)
        return {"state": "killed" if gone else "running", "why": "", "heard": heard}

    def _profile(self) -> tuple[Profile | None, str]:
        """The profile, or why there is none."""
        try:
            return Profile.of(read_json(self._own(PROFILE))), ""
        except FileNotFoundError:
            return None, ""
        except Exception as error:  # a stranger's numbers may make arithmetic raise anything
            return None, f"{PROFILE}: {error}"

    def _json(self, name: str) -> dict[str, Any]:
        """The values in a file, {} if there are none."""
        try:
            values = read_json(self._own(name))
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def _changed(self, name: str) -> float:
        """When a file was last written, in seconds since 1970; 0.0 if it is not there."""
        try:
            return (self.path / name).stat().st_mtime
        except OSError:
            return 0.0

    def _log(self) -> list[str]:
        """The last lines of the log."""
        try:
            with opened(self._own("log.txt")) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - LOG_BYTES))
                lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return []
        return lines[1:] if size > LOG_BYTES else lines


def _shown(profile: Profile) -> dict[str, Any]:
    """What the page shows of a profile."""
    changes = [(str(change), gain) for change, gain in profile.changes()[:MOST_CHANGES] if gain >= LEAST_GAIN]
    activity, stores = profile.activity(), profile.ledger.stores
    return {
        "sentence": profile.sentence(),
        "changes": changes,
        "stalls": profile.stalls,
        "seconds": (profile.recent or profile.ledger).driver.wall,
        "operators": {
            path: {
                **each.shares,
                **{"rate": each.rate, "state": each.state, "fill": each.fill, "store": stores.get(path)},
            }
            for path, each in activity.items()
        },
    }


def is_gone(driver: Account) -> bool:
    """Whether the process of a run has ended, if it was one of this machine; otherwise nobody knows."""
    host, process = (*driver.where, None, None)[:2]
    if os.name != "posix" or host != socket.gethostname() or type(process) is not int or process < 1:
        return False
    try:
        os.kill(process, 0)  # asks only
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # somebody else's, or no number of a process
    return False


@attrs.define
class RunList:
    """The runs in some run directories and folders of them, also those that are new.

    Raises: ConfigError: a path is no folder, or holds no run.
    """

    paths: Sequence[Path]
    views: dict[str, RunView] = attrs.field(factory=dict, init=False)
    _searched: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._search()

    def current(self) -> dict[str, RunView]:
        """The views by name."""
        if monotonic() - self._searched >= SEARCH_SECONDS:
            try:
                self._search()
            except ConfigError:  # they were deleted
                self.views = {}
        return self.views

    def _search(self) -> None:
        found = sorted(map(str, find_runs(self.paths)), key=_by_number)
        self.views = {name: self.views.get(name) or RunView(Path(name), name) for name in found}
        self._searched = monotonic()


def _by_number(name: str) -> list[Any]:
    """A key by which seed-10 comes after seed-9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
