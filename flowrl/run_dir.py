"""The directory of a run: everything needed to see what was run, how it went, and to run it again."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import attrs

from flowrl.config import Configuration
from flowrl.errors import ConfigError
from flowrl.plan_file import PlanFile


@attrs.define
class RunDirectory:
    """A place for one run, chosen first and made by `create`, so that bad input leaves nothing behind.

    config.json   the whole resolved configuration; `flowrl run PLAN --config RUN/config.json` runs it again
    run.json      the command, versions, git hash, time
    plan.py       the plan file's text, plan.txt and plan.svg the plan as a tree and a picture
    metrics.jsonl one result a line, as they come
    summary.json  how it ended;  explain_run.txt  where the time went
    """

    path: Path
    plan_file: PlanFile
    config_text: str = attrs.field(repr=False)
    _metrics: TextIO | None = attrs.field(default=None, init=False, repr=False)

    @classmethod
    def choose(cls, plan_file: PlanFile, config: Configuration, out: str | Path | None = None) -> RunDirectory:
        """`out`, or runs/PLAN-ENV-SEED-YYYYmmdd-HHMMSS with an ordinal if that is there already.

        Raises:
            ConfigError: `out` is a file or a directory that holds something, or the configuration holds what
                JSON cannot.
        """
        text = config_text(config)
        if out is not None:
            path = Path(out)
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                what = "is not empty" if path.is_dir() else "is a file"
                raise ConfigError(f"{path} {what}; a run gets a new directory")
            return cls(path, plan_file, text)
        slug = re.sub(r"[^\w.-]+", "_", config.env).strip("._") or "env"
        base = Path("runs") / f"{plan_file.name}-{slug}-{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
        path, ordinal = base, 1
        while path.exists():
            ordinal += 1
            path = base.with_name(f"{base.name}-{ordinal}")
        return cls(path, plan_file, text)

    def create(self, explained: str, command: Sequence[str]) -> None:
        """Make the directory and write what is known before the run.

        Raises:
            ConfigError: it cannot be made.
        """
        plan_file = self.plan_file
        about = {
            "plan": plan_file.name,
            "path": str(plan_file.path),
            "command": list(command),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "versions": versions(),
            "git": git_state(plan_file.path.parent),
        }
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(self.path / "config.json", self.config_text)
            write(self.path / "run.json", json.dumps(about, indent=2) + "\n")
            write(self.path / "plan.txt", explained + "\n")
            write(self.path / "plan.py", plan_file.text)
            self._metrics = (self.path / "metrics.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the run directory {self.path}: {error.strerror or error}") from error

    def record(self, result: Mapping[str, Any]) -> None:
        """Append one result to metrics.jsonl; it is on disk when this returns, also if the run is killed."""
        assert self._metrics is not None, "create() comes first"
        self._metrics.write(json.dumps(plain(result), allow_nan=False) + "\n")
        self._metrics.flush()

    def finish(self, summary: Mapping[str, Any], explained: str = "") -> None:
        """Write summary.json, and explain_run.txt if there is something to explain; close metrics.jsonl."""
        if self._metrics is not None:
            self._metrics.close()
        if explained:
            write(self.path / "explain_run.txt", explained + "\n")
        write(self.path / "summary.json", json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")


def config_text(config: Configuration) -> str:
    """The configuration as JSON that `load_config_file` reads back.

    Raises:
        ConfigError: a value that JSON cannot hold, so that the run could not be repeated.
    """
    values = config.to_dict()
    for key, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}={value!r} cannot be saved with the run: {error}") from error
    return json.dumps(values, indent=2) + "\n"


def plain(value: Any) -> Any:
    """The value as JSON has it: numpy and torch scalars as numbers, NaN and infinities as null.

    >>> plain({"return": float("nan"), "shape": (2, 3)})
    {'return': None, 'shape': [2, 3]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def versions() -> dict[str, str | None]:
    """Versions of Python, flowrl and what the numbers depend on, read without importing them."""
    from flowrl import __version__

    found: dict[str, str | None] = {"python": platform.python_version(), "flowrl": __version__}
    for name in ("torch", "numpy", "gymnasium"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the working tree that a folder is in and whether it has changes; None outside of git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        # Without optional locks: looking at a tree must not get in the way of somebody working in it.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
