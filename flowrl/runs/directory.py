"""The directory of a run: everything needed to see what ran, how it went, and to run it again."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, Self, TextIO

import attrs

from flowrl._version import __version__
from flowrl.errors import ConfigError
from flowrl.runs.config import Configuration
from flowrl.runs.run_info import BUILTIN, read_results
from flowrl.runs.run_log import RunLog
from flowrl.runs.sinks import Sink, check_sinks, open_sinks, sinks_in
from flowrl.storage.files import LEFT, json_text, plain, read_file, write, write_json

log = logging.getLogger("flowrl")

#: The file with the profile of a run.
PROFILE = "profile.json"
#: The file with the journal of a run.
JOURNAL = "journal"


class PlanSource(Protocol):
    """Where the plan of a run is written; a `PlanFile` is one."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def text(self) -> str: ...


@attrs.frozen
class ClassSource:
    """The file in which a Trainer class is written; a class of a notebook or a prompt has none."""

    name: str
    path: Path
    text: str = attrs.field(repr=False)

    @classmethod
    def of(cls, trainer: type) -> ClassSource:
        """Find it."""
        module = sys.modules.get(trainer.__module__, ModuleType(""))
        path = Path(vars(module).get("__file__") or "").resolve()
        if path.suffix != ".py" or not path.is_file():
            return cls(trainer.__name__, Path(trainer.__name__), f"# {trainer.__name__}, a class that is in no file\n")
        return cls(path.stem if builtin(path) else trainer.__name__, path, path.read_text(encoding="utf-8"))


def builtin(plan: Path) -> bool:
    """Whether a plan's file is one of flowrl's own."""
    return plan.parent == BUILTIN.resolve()


@attrs.define
class RunDirectory:
    """The directory of one run, chosen first and created by `create`, so that bad input leaves nothing behind.

    config.json   the whole resolved configuration; `flowrl run PLAN --config RUN/config.json` runs it again
    run.json      the command, versions, git hash, time
    plan.py       the plan file's text, plan.txt and plan.svg the plan as a tree and a picture
    metrics.jsonl one result per line, as they come; the sinks' files hold the same
    log.txt       what the log of flowrl and Python's warnings said; that of a resumed run goes on
    checkpoints/  the newest states of the run, to resume from
    summary.json  how the run ended;  explain_run.txt  how long each operator was busy, starved and blocked
    profile.json  where the time went, for `flowrl profile RUN` and `flowrl ui`
    journal       with the setting `journal`: what the run decided, for `flowrl rerun RUN`

    Only one process may write to it at a time. What is deleted while the run goes on is written again, but for earlier
    checkpoints.
    """

    path: Path
    plan_file: PlanSource
    config_text: str = attrs.field(repr=False)
    sinks: Sequence[str] = ()
    log: RunLog | None = None  #: writes log.txt
    named: bool = True  #: whether the user chose the path; otherwise it may get an ordinal
    _claimed: bool = attrs.field(default=False, init=False, repr=False)
    _made: list[Path] = attrs.field(factory=list, init=False, repr=False)
    _files: dict[str, str] = attrs.field(factory=dict, init=False, repr=False)  # what `create` writes, by name
    _metrics: TextIO | None = attrs.field(default=None, init=False, repr=False)
    _sinks: list[Sink] = attrs.field(factory=list, init=False, repr=False)
    _lock: int | None = attrs.field(default=None, init=False, repr=False)

    @classmethod
    def choose(
        cls, plan_file: PlanSource, config: Configuration, out: str | Path | None = None, sinks: Sequence[str] = ()
    ) -> RunDirectory:
        """Choose `out`, or runs/PLAN-ENV-SEED-YYYYmmdd-HHMMSS with an ordinal if that exists.

        Raises:
            ConfigError: `out` is a file or a non-empty directory, the configuration does not fit into JSON, or a
                sink cannot be opened.
        """
        check_sinks(sinks)
        text = config_text(config)
        if out is not None:
            path = Path(out)
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                what = "is not empty" if path.is_dir() else "is a file"
                hint = (
                    f", or goes on with flowrl run --resume {path}, flowrl.resume({str(path)!r})"
                    if (path / "run.json").is_file()
                    else ""
                )
                raise ConfigError(f"{path} {what}; a run needs a new directory{hint}")
            return cls(path, plan_file, text, sinks)
        slug = re.sub(r"[^\w.-]+", "_", config.env or Path(config["data"]).name).strip("._")[:80] or "env"
        base = Path("runs") / f"{plan_file.name}-{slug}-{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
        return cls(_free(base), plan_file, text, sinks, named=False)

    @classmethod
    def of_earlier(cls, path: Path, plan_file: PlanSource, config: Configuration, sinks: Sequence[str] = ()) -> Self:
        """The directory of a run that goes on, with the sinks that it has, and others."""
        check_sinks(sinks)
        return cls(path, plan_file, config_text(config), [*sinks_in(path), *sinks])

    def claim(self) -> None:
        """Create the directory of a new run and lock it; processes that chose the same name get separate ones.

        `close` removes it again if nothing was written.

        Raises:
            ConfigError: it cannot be created, or another run has begun there meanwhile.
        """
        with self.writing():
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
        if (self.path / "run.json").exists():
            raise ConfigError(f"{self.path} is not empty: another run has begun there meanwhile")

    def create(
        self,
        explained: str,
        command: Sequence[str],
        stop: Mapping[str, Any] | None = None,
        *,
        more: Mapping[str, Any] | None = None,
        earlier: Mapping[str, Any] | None = None,
        results: int = 0,
    ) -> None:
        """Create the directory and write everything that is known before the run.

        `stop` holds the bounds of the run, and `more` further entries of run.json. For a resumed run, `earlier` is
        its run.json, and metrics.jsonl is cut back to the first `results` lines.

        Raises:
            ConfigError: the directory cannot be created, or another process writes to it.
        """
        plan_file = self.plan_file
        about = {
            "plan": plan_file.name,
            "path": str(plan_file.path),
            "builtin": builtin(plan_file.path),
            "command": list(command),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "stop": dict(stop or {}),
            "versions": versions(),
            "processor": processor(),
            "git": git_state(plan_file.path.parent),
            **(more or {}),
        }
        if earlier is not None:
            about["earlier"] = [*earlier.get("earlier", ()), {k: v for k, v in earlier.items() if k != "earlier"}]
        if earlier is None and not self._claimed:
            self.claim()
        self._files = {
            "config.json": self.config_text,
            "plan.txt": explained + "\n",
            "plan.py": plan_file.text,
            "run.json": json_text(about) + "\n",
        }
        with self.writing():
            for stale in [self.path / "summary.json", *self.path.glob(LEFT)]:
                stale.unlink(missing_ok=True)  # of the earlier end, or of a killed process
            self._write(self._first(results))

    def reopen(self, stop: Mapping[str, Any], results: int) -> None:
        """Go on writing after `finish`, with new bounds of the run, of which `results` results are there.

        Raises:
            ConfigError: another process writes to it, or another run has gone on there meanwhile.
        """
        about = json.loads(self._files["run.json"])
        if other := about["stop"] != stop:
            about |= {"stop": dict(stop), "stops": [*about.get("stops", ()), about["stop"]]}
            self._files["run.json"] = json_text(about) + "\n"
        if self._metrics is not None and not self._metrics.closed:
            if self.log is not None:
                self.log.open(self.path / "log.txt")
            with self.writing():
                if other and self.path.exists():
                    write(self.path / "run.json", self._files["run.json"])
            return
        with self.writing():
            self.lock()
            kept = read_results(self.path) if (self.path / "metrics.jsonl").exists() else []
            if len(kept) != results:
                self.close()
                raise ConfigError(
                    f"{self.path} has {len(kept)} results, expected {results}: another run has gone on there meanwhile"
                )
            (self.path / "summary.json").unlink(missing_ok=True)
            self._write(kept)

    def _write(self, results: list[dict[str, Any]]) -> None:
        """Write the files, with these results."""
        self.lock()
        write(self.path / "metrics.jsonl", "".join(map(_line, results)))
        self._metrics = (self.path / "metrics.jsonl").open("a+", encoding="utf-8")
        if self.log is not None:
            self.log.open(self.path / "log.txt")
        *files, mark = self._files.items()  # the last is run.json: it marks the directory as a run
        for name, text in files:
            write(self.path / name, text)
        self._sinks = open_sinks(self.sinks, self.path, results)  # which may read the configuration
        write(self.path / mark[0], mark[1])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises: ConfigError for what the disk refuses in the block."""
        try:
            yield
        except OSError as error:
            raise ConfigError(f"cannot write the run directory {self.path}: {error.strerror or error}") from error

    def lock(self) -> None:
        """Keep other processes from writing to the directory until `close`, if the system has such locks.

        Raises:
            ConfigError: another process holds the lock.
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
        for file in (self._metrics, *self._sinks):
            if file is not None:
                with suppress(OSError):  # of a result that could not be written, which `record` has raised
                    file.close()
        if self._lock is not None:
            import fcntl

            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # forked processes of environments have it too, and live on
            os.close(self._lock)
            self._lock = None
        with suppress(OSError):  # non-empty, as usual
            for place in self._made:
                place.rmdir()

    def _first(self, count: int) -> list[dict[str, Any]]:
        """The first results of the earlier run."""
        file = self.path / "metrics.jsonl"
        results = read_results(self.path)[:count] if count and file.exists() else []
        if len(results) < count:
            log.warning("%s has %d results, the checkpoint %d", file, len(results), count)
        return results

    def record(self, result: Mapping[str, Any]) -> None:
        """Append one result to metrics.jsonl and the sinks; it survives if the process is killed afterwards."""
        assert self._metrics is not None, "create() comes first"
        values = plain(result)
        with self.writing():
            self._metrics.write(_line(values))
            self._metrics.flush()
            for sink in self._sinks:
                sink.record(values)

    def flush(self) -> None:
        """Force the recorded results to disk, so that they survive a crash of the machine."""
        assert self._metrics is not None, "create() comes first"
        with self.writing():
            self._write_what_was_deleted()
            os.fsync(self._metrics.fileno())

    def _write_what_was_deleted(self) -> None:
        assert self._metrics is not None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._metrics.fileno()), (self.path / "metrics.jsonl").stat()):
                return
        about = self.path / "run.json"
        if about.exists() and about.read_text(encoding="utf-8") != self._files["run.json"]:
            raise ConfigError(f"{self.path} was deleted while the run goes on, and another run has begun there")
        log.warning("%s was deleted while the run goes on: it is written again, but for earlier checkpoints", self.path)
        self._metrics.seek(0)  # the file lasts while it is open
        results = [json.loads(line) for line in self._metrics]
        self.close()
        self.path.mkdir(parents=True, exist_ok=True)
        self._write(results)

    def finish(self, summary: Mapping[str, Any], explained: str = "", profile: Mapping[str, Any] | None = None) -> None:
        """Write summary.json, what is given of explain_run.txt and profile.json; close the files of the metrics."""
        with self.writing():
            self._write_what_was_deleted()
            if explained:
                write(self.path / "explain_run.txt", explained + "\n")
            if profile is not None:
                write_json(self.path / PROFILE, profile)
            write_json(self.path / "summary.json", summary)
        self.close()


def _line(result: Mapping[str, Any]) -> str:
    """A plain result as its line of metrics.jsonl."""
    return json.dumps(result, allow_nan=False) + "\n"


def _free(path: Path) -> Path:
    """The path, with an ordinal from 2 on if it exists."""
    free, ordinal = path, 1
    while free.exists():
        ordinal += 1
        free = path.with_name(f"{path.name}-{ordinal}")
    return free


def config_text(config: Configuration) -> str:
    """The configuration as JSON for `load_config_file`.

    Raises:
        ConfigError: a value that does not fit into JSON, so that the run could not be repeated.
    """
    values = config.to_dict()
    for key, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}={value!r} cannot be saved with the run: {error}") from error
    return json.dumps(values, indent=2) + "\n"


def versions() -> dict[str, str | None]:
    """Versions of Python, flowrl and the packages that affect the numbers, read without importing them."""
    values: dict[str, str | None] = {"python": platform.python_version(), "flowrl": __version__}
    for name in ("torch", "numpy", "gymnasium"):
        try:
            values[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            values[name] = None
    return values


def processor() -> str:
    """The kind of this machine's processor, on which the last bits of numbers depend."""
    try:
        found = re.search(r"^model name\s*: (.*)$", read_file(Path("/proc/cpuinfo")).decode(), re.MULTILINE)
    except OSError:  # there is none but on Linux
        found = None
    return f"{platform.machine()} {found[1] if found else platform.processor()}".strip()


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of a folder's working tree and whether it has changes; None outside of git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        # Without optional locks: reading a tree must not disturb its users.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
