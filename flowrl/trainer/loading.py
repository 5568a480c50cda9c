"""Loading the policy of a run: `flowrl.load("runs/...")`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.errors import ConfigError, FlowError
from flowrl.policies.weights import load_weights
from flowrl.storage.files import opened
from flowrl.trainer.config import build_config, load_config_file
from flowrl.trainer.plan_file import BUILTIN, load_plan_file
from flowrl.trainer.run_info import read_about
from flowrl.trainer.trained_policy import TrainedPolicy
from flowrl.trainer.trainer import named
from flowrl.trainer.trust import Trust, check_trust, code_in


def load(
    run: str | Path,
    *,
    last: bool = False,
    env: Any = None,
    env_args: Mapping[str, Any] | None = None,
    device: str | None = None,
    trusted: Trust = False,
) -> TrainedPolicy:
    """Load the best policy of a run, or its last one with `last`: `flowrl.load("runs/...").act(obs)`.

    Runs only code of flowrl, gymnasium and flowrl's extras, unless `trusted`: weights hold no code, but a directory
    may name some, a plan of its own or modules with environments, wrappers or a network. The plan is the original file
    if it is unchanged, else the copy in the directory.

    Args:
        run: A directory that `flowrl run` wrote.
        last: Load policy_last.pt instead of policy.pt.
        env: Replaces the environment of the run; does not get the arguments of the run's.
        env_args: Arguments of the evaluation environment, added to the run's.
        device: Where to run the policy; None: where the run did.
        trusted: Run the directory's own code too; or a function that is told which code that is, and answers whether.

    Raises:
        ConfigError: not a run directory, no policy saved in it yet, a plan or environment that is missing here, or
            code that is not trusted.
        CheckpointError: a damaged file, or weights that do not fit the environment.
    """
    run = Path(run)
    if not (run / "config.json").is_file():
        what = "has no config.json" if run.is_dir() else "is no directory"
        raise ConfigError(f"{run} {what}; give the directory that `flowrl run` printed at its end")
    weights = run / ("policy_last.pt" if last else "policy.pt")
    if not weights.is_file():
        saved = ", ".join(sorted(path.name for path in run.glob("policy*.pt"))) or "none"
        raise ConfigError(
            f"{run} has no {weights.name} (saved policies: {saved}); a run writes policy.pt at its first "
            "evaluation or its end, and policy_last.pt at its end"
        )
    about, plan = read_about(run), _plan_of(run)
    values = load_config_file(run / "config.json")
    changed: dict[str, Any] = {} if device is None else {"device": device}
    if env is not None:
        changed |= named(env) | {"env_args": dict(env_args or {}), "eval_env": None, "eval_env_args": None}
    elif env_args:
        others = values.get("eval_env") is not None or values.get("eval_env_args") is not None
        key = "eval_env_args" if others else "env_args"
        changed[key] = {**(values.get(key) or {}), **env_args}
    plan_code = [] if plan.parent == BUILTIN.resolve() else [f"the plan {plan}"]
    named_there = {key: value for key, value in values.items() if key not in changed}
    check_trust(run, plan_code + code_in(named_there), trusted)
    plan_file = load_plan_file(plan)
    config = build_config(plan_file.Config, values, changed)
    try:
        place = {**plan_file.trainer.place_of_run(config, about), **({} if env is None else {"env": None})}
        check_trust(f"the dataset of {run}", code_in(place), trusted)
        workers = plan_file.trainer.workers_of_run(config, env, about)
    except FlowError as error:
        raise ConfigError(f"{run} cannot be loaded here: {error}") from error
    workers.close()
    load_weights(workers.policy, weights)
    return TrainedPolicy(workers, config, env_steps=_env_steps(run))


def _plan_of(run: Path) -> Path:
    """The plan of a run: its original file or the built-in one if unchanged, else the copy in the directory."""
    about = read_about(run)
    try:
        text = (run / "plan.py").read_text(encoding="utf-8")
        places = [BUILTIN / f"{about['plan']}.py", Path(about["path"])]
        same = [place for place in places if place.is_file() and place.read_text(encoding="utf-8") == text]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{run} does not say which plan it ran: {error}") from error
    return (same[0] if same else run / "plan.py").resolve()


def _env_steps(run: Path) -> int:
    """The env steps of the last result of a run, 0 if it had none."""
    try:
        with opened(run / "metrics.jsonl") as file:
            last = deque(file, maxlen=1)[-1]
        return int(json.loads(last)["env_steps"])
    except (OSError, IndexError, KeyError, TypeError, ValueError, RecursionError, OverflowError):
        return 0
