"""From the directory of a run back to the policy that it saved."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.config import Configuration, build_config, load_config_file
from flowrl.errors import CheckpointError, ConfigError
from flowrl.plan_file import BUILTIN, PlanFile, load_plan_file

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet


def load_workers(
    run: Path, *, last: bool = False, env: str | None = None, env_args: Mapping[str, Any] | None = None
) -> tuple[WorkerSet, Configuration]:
    """Workers whose policy is the best one of a run, or with `last` that of its end, and the configuration.

    The weights are read without pickle. The plan is code and is imported: the file that was run if it is as it
    was, else the directory's copy. The caller closes the workers.

    Args:
        run: A directory that `flowrl run` wrote.
        last: policy_last.pt instead of policy.pt.
        env: Another environment than the run's, which does not get the arguments of that one.
        env_args: Arguments of the environment, besides those it has.

    Raises:
        ConfigError: not a run directory, nothing saved in it, a plan or an environment that is not here.
        CheckpointError: a damaged file, or weights that do not fit the environment.
    """
    import torch

    if not (run / "config.json").is_file():
        what = "has no config.json" if run.is_dir() else "is no directory"
        raise ConfigError(f"{run} {what}; give the directory that `flowrl run` printed at its end")
    weights = run / ("policy_last.pt" if last else "policy.pt")
    if not weights.is_file():
        there = ", ".join(sorted(path.name for path in run.glob("policy*.pt"))) or "none"
        raise ConfigError(f"{run} has no {weights.name}; saved policies: {there}")
    plan_file = _plan_of(run)
    saved = load_config_file(run / "config.json")
    changed: dict[str, Any] = {"env_args": {**saved.get("env_args", {}), **(env_args or {})}}
    if env is not None:
        changed = {"env": env, "env_args": dict(env_args or {})}
    config = build_config(plan_file.Config, saved, changed)
    workers, _ = plan_file.build(config)
    try:
        workers.policy.load_weights(torch.load(weights, weights_only=True, map_location="cpu"))
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
        workers.close()
        raise CheckpointError(f"{weights} does not fit the policy for {config.env}: {error}") from error
    return workers, config


def _plan_of(run: Path) -> PlanFile:
    """The plan that was run: from where it was, from the built-in ones, or from its copy in the directory."""
    try:
        about = json.loads((run / "run.json").read_text(encoding="utf-8"))
        text = (run / "plan.py").read_text(encoding="utf-8")
        places = [Path(about["path"]), BUILTIN / f"{about['plan']}.py"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{run} does not say which plan it ran: {error}") from error
    same = [place for place in places if place.is_file() and place.read_text(encoding="utf-8") == text]
    return load_plan_file(same[0] if same else run / "plan.py")
