"""The directory of a run: everything needed to see what was run, how it went, and to run it again."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import attrs

from flowrl._version import __version__
from flowrl.cli.sinks import Sink, check_sinks, open_sinks
from flowrl.errors import ConfigError
from flowrl.storage.files import LEFT, plain, write, write_json
from flowrl.trainer.config import Configuration
from flowrl.trainer.plan_file import BUILTIN, PlanFile

log = logging.getLogger("flowrl")


@attrs.define
class RunDirectory:
    """A place for one run, chosen first and made by `create`, so that bad input leaves nothing behind.

    config.json   the whole resolved configuration; `flowrl run PLAN --config RUN/config.json` runs it again
    run.json      the command, versions, git hash, time
    plan.py       the plan file's text, plan.txt and plan.svg the plan as a tree and a picture
    metrics.jsonl one result a line, as they come; the sinks' files hold the same
    checkpoints/  the newest states of the run, from which it can go on
    summary.json  how it ended;  explain_run.txt  where the time went

    While a process writes to it, no other one may.
    """

    path: Path
    plan_file: PlanFile
    config_text: str = attrs.field(repr=False)
    sinks: Sequence[str] = ()
    named: bool = True  #: by the user; otherwise a free ordinal may be added
    _claimed: bool = attrs.field(default=False, init=False, repr=False)
    _made: list[Path] = attrs.field(factory=list, init=False, repr=False)
    _metrics: TextIO | None = attrs.field(default=None, init=False, repr=False)
    _sinks: list[Sink] = attrs.field(factory=list, init=False, repr=False)
    _lock: int | None = attrs.field(default=None, init=False, repr=False)

    @classmethod
    def choose(
        cls, plan_file: PlanFile, config: Configuration, out: str | Path | None = None, sinks: Sequence[str] = ()
    ) -> RunDirectory:
        """`out`, or runs/PLAN-ENV-SEED-YYYYmmdd-HHMMSS with an ordinal if that is there already.

        Raises:
            ConfigError: `out` is a file or a directory that holds something, the configuration holds what
                JSON cannot, or a sink cannot be opened.
        """
        check_sinks(sinks)
        text = config_text(config)
        if out is not None:
            path = Path(out)
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                what = "is not empty" if path.is_dir() else "is a file"
                hint = f", or goes on with --resume {path}" if (path / "run.json").is_file() else ""
                raise ConfigError(f"{path} {what}; a run gets a new directory{hint}")
            return cls(path, plan_file, text, sinks)
        slug = re.sub(r"[^\w.-]+", "_", config.env or Path(config["data"]).name).strip("._") or "env"
        base = Path("runs") / f"{plan_file.name}-{slug}-{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
        return cls(_free(base), plan_file, text, sinks, named=False)

    def claim(self) -> None:
        """Make the directory of a new run and lock it. Of processes that chose one name, each gets its own.

        `close` removes it again if nothing was written.

        Raises:
            ConfigError: it cannot be made, or another run has begun there meanwhile.
        """
        try:
            while not self._claimed:
                self._made = [place for place in (self.path, *self.path.parents) if not place.exists()]
                try:
                    self.path.mkdir(parents=True, exist_ok=self.named)
                    self._claimed = True
                except FileExistsError:
                    if self.named:
                        raise
                    self.path = _free(self.path)
            self.lock()
        except OSError as error:
            raise self._unwritable(error) from error
        if (self.path / "run.json").exists():
            raise ConfigError(f"{self.path} is not empty: another run has begun there meanwhile")

    def create(
        self,
        explained: str,
        command: Sequence[str],
        stop: Mapping[str, Any] | None = None,
        *,
        workers: Mapping[str, Any] | None = None,
        earlier: Mapping[str, Any] | None = None,
        results: int = 0,
    ) -> None:
        """Make the directory and write what is known before the run.

        `stop` is what ends the run, and `workers` what run.json is to say of them. For a run that goes on, `earlier`
        is its run.json, and metrics.jsonl is cut back to the first `results` lines.

        Raises:
            ConfigError: it cannot be made, or another process writes to it.
        """
        plan_file = self.plan_file
        about = {
            "plan": plan_file.name,
            "path": str(plan_file.path),
            "builtin": plan_file.path.parent == BUILTIN.resolve(),
            "command": list(command),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "stop": dict(stop or {}),
            "versions": versions(),
            "git": git_state(plan_file.path.parent),
            **(workers or {}),
        }
        if earlier is not None:
            about["earlier"] = [*earlier.get("earlier", ()), {k: v for k, v in earlier.items() if k != "earlier"}]
        if earlier is None and not self._claimed:
            self.claim()
        try:
            self.lock()
            for left in [self.path / "summary.json", *self.path.glob(LEFT)]:
                left.unlink(missing_ok=True)  # of the end before, or of a process that was killed
            write(self.path / "config.json", self.config_text)
            write(self.path / "plan.txt", explained + "\n")
            write(self.path / "plan.py", plan_file.text)
            kept = self._first_lines(results)
            write(self.path / "metrics.jsonl", "".join(kept))
            self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
            self._sinks = open_sinks(self.sinks, self.path, [json.loads(line) for line in kept])
            write_json(self.path / "run.json", about)  # last: with it, it is a run
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write the run directory {self.path}: {error.strerror or error}")

    def lock(self) -> None:
        """Keep other processes from writing to the directory until `close`, where the system has such locks.

        Raises:
            ConfigError: another process does already.
        """
        try:
            import fcntl
        except ImportError:
            return
        if self._lock is None:
            self._lock = os.open(self.path, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise ConfigError(f"{self.path} is in use: another process runs there; end that one first") from None
            except OSError:
                pass  # a file system without locks

    def close(self) -> None:
        """Let others write to the directory. A second call does nothing."""
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        with suppress(OSError):  # one of them holds something, as it should
            for place in self._made:
                place.rmdir()

    def _first_lines(self, count: int) -> list[str]:
        if not count:
            return []
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:count]
        except FileNotFoundError:
            lines = []
        if len(lines) < count:
            log.warning("%s has %d results, the checkpoint has seen %d", self.path / "metrics.jsonl", len(lines), count)
        return lines

    def record(self, result: Mapping[str, Any]) -> None:
        """Append one result to metrics.jsonl and the sinks; on disk when this returns, also if the run is killed."""
        assert self._metrics is not None, "create() comes first"
        values = plain(result)
        self._metrics.write(json.dumps(values, allow_nan=False) + "\n")
        self._metrics.flush()
        for sink in self._sinks:
            sink.record(values)

    def flush(self) -> None:
        """Have what was recorded on the disk, also if the machine dies."""
        assert self._metrics is not None, "create() comes first"
        os.fsync(self._metrics.fileno())

    def finish(self, summary: Mapping[str, Any], explained: str = "") -> None:
        """Write summary.json, and explain_run.txt if there is something to explain; close what holds the metrics."""
        for file in (self._metrics, *self._sinks):
            if file is not None:
                file.close()
        if explained:
            write(self.path / "explain_run.txt", explained + "\n")
        write_json(self.path / "summary.json", summary)


def _free(path: Path) -> Path:
    """The path, with an ordinal from 2 on if it is there already."""
    free, ordinal = path, 1
    while free.exists():
        ordinal += 1
        free = path.with_name(f"{path.name}-{ordinal}")
    return free


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


def versions() -> dict[str, str | None]:
    """Versions of Python, flowrl and what the numbers depend on, read without importing them."""
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
