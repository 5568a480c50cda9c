"""Demonstrations on CartPole-v1: a rule that holds the pole for all of an episode, and steps of it at random."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from flowrl.data import Batch, DatasetWriter
from flowrl.operators import ParallelRollouts
from flowrl.policies import RandomPolicy, ScriptedPolicy
from flowrl.rollout import WorkerSet


def upright(obs: np.ndarray) -> np.ndarray:
    """Actions of the rule: against where the pole is about to fall, and slowly back to the middle."""
    position, speed, angle, turning = obs.T
    return (0.1 * position + 0.3 * speed + 3 * angle + turning > 0).astype(np.int64)


def cartpole_episodes(episodes: int = 10, steps: int = 500) -> Batch:
    """The first steps of so many episodes, `[steps, episodes, ...]`."""
    with WorkerSet("CartPole-v1", lambda *found: ScriptedPolicy(upright, *found), envs_per_worker=episodes) as workers:
        batch: Batch = next(iter(ParallelRollouts(workers, steps=steps)))
    return batch


def recorded(batch: Batch, path: Path) -> Path:
    """A dataset of it in a folder that is not there yet."""
    DatasetWriter(path).add(batch)
    return path


@cache
def random_demonstrations(env: str) -> str:
    """The folder of 20 steps at random in two environments."""
    with WorkerSet(env, RandomPolicy, envs_per_worker=2) as workers:
        batch = next(iter(ParallelRollouts(workers, steps=20)))
    return str(recorded(batch, Path(tempfile.mkdtemp(prefix="flowrl-")) / "demonstrations"))


@cache
def other_demonstrations() -> str:
    """The same observations with the other actions."""
    batch = cartpole_episodes(2, 20)
    swapped = batch.replace(action=1 - batch.action)
    return str(recorded(swapped, Path(tempfile.mkdtemp(prefix="flowrl-")) / "demonstrations"))


@cache
def ten_episodes() -> str:
    """The folder of ten whole episodes."""
    return str(recorded(cartpole_episodes(), Path(tempfile.mkdtemp(prefix="flowrl-")) / "demonstrations"))


@cache
def cartpole_demonstrations() -> str:
    """The folder of 40 steps of two episodes."""
    return str(recorded(cartpole_episodes(2, 20), Path(tempfile.mkdtemp(prefix="flowrl-")) / "demonstrations"))
