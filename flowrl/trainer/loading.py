"""Going back to what was saved: `flowrl.load("runs/...")` for its policy, `flowrl.resume("runs/...")` to train on."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from flowrl.envs.dataset_spaces import SPACES, space_from_json
from flowrl.errors import CheckpointError, ConfigError, FlowError, SchemaError, did_you_mean
from flowrl.policies.weights import load_weights, policy_about
from flowrl.runs.config import build_config, load_config_file
from flowrl.runs.directory import builtin
from flowrl.runs.init_from import one_of_several
from flowrl.runs.resume import EarlierRun
from flowrl.runs.run_info import BUILTIN, plan_text, read_about
from flowrl.runs.trust import LATER, Trust, check_trust, code_in
from flowrl.runs.zoo import PREFIX, zoo_file
from flowrl.saved import Saved, shown
from flowrl.settings import resumable
from flowrl.storage.checkpoint import Checkpoints, load_checkpoint, verify_checkpoint
from flowrl.storage.files import MANIFEST, opened, parse_json
from flowrl.trainer.plan_file import PlanFile, builtin_plans, load_plan_file
from flowrl.trainer.trained_policy import TrainedPolicy
from flowrl.trainer.trainer import Trainer, named

log = logging.getLogger("flowrl")


def load(
    path: str | Path,
    *,
    last: bool = False,
    env: Any = None,
    env_args: Mapping[str, Any] | None = None,
    device: str | None = None,
    plan: Any = None,
    trusted: Trust = False,
    **settings: Any,
) -> TrainedPolicy:
    """Load a policy: `flowrl.load("runs/...").act(obs)`. Only its `evaluate` makes an environment.

    Of a run of several policies they are all, which `of(NAME)` gives apart; `flowrl.load("runs/...:NAME")` loads one.

    Of a run it is the best policy of its evaluations; where there is none yet, as in a run that was killed, that of its
    newest whole checkpoint, which is logged. `source` says which file it is.

    Runs only code of flowrl, gymnasium and flowrl's extras, unless `trusted`: weights hold no code, but a file may name
    some, a plan of its own or a network; `evaluate` asks the same of environments and wrappers. The plan of a directory
    is the original file if it is unchanged, else the copy there.

    Args:
        path: The directory of a run, a policy file, a checkpoint, or "zoo:NAME", see `flowrl.runs.zoo`; the first
            three may end with ":NAME", one of several policies.
        last: Load the policy at the end of the run instead of the best one.
        env: Replaces the environment of the run; does not get the arguments of the run's.
        env_args: Arguments of the evaluation environment, added to the run's.
        device: Where to run the policy; None: where the run did.
        plan: The Trainer class of the policy, or its file, where `path` does not tell: a class of a script or notebook.
        trusted: Run the code that `path` names too; or a function that is told which code, and answers whether.
        settings: Other values of settings that change no parameter of the policy, such as `target_return=300`.

    Raises:
        ConfigError: nothing that holds a policy, none saved yet, a plan that is missing here, code that is not
            trusted, or a setting that makes it another policy.
        CheckpointError: a damaged file, or weights that do not fit.
    """
    if str(path).startswith(PREFIX):
        path, name = zoo_file(str(path)), None
    else:
        path, name = one_of_several(path)
    saved = _SavedPolicy.find(path, last)
    found = saved.plan(plan)
    about, values = saved.about, saved.values
    changed: dict[str, Any] = {} if device is None else {"device": device}
    if env is not None:
        changed |= named(env) | {"env_args": dict(env_args or {}), "eval_env": None, "eval_env_args": None}
    elif env_args:
        others = values.get("eval_env") is not None or values.get("eval_env_args") is not None
        key = "eval_env_args" if others else "env_args"
        changed[key] = {**(values.get(key) or {}), **env_args}
    named_there = {key: value for key, value in values.items() if key not in changed}
    later = {key: named_there.pop(key) for key in LATER if key in named_there}
    own = [f"the plan {found}"] if isinstance(found, Path) and not builtin(found) and plan is None else []
    check_trust(path, own + code_in(named_there), trusted)
    trainer = load_plan_file(found).trainer if isinstance(found, Path) else found
    free = resumable(trainer.Config, "free")
    for key in settings.keys() - free:
        raise ConfigError(f"{key}={settings[key]!r}: a saved policy keeps it; {did_you_mean(key, free)}")
    config = build_config(trainer.Config, values, {**changed, **settings})
    try:
        place = {**trainer.place_of_run(config, about), **({} if env is None else {"env": None})}
    except FlowError as error:
        raise ConfigError(f"{path} cannot be loaded here: {error}") from error
    code = code_in(later), code_in(place)

    def allow() -> None:
        check_trust(path, code[0], trusted)
        check_trust(f"the dataset of {path}", code[1], trusted)

    if saved.spaces is None:  # of an earlier version
        allow()
    try:
        workers = trainer.workers_of_run(config, env, about, saved.spaces)
    except FlowError as error:
        raise ConfigError(f"{path} cannot be loaded here: {error}") from error
    workers.close()
    saved.fill(workers.policy)
    trained = TrainedPolicy(workers, config, env_steps=saved.env_steps, source=saved.file, allow=allow)
    return trained if name is None else trained.of(name)


@attrs.frozen
class _SavedPolicy:
    """A policy in a file: what it says of itself, None in files of earlier versions, and the run that it is of."""

    file: Path
    run: Path | None
    said: dict[str, Any] | None

    @classmethod
    def find(cls, path: Path, last: bool) -> _SavedPolicy:
        """The policy at a path; see `load`."""
        if (path / MANIFEST).is_file():
            return cls._of_checkpoint(path)
        if path.is_file():
            run = path.parent if (path.parent / "config.json").is_file() else None
            said = policy_about(path)
            if said is None and run is None:
                raise ConfigError(f"{path} is of an earlier version, which needs the directory of its run: give that")
            return cls(path, run, said)
        if not (path / "config.json").is_file():
            what = "has no config.json" if path.is_dir() else "is not there"
            raise ConfigError(
                f"{path} {what}; give the directory that a run printed at its end, a policy file, or a checkpoint"
            )
        file = path / ("policy_last.pt" if last else "policy.pt")
        if file.is_file():
            return cls(file, path, policy_about(file))
        for checkpoint in reversed(Checkpoints(path / "checkpoints").paths()):
            try:
                newest = cls._of_checkpoint(checkpoint)
            except CheckpointError as error:
                log.warning("%s", error)
                continue
            log.warning("%s has no %s: loading the policy of its newest checkpoint, %s", path, file.name, checkpoint)
            return newest
        saved = ", ".join(sorted(each.name for each in path.glob("policy*.pt"))) or "none"
        raise ConfigError(
            f"{path} has no {file.name} (saved policies: {saved}) and no checkpoint to take it from; a run writes "
            f"policy.pt at its first evaluation or its end, policy_last.pt at its end: flowrl run --resume {path}"
        )

    @classmethod
    def _of_checkpoint(cls, path: Path) -> _SavedPolicy:
        said = verify_checkpoint(path).get("about", {}).get("policy")
        if not isinstance(said, dict) or said.get("part") is None:
            raise CheckpointError(f"{path} does not say how to make its policy, as earlier versions: resume its run")
        folder = path.parent.parent if path.parent.name == "checkpoints" else path
        return cls(path, folder if (folder / "config.json").is_file() else None, said)

    @property
    def about(self) -> dict[str, Any]:
        """What is known of the plan: the run.json, else what the file says."""
        return read_about(self.run) if self.run is not None else self._said

    @property
    def values(self) -> dict[str, Any]:
        """Its configuration."""
        if self.run is not None:
            return load_config_file(self.run / "config.json")
        values: dict[str, Any] = self._field("config", dict)
        return values

    @property
    def spaces(self) -> Any:
        """The observation and the action space; of several policies by name; None in files of earlier versions."""
        if self.said is None:
            return None
        try:
            if "policies" in self.said:
                return {
                    name: _spaces(each) for name, each in self._field("policies", dict[str, dict[str, Any]]).items()
                }
            return _spaces(self.said)
        except (KeyError, SchemaError) as error:
            raise CheckpointError(f"{self.file} is malformed: {error!r}") from error

    @property
    def env_steps(self) -> int:
        if self.said is not None:
            return Saved(self.said, str(self.file)).count("env_steps", 0)
        return 0 if self.run is None else _env_steps(self.run)

    @property
    def _said(self) -> dict[str, Any]:
        return self.said or {}

    def _field(self, name: str, kind: Any) -> Any:
        return Saved(self._said, str(self.file)).get(name, kind)

    def plan(self, given: Any) -> Path | type[Trainer]:
        """The file or the class of its plan."""
        if isinstance(given, type) and issubclass(given, Trainer):
            return given
        if given is not None:
            return load_plan_file(given).path
        if self.run is not None:
            return _plan_of(self.run)
        name = self._field("plan", str | None) if "plan" in self._said else None
        if name in builtin_plans() and self._said.get("builtin"):
            return (BUILTIN / f"{name}.py").resolve()
        raise ConfigError(
            f"{self.file} was trained by {shown(name)}, which is no plan of flowrl: give it, "
            "flowrl.load(..., plan=MyTrainer), its class or its file"
        )

    def fill(self, policy: Any) -> None:
        """Load the weights into a policy."""
        if self.file.is_file():
            load_weights(policy, self.file)
            return
        part = self._field("part", str | dict[str, str])
        several = isinstance(part, dict)
        state = load_checkpoint(self.file, parts=list(part.values()) if several else [part])["resources"]
        try:
            if several:
                policy.load_state_dict({name: state[at.removeprefix("resources/")] for name, at in part.items()})
            else:
                policy.load_state_dict(state[part.removeprefix("resources/")])
        except CheckpointError as error:
            raise CheckpointError(f"{self.file} does not fit {type(policy).__name__}: {error}") from error


def _spaces(said: Mapping[str, Any]) -> tuple[Any, Any]:
    return space_from_json(said[SPACES[0]]), space_from_json(said[SPACES[1]])


def trainer_of(run: Path) -> type[Trainer]:
    """The class of a run's plan, whose file it runs."""
    return load_plan_file(_plan_of(run)).trainer


def _plan_of(run: Path) -> Path:
    """The plan of a run: its original file or the built-in one if unchanged, else the copy in the directory."""
    about = read_about(run)
    text = plan_text(run / "plan.py")
    places = [BUILTIN / f"{about['plan']}.py", Path(about["path"])]
    same = [place for place in places if place.is_file() and plan_text(place) == text]
    return (same[0] if same else run / "plan.py").resolve()


def _env_steps(run: Path) -> int:
    """The env steps of the last result of a run, 0 if it had none."""
    try:
        with opened(run / "metrics.jsonl") as file:
            last = deque(file, maxlen=1)[-1]
        return int(parse_json(last)["env_steps"])
    except (OSError, IndexError, KeyError, TypeError, ValueError, RecursionError, OverflowError):
        return 0


def resume(run: str | Path, env: Any = None, *, policy: Any = None, **settings: Any) -> Trainer:
    """Go on with a run where its newest checkpoint left it, bit for bit, in its directory, as `flowrl run --resume`.

    `flowrl.resume("runs/x").train(env_steps=200_000)`. It runs the code that the directory names and holds, so resume
    only your own runs. `Trainer.resume` is the same for a class that no file holds, as in a notebook.

    Args:
        run: The directory of a run, or one of its checkpoints.
        env: The run's environment, where its name is not enough, as for a function of a notebook.
        policy: The argument `policy` of the run's Trainer, if it had one.
        settings: Those that a resumed run may change, such as `eval_every`.

    Raises:
        ConfigError: no run, a plan that has changed since, or a setting that makes it another run.
        CheckpointError: a damaged checkpoint, or one of another plan.
    """
    earlier = EarlierRun.find(run)
    main = sys.modules["__main__"]
    file = vars(main).get("__file__")
    if file and not earlier.about.get("builtin") and Path(file).resolve() == Path(earlier.about["path"]):
        found: Any = vars(main).get(earlier.about["plan"])  # do not run the script once more
        if isinstance(found, type) and issubclass(found, Trainer):
            return found.resume(run, env, policy=policy, **settings)
    return plan_file_of(earlier).trainer.resume(run, env, policy=policy, **settings)


def plan_file_of(run: EarlierRun, name: str | None = None) -> PlanFile:
    """The plan `name`, else that of the run, to resume it.

    Raises:
        ConfigError: another built-in plan than the run's; or the run's plan has changed since, in which case the
            message names both ways to go on.
    """
    if name is not None:
        plan_file = load_plan_file(name)
        if plan_file.path.parent == BUILTIN.resolve() and plan_file.name != run.about["plan"]:
            raise ConfigError(
                f"{run.path} is a run of {run.about['plan']}, not of {plan_file.name}; "
                f"to go on with it: flowrl run --resume {run.path}"
            )
        return plan_file
    copy = run.path / "plan.py"
    source = BUILTIN.resolve() / f"{run.about['plan']}.py" if run.about.get("builtin") else Path(run.about["path"])
    if not source.is_file():
        log.warning("%s is gone: using the copy in the run directory, %s", source, copy)
        source = copy
    elif not copy.is_file() or plan_text(source) != plan_text(copy):
        raise ConfigError(
            f"{source} has changed since the run began; to go on with it as it is now: "
            f"flowrl run {source} --resume {run.path}; as it was: flowrl run {copy} --resume {run.path}"
        )
    return attrs.evolve(load_plan_file(source), name=run.about["plan"])
