"""What a run directory says of its run, and in which settings a run that goes on may differ from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.errors import ConfigError
from flowrl.trainer.config import grouping

#: Settings that change no parameter of the policy: a resumed run may have other ones.
FREE = {"checkpoint_every", "eval_every", "eval_episodes", "eval_max_steps", "address"}
FREE |= {"worker_cpus", "worker_gpus", "worker_memory", "worker_resources", "max_worker_restarts", "on_worker_death"}
#: Settings that change none either while they form the same groups of environments (D2).
GROUPING = {"num_workers", "envs_per_worker", "env_groups"}
#: Settings that change the last bits only: allowed, with a warning.
ROUNDING = {"act_backend", "compile", "device", "torch_threads"}


def may_differ(then: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """The settings in which a resumed run may differ from what it was, with these values.

    >>> here = {"num_workers": 0, "envs_per_worker": 16, "env_groups": 2}
    >>> sorted(may_differ(here, {"num_workers": 2, "envs_per_worker": 8}) - FREE - ROUNDING)
    ['env_groups', 'envs_per_worker', 'num_workers']
    """
    return FREE | ROUNDING | (GROUPING if grouping(then) == grouping(now) else set())


def read_about(path: Path) -> dict[str, Any]:
    """What the run.json of a run directory says; at least its `plan` and the `path` of that.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    file = path / "run.json"
    try:
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {**about, "plan": str(about["plan"]), "path": str(about["path"])}
    except OSError as error:
        raise ConfigError(f"{path} does not say which plan it ran: {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is malformed: {error!r}") from error
