"""`flowrl record`: experience of a run's saved policy, or of an untrained one, as a dataset."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from flowrl.data import Batch, DatasetWriter
from flowrl.data.multi_agent import DEFAULT_POLICY, MultiAgentBatch
from flowrl.engine.seeds import SeedTree
from flowrl.envs.dataset_spaces import origin
from flowrl.errors import ConfigError
from flowrl.frames import one_line
from flowrl.networks.devices import torch_threads
from flowrl.policies import Policies, Policy, RandomPolicy, ScriptedPolicy
from flowrl.rollout import RolloutWorker, WorkerSet
from flowrl.rollout.groups import Group
from flowrl.rollout.policy_map import PolicyMap, policy_map
from flowrl.runs.config import Configuration, build_config
from flowrl.runs.trust import Trust
from flowrl.storage.files import plain
from flowrl.trainer.loading import load
from flowrl.trainer.trained_policy import TrainedPolicy

#: Steps per environment in a fragment, unless whole episodes are recorded.
FRAGMENT_STEPS = 128


@attrs.frozen
class RecordedEpisodes:
    """The path and size of a recording, with the returns of its episodes."""

    path: Path
    batches: int
    steps: int
    returns: list[float]
    of_agents: dict[str, list[float]] = attrs.Factory(dict)  #: in a game, by name

    def line(self) -> str:
        """The report, in one line."""
        ended = "no episode ended" if not self.returns else f"{len(self.returns)} episodes"
        mean = f", mean return {np.mean(self.returns):,.2f}" if self.returns else ""
        agents = ", ".join(f"{name} {np.mean(each):,.2f}" for name, each in self.of_agents.items())
        mean += f" ({agents})" if agents else ""
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
    trusted: Trust = False,
) -> RecordedEpisodes:
    """Record the saved policy of a run, or another `policy`, as it acts.

    Records whole episodes, each as a fragment `[T, 1, ...]`, an equal share per environment (S2); or steps, as
    fragments `[T, N, ...]`, whose episodes continue in the next fragment. Environments and noise follow from `seed`
    alone, and differ from those of training and evaluation (S3).

    Of a game the manifest names the agents, which the column `agent` numbers. If several policies play it, each has a
    dataset of its own, of its agents' rows, in the folder of its name.

    The manifest names the environment, its arguments and wrappers, and the spaces of observations and actions. The
    dataset holds actions as the environment gets them, at whatever scale the policy samples; if these differ, it omits
    the log-probability of the sampled action.

    Args:
        run, last, env, env_args, trusted: See `flowrl.load`.
        out: The dataset's folder, new or empty.
        policy: Instead of a run: "random", or "module:function", a function of observations `[N, ...]`; it acts in
            `env`.
        episodes, steps: Amount to record, exactly one of both; steps count all environments together, rounded up to
            a multiple of their number.
        seed: Seed of environments and action noise.
        collect: Act in the collect mode, which explores, instead of the eval mode.

    Raises:
        ConfigError, CheckpointError: see `flowrl.load`; or not exactly one of episodes and steps, or of run and
            policy; a policy without an environment; or an environment without a name.
        DatasetError: `out` exists, or cannot be written.
    """
    if (episodes is None) == (steps is None):
        raise ConfigError("give --episodes N or --steps N: how much to record")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} exists already; give a new folder")
    if (run is None) == (policy is None):
        raise ConfigError("give the directory of a run, or --policy random or module:function with --env: who acts")
    if run is not None:
        trained = load(run, last=last, env=env, env_args=env_args, trusted=trusted).alone
        assert trained.source is not None
        saved = trained.source.name
    else:
        assert policy is not None
        trained, saved = _untrained(policy, env, env_args or {}), policy
    about = {"policy": saved, "seed": seed, "mode": "collect" if collect else "eval"}
    about |= {} if run is None else {"run": str(run)}
    several = trained.policy if isinstance(trained.policy, Policies) else None
    policies: Mapping[str, Policy] = {DEFAULT_POLICY: trained.policy} if several is None else several
    real, returns, of_agents = 0, list[float](), dict[str, list[float]]()
    with torch_threads(trained.config.torch_threads):
        num_envs = min(episodes or steps or 1, trained.config.envs_per_worker)
        who = _who(trained, tuple(policies), num_envs)
        worker = _worker(trained, policies, who, num_envs, SeedTree(seed).integer("record/command"), collect)
        try:
            place = trained.environments
            of = {name: origin(place, each.observation_space, each.action_space) for name, each in policies.items()}
            if any(each["env"] is None for each in of.values()):
                raise ConfigError(
                    f"{trained.environments}, the environment of {run}, has no name that the dataset could keep: "
                    "name it with --env"
                )
            about |= {} if who is None else {"agents": list(who.seating.agents)}
            folder = {name: out if several is None else out / name for name in policies}
            writers = {name: DatasetWriter(folder[name], plain(about | of[name])) for name in policies}
            for name, batch in _whole(worker, episodes) if steps is None else _fragments(worker, steps):
                writers[name].add(batch)
                real += batch.rows
                for episode in worker.episodes():
                    (of_agents.setdefault(episode.agent, []) if episode.agent else returns).append(episode.return_)
        finally:
            worker.close()
    for writer in writers.values():
        writer.flush()
    return RecordedEpisodes(out, sum(map(len, writers.values())), real, returns, of_agents)


def _untrained(policy: str, env: str | None, env_args: Mapping[str, Any]) -> TrainedPolicy:
    """A policy without a run, in an environment."""
    if env is None:
        raise ConfigError(f"--policy {policy} needs --env, the environment in which it acts")
    make: Any = RandomPolicy
    if policy != "random":
        try:
            function = pkgutil.resolve_name(policy)
        except (Exception, SystemExit) as error:  # of a module of the user's
            raise ConfigError(
                f"--policy {policy}: {one_line(error)}. Expected 'random' or 'module:function'"
            ) from error
        if not callable(function):
            raise ConfigError(f"--policy {policy} is {function!r}, expected a function of observations [N, ...]")
        make = partial(ScriptedPolicy, function)
    config = build_config(Configuration, {"env": env, "env_args": dict(env_args)})
    with WorkerSet(config.env, make, env_args=config.env_args) as workers:
        return TrainedPolicy(workers, config)


def _whole(worker: RolloutWorker, episodes: int | None) -> Iterator[tuple[str, Batch]]:
    """Whole episodes, each without its padding, sampled in groups of one per environment."""
    missing = episodes or 0
    while missing:
        count = min(missing, worker.manager.num_envs)
        yield from _unpadded(worker.sample(episodes=count))
        missing -= count


def _unpadded(sampled: Batch | MultiAgentBatch) -> Iterator[tuple[str, Batch]]:
    """By policy the batch, or if it is padded its columns, each without its padding."""
    of = sampled.items() if isinstance(sampled, MultiAgentBatch) else [(DEFAULT_POLICY, sampled)]
    for name, batch in of:
        if "mask" not in batch:
            yield name, batch
            continue
        lengths = batch.pop("mask").sum(0)
        yield from ((name, batch[:length, i : i + 1]) for i, length in enumerate(lengths.tolist()) if length)


def _fragments(worker: RolloutWorker, steps: int) -> Iterator[tuple[str, Batch]]:
    missing = -(-steps // worker.manager.num_envs)
    while missing:
        count = min(missing, FRAGMENT_STEPS)
        yield from _unpadded(worker.sample(count))
        missing -= count


def _who(trained: TrainedPolicy, names: tuple[str, ...], num_envs: int) -> PolicyMap | None:
    agents = trained.agents if len(names) > 1 else None
    return policy_map(trained.environments, trained.environments.look(num_envs).seating, names, agents)


def _worker(
    trained: TrainedPolicy,
    policies: Mapping[str, Policy],
    who: PolicyMap | None,
    num_envs: int,
    seed: int,
    collect: bool,
) -> RolloutWorker:
    acting: dict[str, Any] = {}
    for name, policy in policies.items():
        mode = policy.collect_mode if collect else policy.eval_mode
        acting[name] = _Recorded(policy, _AsSent(mode, policy.action_space.dtype))
    worker = Group(trained.environments, num_envs, 0, 1, seed, policy_map=who).worker(acting)
    worker.env_steps = trained.env_steps  # the point of exploration schedules
    return worker


@attrs.frozen
class _Recorded:
    """A policy with another collect mode."""

    policy: Policy
    collect_mode: _AsSent

    @property
    def version(self) -> int:
        return self.policy.version


@attrs.frozen
class _AsSent:
    """A mode that returns actions as the environment gets them, in the dtype of its action space."""

    mode: Any
    dtype: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mode, name)

    def act(self, *given: Any) -> dict[str, Any]:
        columns = dict(self.mode.act(*given))
        if "env_action" in columns:
            columns["action"] = columns.pop("env_action")
            columns.pop("logp", None)  # belongs to the sampled action
        return {**columns, "action": columns["action"].astype(self.dtype, copy=False)}
