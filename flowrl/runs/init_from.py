"""Beginning a run with what another one has learned: its weights, and if asked for its statistics and replay buffer."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowrl.engine.protocols import WorkersContract
from flowrl.engine.run import resources_of
from flowrl.errors import CheckpointError, ConfigError, did_you_mean
from flowrl.runs.run_info import read_results
from flowrl.saved import Saved
from flowrl.storage.checkpoint import Checkpoints, load_checkpoint, verify_checkpoint
from flowrl.storage.files import MANIFEST

if TYPE_CHECKING:
    import torch

    from flowrl.data.replay.buffer import ReplayBuffer
    from flowrl.engine.plan import Plan
    from flowrl.policies import Policy
    from flowrl.rollout import Workers
    from flowrl.runs.config import Configuration

log = logging.getLogger("flowrl")

Source: TypeAlias = str | Path | Mapping[str, str | Path]
"""What a run begins with, as `Parent.find` takes it; of several policies a table by name, or one for all of them."""

#: What a new run may take besides weights, and whether parts that do not fit may stay behind.
WITH = ("buffer", "statistics", "partial")

#: The tensors of a `flowrl.networks.normalize.Normalizer`.
_STATISTICS = ("count", "mean", "var", "std")


def one_of_several(name: str | Path) -> tuple[Path, str | None]:
    """The path, and which of several policies there is meant: "runs/both:left"; None: nobody said."""
    path = Path(name)
    before, colon, policy = str(name).rpartition(":")
    if colon and policy and not path.exists() and Path(before).exists():
        return Path(before), policy
    return path, None


@attrs.frozen
class Parent:
    """A run, a checkpoint or a file of weights that a new run begins with.

    Attributes:
        path: As it was given.
        weights: The file of weights; None: those in the checkpoint.
        checkpoint: The checkpoint that has the buffers; None: there is none.
        env_steps: Of the run when it ended, or when the checkpoint was taken; 0 if unknown.
        policy: The one of its policies that is meant; None: nobody said.
    """

    path: Path
    weights: Path | None
    checkpoint: Path | None
    env_steps: int
    policy: str | None = None

    @classmethod
    def find(cls, name: str | Path) -> Parent:
        """Find a run's directory (its best policy, else its newest checkpoint), a checkpoint, or a file of weights.

        `name:POLICY` means one of several policies there.

        Raises: ConfigError: there is none of them.
        """
        path, policy = one_of_several(name)
        if policy is not None:
            return attrs.evolve(cls.find(path), policy=policy)
        if path.is_file():
            return cls(path, path, None, _steps_of(path.parent))
        if (path / MANIFEST).is_file():
            counters = verify_checkpoint(path).get("about", {}).get("counters", {})
            return cls(path, None, path, int(counters.get("env_steps", 0)))
        checkpoint = Checkpoints(path / "checkpoints").latest()
        weights = path / "policy.pt"
        if weights.is_file() or checkpoint is not None:
            return cls(path, weights if weights.is_file() else None, checkpoint, _steps_of(path))
        what = "has neither policy.pt nor a checkpoint" if path.is_dir() else "does not exist"
        raise ConfigError(
            f"{name} {what}: give a run's directory, a checkpoint, or a file of weights such as policy.pt"
        )

    @property
    def about(self) -> dict[str, Any]:
        """Which files they are: an entry of the new run's run.json."""
        file = self.weights or Path(self.checkpoint or self.path) / MANIFEST
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return {"path": str(self.path.resolve()), "sha256": digest, "env_steps": self.env_steps}

    def read_weights(self, name: str | None = None) -> dict[str, torch.Tensor]:
        """The tensors of the model by name: those of the only policy, or of `policy`, else of the one called `name`.

        Raises: CheckpointError, nothing in them can run code; ConfigError: it does not have this policy, or several.
        """
        found = self._read()
        if self.policy is None and len(found) == 1:
            return next(iter(found.values()))
        wanted = name if self.policy is None else self.policy
        if wanted not in found:
            here = "it has one policy" if list(found) == [""] else f"it has the policies {', '.join(found)}"
            raise ConfigError(f"{self.path}: which policy is {wanted or 'meant'!r}? {here}: give {self.path}:POLICY")
        return found[wanted]

    def _read(self) -> dict[str, dict[str, torch.Tensor]]:
        """The tensors of each policy, by the name that it has among several."""
        from flowrl.policies.weights import read_weights

        if self.weights is not None:
            weights: dict[str, torch.Tensor] = read_weights(self.weights)
            if not all("/" in name for name in weights):
                return {"": weights}
            names = dict.fromkeys(name.partition("/")[0] for name in weights)
            return {
                of: {name.removeprefix(f"{of}/"): each for name, each in weights.items() if name.startswith(f"{of}/")}
                for of in names
            }
        assert self.checkpoint is not None, "find() found one of the two"
        said = verify_checkpoint(self.checkpoint).get("about", {}).get("policy")
        part = said.get("part") if isinstance(said, Mapping) else None
        if isinstance(part, Mapping):
            models = {
                str(of): _model_in(self.checkpoint, str(at).removeprefix("resources/")) for of, at in part.items()
            }
        else:
            names_here = [name for name in resources_in(self.checkpoint) if name.partition("-")[0].endswith("Policy")]
            models = {"": next(filter(None, (_model_in(self.checkpoint, name) for name in names_here)), None)}
        if not models or None in models.values():
            raise CheckpointError(f"{self.checkpoint} holds no policy")
        return {of: model for of, model in models.items() if model is not None}


def init_from(
    name: Source, taken: Collection[str], plan: Plan, workers: Workers, config: Configuration
) -> dict[str, Any]:
    """Give a plan that has not run yet the weights of a `Parent`; return what the new run records of it.

    The optimizer begins fresh; a target network begins equal. Of several policies those that a table names begin with
    what it says; one parent for all gives each the weights of its policy of the same name, or of its only one.

    Args:
        name: See `Source`.
        taken: Of `WITH`. "statistics": those of normalisation. "buffer": the rows of the replay buffers, with their
            priorities. "partial": load what fits, and log what does not; else that is an error.

    Raises:
        ConfigError: nothing there; weights, statistics or a buffer that do not fit, each of which is named.
        CheckpointError: a damaged file.
    """
    from flowrl.policies import Policies

    taken = [taken] if isinstance(taken, str) else taken
    for word in taken:
        if word not in WITH:
            raise ConfigError(f"init_with={word!r}: {did_you_mean(str(word), WITH)}")
    policy = workers.policy
    if isinstance(policy, Policies):
        if "buffer" in taken:
            raise ConfigError("init_with=['buffer']: of several policies only weights and statistics can be taken over")
        table = name if isinstance(name, Mapping) else dict.fromkeys(policy, name)
        for each in table:
            if each not in policy:
                raise ConfigError(f"init_from: no policy {each!r}: {did_you_mean(str(each), policy)}")
        return {"policies": {each: _begin(Parent.find(at), taken, policy[each], each) for each, at in table.items()}}
    if isinstance(name, Mapping):
        raise ConfigError(f"init_from={dict(name)}: this plan has one policy: give the one run that it begins with")
    begun = _begin(parent := Parent.find(name), taken, policy)
    if "buffer" in taken:
        _load_buffers(parent, plan, workers, config)
    return begun


def _begin(parent: Parent, taken: Collection[str], policy: Policy, name: str | None = None) -> dict[str, Any]:
    """Give a policy of this name the weights of a parent; returns what the new run records of it."""
    left = _load_weights(parent, taken, policy, name)
    if left:
        log.warning("left out of %s: %s", parent.path, "; ".join(left))
    which = {} if parent.policy is None else {"policy": parent.policy}
    return {**parent.about, **which, "with": sorted(taken), "left_out": left}


def _load_weights(parent: Parent, taken: Collection[str], policy: Policy, called: str | None) -> list[str]:
    """Load the weights that fit; returns what was left out, in words."""
    from flowrl.networks.loading import check_numbers
    from flowrl.policies import Policy
    from flowrl.policies.protocols import HasTarget
    from flowrl.saved import load_whole

    if not isinstance(policy, Policy):
        raise ConfigError(f"a {type(policy).__name__} is no flowrl.policies.Policy, whose weights have names")
    theirs, ours = parent.read_weights(called), policy.model.state_dict()
    check_numbers(policy.model, theirs, f"the weights of {parent.path}")
    measured = _statistics(theirs)
    if "statistics" in taken and not measured:
        raise ConfigError(f"{parent.path} has no statistics: its policy does not normalize")
    beside = set() if "statistics" in taken else measured | _statistics(ours)
    both = [name for name in ours if name in theirs and name not in beside]
    fitting = {name: theirs[name] for name in both if theirs[name].shape == ours[name].shape}
    left = [
        f"{each} is {_shape(theirs[each])} there, {_shape(ours[each])} here" for each in both if each not in fitting
    ]
    for where, names in (("here", ours.keys() - theirs.keys()), ("there", theirs.keys() - ours.keys())):
        left += [f"only {where}: {', '.join(sorted(names - beside))}"] if names - beside else []
    if not fitting or (left and "partial" not in taken):
        way = "nothing of it fits" if not fitting else "--from-with partial (init_with=['partial']) takes what fits"
        raise ConfigError(
            f"the weights of {parent.path} do not fit this {type(policy).__name__}, which acts in "
            f"{policy.observation_space} by {policy.action_space}: {'; '.join(left)}; {way}"
        )
    loaded = {name: fitting.get(name, value) for name, value in ours.items()}
    load_whole(policy.load_weights, loaded, policy.weights(), f"the weights of {parent.path}")
    if isinstance(policy, HasTarget):
        policy.update_target(1.0)
    if seen := sorted(name for name in measured & beside if not name.startswith("returns.")):
        left.append(f"statistics of what its policy saw, which --from-with statistics takes: {', '.join(seen)}")
    return left


def _load_buffers(parent: Parent, plan: Plan, workers: Workers, config: Configuration) -> None:
    """Load the rows of the replay buffers of the same names."""
    from flowrl.data.replay.base import Store
    from flowrl.data.replay.buffer import ReplayBuffer

    if parent.checkpoint is None:
        raise ConfigError(f"{parent.path} has no checkpoint, and only checkpoints hold buffers")
    stores = {name: each for name, each in resources_of(plan).items() if isinstance(each, Store)}
    buffers = {name: each for name, each in stores.items() if isinstance(each, ReplayBuffer)}
    if not buffers:
        why = f"{', '.join(stores)} cannot be taken over" if stores else "this plan has none"
        raise ConfigError(f"no replay buffer to take from {parent.path}: {why}")
    saved = resources_in(parent.checkpoint)
    for name, buffer in buffers.items():
        what = f"the {name} of {parent.checkpoint}"
        if name not in saved:
            raise ConfigError(f"{parent.checkpoint} has no {name}, the buffer of this plan; it has {', '.join(saved)}")
        try:
            buffer.take_over(read_resource(parent.checkpoint, name))
        except CheckpointError as error:
            raise ConfigError(f"{what} does not fit this plan: {error}") from error
        if buffer.envs not in (None, config.num_envs):
            raise ConfigError(
                f"{what} has rows of {buffer.envs} environments side by side, this run has {config.num_envs}: "
                "set envs_per_worker"
            )
        _check_rows(what, buffer, workers)
    policy = workers.policy
    if type(policy).__name__ in saved:  # rows know the version of the weights that made them
        state = read_resource(parent.checkpoint, type(policy).__name__)
        policy.version = Saved(state, "the saved policy").count("version")


def _check_rows(what: str, buffer: ReplayBuffer, workers: Workers) -> None:
    """Raise ConfigError if observations or actions in a buffer are not like those of the workers."""
    from flowrl.engine.schema import schema_of

    expected = WorkersContract(workers).schema
    if expected is None or not len(buffer):
        return
    stored = schema_of(buffer[:1]).columns
    for name, column in expected().columns.items():
        if name.partition(".")[0] not in ("obs", "action"):
            continue
        here = f"{column.dtype}{list(column.shape[2:])}"
        there = f"{stored[name].dtype}{list(stored[name].shape[1:])}" if name in stored else "missing"
        if here != there:
            raise ConfigError(f"{what} does not fit: {name} is {there} there, {here} here")


def _model_in(checkpoint: Path, name: str) -> dict[str, torch.Tensor] | None:
    """The tensors of the model of a policy in a checkpoint; None if it has none."""
    modules = read_resource(checkpoint, name).get("modules")
    model = modules.get("model") if isinstance(modules, Mapping) else None
    return dict(model) if isinstance(model, Mapping) else None


def resources_in(checkpoint: Path) -> list[str]:
    """The names of the resources that a checkpoint holds."""
    parts = verify_checkpoint(checkpoint)["parts"]
    return [name.removeprefix("resources/") for name in parts if name.startswith("resources/")]


def read_resource(checkpoint: Path, name: str) -> dict[str, Any]:
    """The state of a resource in a checkpoint; nothing in it can run code."""
    state = load_checkpoint(checkpoint, parts=[f"resources/{name}"])["resources"][name]
    return dict(state) if isinstance(state, Mapping) else {}


def _statistics(weights: Mapping[str, Any]) -> set[str]:
    """The names of the tensors that are statistics of a `flowrl.networks.normalize.Normalizer`."""
    places = [name.removesuffix("count") for name in weights if name.endswith("count")]
    found = [[f"{place}{each}" for each in _STATISTICS] for place in places]
    return {name for names in found if all(name in weights for name in names) for name in names}


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def _steps_of(run: Path) -> int:
    """The env steps of the last result of a run; 0 if there is none."""
    try:
        results = read_results(run)
    except ConfigError:
        return 0
    return int(results[-1].get("env_steps") or 0) if results else 0
