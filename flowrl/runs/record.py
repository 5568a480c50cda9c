"""`flowrl record`: experience of the saved policy of a run, as a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from flowrl.data import Batch, DatasetWriter
from flowrl.errors import ConfigError
from flowrl.files import plain
from flowrl.policies import Policy
from flowrl.policies.policy import ActMode
from flowrl.rollout import RolloutWorker
from flowrl.seeds import SeedTree
from flowrl.trained import TrainedPolicy, load
from flowrl.trainer import torch_threads

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
    run: Path,
    out: Path,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    collect: bool = False,
    last: bool = False,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
) -> Recording:
    """Let the saved policy of a run act, and record it.

    Episodes are recorded whole, each as a fragment `[T, 1, ...]`, a fixed share of each environment (S2). Steps are
    recorded as fragments `[T, N, ...]`, in which episodes go on from one to the next. Environments and noise follow
    from `seed` alone, and are others than those of training or evaluation (S3).

    Args:
        run, last, env, env_args: See `flowrl.load`.
        out: The dataset's folder, new or empty.
        episodes, steps: How much, one of both; steps of all environments together, rounded up to fill them.
        seed: Of environments and action noise.
        collect: The policy in its collect mode, which explores, not in its eval mode.

    Raises:
        ConfigError, CheckpointError: see `flowrl.load`; or not one of episodes and steps is given.
        DatasetError: something is at `out`, or it cannot be written.
    """
    if (episodes is None) == (steps is None):
        raise ConfigError("give --episodes N or --steps N: how much to record")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out} is there already; give a new folder")
    trained = load(run, last=last, env=env, env_args=env_args)
    mode = "collect" if collect else "eval"
    about = {"run": str(run), "env": trained.config.env, "env_args": trained.config.env_args, "mode": mode}
    writer = DatasetWriter(out, {**plain(about), "policy": "policy_last.pt" if last else "policy.pt", "seed": seed})
    real, returns = 0, list[float]()
    with torch_threads(trained.config.torch_threads):
        worker = _worker(trained, SeedTree(seed).integer("record/command"), collect, episodes or steps or 1)
        try:
            for batch in _whole(worker, episodes) if steps is None else _fragments(worker, steps):
                writer.add(batch)
                real += batch.rows
                returns += [episode.return_ for episode in worker.episodes()]
        finally:
            worker.close()
    writer.flush()
    return Recording(out, len(writer), real, returns)


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
    policy: Any = trained.policy if collect else _Exploiting(trained.policy)
    worker = RolloutWorker(manager, policy, seed=seed)
    worker.env_steps = trained.env_steps  # where exploration schedules stand
    return worker


@attrs.frozen
class _Exploiting:
    """A policy that collects as it is evaluated."""

    policy: Policy

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def collect_mode(self) -> ActMode:
        return self.policy.eval_mode
