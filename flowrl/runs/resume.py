"""Resuming a run that ended or was killed: its plan, its checkpoint, and the settings that may change."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import attrs

from flowrl.errors import ConfigError
from flowrl.runs.config import Configuration, load_config_file
from flowrl.runs.directory import versions
from flowrl.runs.progress import STOPPED, Budget
from flowrl.runs.run_info import changes, may_change, read_about
from flowrl.storage.checkpoint import Checkpoints
from flowrl.storage.files import plain, read_json

log = logging.getLogger("flowrl")


def step_of(checkpoint: Path) -> int:
    """The env steps in the name of a run's checkpoint; 0 if the name has none.

    >>> step_of(Path("checkpoints/step-000012345-2")), step_of(Path("checkpoints/mine"))
    (12345, 0)
    """
    match = re.match(r"step-(\d+)", checkpoint.name)
    return int(match[1]) if match else 0


def _outcome(run: Path) -> str:
    """How a run ended, by its summary; "" if that cannot be read."""
    try:
        return str(read_json(run / "summary.json")["outcome"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


@attrs.frozen
class EarlierRun:
    """An existing run directory, and the checkpoint in it to resume from; None: the newest."""

    path: Path
    checkpoint: Path | None
    about: dict[str, Any]
    values: dict[str, Any]  #: of its configuration

    @classmethod
    def find(cls, name: str | Path) -> EarlierRun:
        """Find the run of a directory, or of a checkpoint in it.

        Raises:
            ConfigError: the path is no run, or its run.json or config.json cannot be read.
        """
        path = Path(name)
        checkpoint = path if path.parent.name == "checkpoints" else None
        run = path if checkpoint is None else path.parent.parent
        if not (run / "run.json").is_file():
            raise ConfigError(f"{name} is no run directory, since it has no run.json; a run prints its own at its end")
        if checkpoint is not None and not checkpoint.is_dir():
            raise ConfigError(f"there is no checkpoint {checkpoint}")
        earlier = cls(run, checkpoint, read_about(run), load_config_file(run / "config.json"))
        # A run killed or interrupted before its first checkpoint may begin anew, which loses only lines of metrics.
        results = [name for name in ("policy.pt", "policy_last.pt") if (run / name).exists()]
        if (run / "summary.json").exists() and _outcome(run) not in STOPPED:
            results.append("summary.json")
        if results and not earlier.has_checkpoint:
            raise ConfigError(
                f"{run} has no checkpoint to go on from, and beginning anew would overwrite its {', '.join(results)}; "
                f"begin a new run with --config {run / 'config.json'}"
            )
        return earlier

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.checkpoint is not None or Checkpoints(self.path / "checkpoints").latest() is not None

    def inserts(self, new: tuple[str, ...]) -> tuple[str, ...]:
        """The operators that the run inserts into its plan, as `--insert` has them.

        Raises:
            ConfigError: others than before.
        """
        before = tuple(map(str, self.about.get("inserts", ())))
        if new and new != before:
            said = " ".join(f"--insert {text}" for text in before) or "no --insert"
            raise ConfigError(f"--insert {' '.join(new)}: a resumed run keeps its plan, which has {said}")
        return before

    def budget(self, new: Budget) -> Budget:
        """The new budget, completed by the earlier one.

        Raises:
            ConfigError: a new bound, but the earlier budget in steps is used up.
        """
        stop = self.about.get("stop", {})
        latest = self.checkpoint or Checkpoints(self.path / "checkpoints").latest()
        steps = stop.get("steps")
        if new != Budget() and new.steps is None and steps is not None and latest and step_of(latest) >= steps:
            raise ConfigError(
                f"the run's --stop-steps {steps} is used up at {step_of(latest)} steps; give a larger --stop-steps too"
            )
        return Budget(**{name: stop.get(name) if now is None else now for name, now in attrs.asdict(new).items()})

    def check(self, config: Configuration, before: Configuration) -> dict[str, Any]:
        """Reject settings that would make it another run, and warn of those that change the last bits.

        Returns: the settings from which on it is a fork, see `flowrl.runs.run_info.Changes`.

        Raises:
            ConfigError: names these settings, and how to begin a new run with them.
        """
        old, new = before.to_dict(), config.to_dict()
        found = changes(config, plain(old))
        if found.refused:
            listed = ", ".join(f"{key}={new[key]!r} (it was {old[key]!r})" for key in found.refused)
            raise ConfigError(
                f"{listed}: a resumed run keeps its settings, except for {may_change(type(config))}, and the --stop "
                f"options; begin a new run with --config {self.path / 'config.json'}, from its weights with --from "
                f"{self.path}"
            )
        if found.rounding:
            log.warning("%s changed: the run goes on, but not bit for bit", " and ".join(found.rounding))
        then, now = self.about.get("versions", {}), versions()
        for name in sorted(key for key in now if key in then and then[key] != now[key]):
            log.warning("%s was %s and is %s now: the last bits may differ", name, then[name], now[name])
        return found.forked
