"""`flowrl record`: experience of the saved policy of a run, or of one that needs no training, as a dataset."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from flowrl.data import Batch, DatasetWriter
from flowrl.engine.seeds import SeedTree
from flowrl.envs.dataset_spaces import origin
from flowrl.errors import ConfigError
from flowrl.policies import Policy, RandomPolicy, ScriptedPolicy
from flowrl.policies.devices import torch_threads
from flowrl.rollout import RolloutWorker, WorkerSet
from flowrl.storage.files import plain
from flowrl.trainer.config import Configuration, build_config
from flowrl.trainer.loading import load
from flowrl.trainer.trained_policy import TrainedPolicy

#: Steps of each environment in a fragment, where whole episodes were not asked for.
FRAGMENT_STEPS = 128


@attrs.frozen
class Recording:
    """What was recorded, and where."""

    path: Path
    batches: int
    steps: int
    returns: list[float]

    def line(self) -> str:
        """For people."""
        ended = "no episode ended" if not self.returns else f"{len(self.returns)} episodes"
        mean = f", mean return {np.mean(self.returns):,.2f}" if self.returns else ""
        return f"{self.path}: {self.steps:,} steps in {self.batches:,} batches, {ended}{mean}"


def record_run(
    run: Path | None,
    out: Path,
    *,
    policy: str | None = None,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    collect: bool = False,
    last: bool = False,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
) -> Recording:
    """Let the saved policy of a run act, or another `policy`, and record it.

    Episodes are recorded whole, each as a fragment `[T, 1, ...]`, a fixed share of each environment (S2). Steps are
    recorded as fragments `[T, N, ...]`, in which episodes go on from one to the next. Environments and noise follow
    from `seed` alone, and are others than those of training or evaluation (S3).

    The manifest says in which environment it was, with which arguments and wrappers, and of which spaces the
    observations and actions are. Actions are as the environment gets them,
    whatever scale the policy draws them in; where these differ the log-probability of what was drawn is left out.

    Args:
        run, last, env, env_args: See `flowrl.load`.
        out: The dataset's folder, new or empty.
        policy: Instead of a run: "random", or "module:function", a function of observations `[N, ...]`; it acts in
            `env`.
        episodes, steps: How much, one of both; steps of all environments together, rounded up to fill them.
        seed: Of environments and action noise.
        collect: The policy in its collect mode, which explores, not in its eval mode.

    Raises:
        ConfigError, CheckpointError: see `flowrl.load`; or not one of episodes and steps is given, or not one of run
            and policy, or a policy without an environment, or an environment without a name.
        DatasetError: something is at `out`, or it cannot be written.
    """
    if (episodes is None) == (steps is None):
        raise ConfigError("give --episodes N or --steps N: how much to record")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} is there already; give a new folder")
    if (run is None) == (policy is None):
        raise ConfigError("give the directory of a run, or --policy random or module:function with --env: who acts")
    if run is not None:
        trained, saved = load(run, last=last, env=env, env_args=env_args), "policy_last.pt" if last else "policy.pt"
    else:
        assert policy is not None
        trained, saved = _untrained(policy, env, env_args or {}), policy
    about = {"policy": saved, "seed": seed, "mode": "collect" if collect else "eval"}
    about |= {} if run is None else {"run": str(run)}
    real, returns = 0, list[float]()
    with torch_threads(trained.config.torch_threads):
        worker = _worker(trained, SeedTree(seed).integer("record/command"), collect, episodes or steps or 1)
        try:
            about |= origin(trained.environments, worker.manager.observation_space, worker.manager.action_space)
            if about["env"] is None:
                raise ConfigError(
                    f"{trained.environments}, in which {run} would be recorded, has no name that the dataset could "
                    "keep: say which it is, with --env"
                )
            writer = DatasetWriter(out, plain(about))
            for batch in _whole(worker, episodes) if steps is None else _fragments(worker, steps):
                writer.add(batch)
                real += batch.rows
                returns += [episode.return_ for episode in worker.episodes()]
        finally:
            worker.close()
    writer.flush()
    return Recording(out, len(writer), real, returns)


def _untrained(policy: str, env: str | None, env_args: Mapping[str, Any]) -> TrainedPolicy:
    """A policy that has no run, in an environment."""
    if env is None:
        raise ConfigError(f"--policy {policy} needs --env: in which environment it acts")
    make: Any = RandomPolicy
    if policy != "random":
        try:
            function = pkgutil.resolve_name(policy)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"--policy {policy}: {error}. Expected 'random' or 'module:function'") from error
        if not callable(function):
            raise ConfigError(f"--policy {policy} is {function!r}, expected a function of observations [N, ...]")
        make = partial(ScriptedPolicy, function)
    config = build_config(Configuration, {"env": env, "env_args": dict(env_args)})
    with WorkerSet(config.env, make, env_args=config.env_args) as workers:
        return TrainedPolicy(workers, config)


def _whole(worker: RolloutWorker, episodes: int | None) -> Iterator[Batch]:
    """Whole episodes, each without its padding; as many at a time as there are environments."""
    missing = episodes or 0
    while missing:
        count = min(missing, worker.manager.num_envs)
        padded = worker.sample(episodes=count)
        lengths = padded.pop("mask").sum(0)
        yield from (padded[:length, i : i + 1] for i, length in enumerate(lengths.tolist()))
        missing -= count


def _fragments(worker: RolloutWorker, steps: int) -> Iterator[Batch]:
    missing = -(-steps // worker.manager.num_envs)
    while missing:
        count = min(missing, FRAGMENT_STEPS)
        yield worker.sample(count)
        missing -= count


def _worker(trained: TrainedPolicy, seed: int, collect: bool, most: int) -> RolloutWorker:
    manager = trained.environments.manager(min(most, trained.config.envs_per_worker))
    mode = trained.policy.collect_mode if collect else trained.policy.eval_mode
    policy: Any = _Recorded(trained.policy, _AsSent(mode, manager.action_space.dtype))
    worker = RolloutWorker(manager, policy, seed=seed)
    worker.env_steps = trained.env_steps  # where exploration schedules stand
    return worker


@attrs.frozen
class _Recorded:
    """A policy that collects in another mode."""

    policy: Policy
    collect_mode: _AsSent

    @property
    def version(self) -> int:
        return self.policy.version


@attrs.frozen
class _AsSent:
    """A mode whose actions are what the environment gets for them, in the numbers of its action space."""

    mode: Any
    dtype: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mode, name)

    def act(self, *given: Any) -> dict[str, Any]:
        columns = dict(self.mode.act(*given))
        if "env_action" in columns:
            columns["action"] = columns.pop("env_action")
            columns.pop("logp", None)  # which is of what was drawn
        return {**columns, "action": columns["action"].astype(self.dtype, copy=False)}
