"""What a run directory says of its run, and the settings that a resumed run may change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.errors import ConfigError
from flowrl.settings import resumable
from flowrl.storage.files import opened, read_json
from flowrl.trainer.config import Configuration, grouping


def may_differ(config: Configuration, then: Mapping[str, Any]) -> set[str]:
    """The settings that a run resumed with `config` may change from the values `then` of the earlier run.

    Each setting declares this itself, see `flowrl.settings.setting`.

    >>> here = Configuration(num_workers=2, envs_per_worker=8)
    >>> "num_workers" in may_differ(here, {"num_workers": 0, "envs_per_worker": 16, "env_groups": 2})
    True
    >>> "num_workers" in may_differ(here, {"num_workers": 0, "envs_per_worker": 8})
    False
    """
    alike = config.grouping == grouping({"envs_per_worker": config.envs_per_worker, **then})
    free = resumable(type(config), "free", "rounding")
    return free | (resumable(type(config), "grouping") if alike else set())


def read_about(path: Path) -> dict[str, Any]:
    """Read the run.json of a run directory; it holds at least `plan` and the plan's `path`.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    file = path / "run.json"
    try:
        about: dict[str, Any] = read_json(file)
        return {**about, "plan": str(about["plan"]), "path": str(about["path"])}
    except OSError as error:
        raise ConfigError(f"{path} does not say which plan it ran: {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is malformed: {error}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file} is malformed: {error!r}") from error


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the results in a run's metrics.jsonl, without a last line that is still being written.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    file = path / "metrics.jsonl"
    try:
        with opened(file) as results:
            text = results.read().decode()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is malformed: {error}") from error
    return [_result(line, f"{file}, line {number}") for number, line in enumerate(text.split("\n")[:-1], 1)]


def _result(line: str, where: str) -> dict[str, Any]:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is malformed: {error}") from error
    if not isinstance(result, dict):
        raise ConfigError(f"{where} is malformed: it is a {type(result).__name__}, expected a result")
    return result
