"""Demonstrations by rules that never fail, and steps at random; recorded once for a process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.data import Batch, DatasetWriter
from flowrl.operators import ParallelRollouts
from flowrl.policies import RandomPolicy, ScriptedPolicy
from flowrl.rollout import WorkerSet
from flowrl.tools.record import record_run
from flowrl.trainer.plan_file import load_plan_file


def balances(obs: Any) -> Any:
    """Push to where the pole leans and falls, and a little against where the cart is."""
    return (obs @ np.array([0.1, 0.3, 3.0, 1.0]) > 0).astype(np.int64)


def swings(obs: Any) -> Any:
    """Push to where the car rolls."""
    return np.where(obs[..., 1] > 0, 2, 0).astype(np.int64)


def cartpole_episodes(episodes: int, steps: int) -> Batch:
    """The first steps of so many episodes, `[steps, episodes, ...]`."""
    return _scripted("CartPole-v1", balances, episodes, steps)


def mountain_car_episodes(envs: int, steps: int) -> Batch:
    """So many steps in so many environments, `[steps, envs, ...]`; an episode comes to the goal in about 120."""
    return _scripted("MountainCar-v0", swings, envs, steps)


def _scripted(env: str, rule: Callable[[Any], Any], envs: int, steps: int) -> Batch:
    with WorkerSet(env, lambda *found: ScriptedPolicy(rule, *found), envs_per_worker=envs) as workers:
        batch: Batch = next(iter(ParallelRollouts(workers, steps=steps)))
    return batch


def recorded(batch: Batch, path: Path | None = None) -> str:
    """The folder of a dataset of it."""
    path = path or folder()
    DatasetWriter(path).add(batch)
    return str(path)


def folder() -> Path:
    """One that is not there yet, and is gone when the process ends."""
    place = Path(tempfile.mkdtemp(prefix="demonstrations-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place / "episodes"


@cache
def cartpole(episodes: int = 2) -> str:
    """The folder of whole episodes of the rule, of 500 steps each."""
    path = folder()
    record_run(None, path, policy="tests.demonstrations:balances", episodes=episodes, env="CartPole-v1")
    return str(path)


@cache
def pendulum() -> str:
    """The folder of 20 steps at random in two environments of Pendulum-v1."""
    return random_steps("Pendulum-v1")


@cache
def fewer_of_pendulum() -> str:
    """The folder of 15 steps instead."""
    return random_steps("Pendulum-v1", 15)


@cache
def one_episode() -> str:
    """The folder of one."""
    return cartpole(1)


@cache
def few_steps() -> str:
    """The folder of 40 steps of two episodes."""
    return recorded(cartpole_episodes(2, 20))


@cache
def swapped_steps() -> str:
    """The same observations with the other actions."""
    batch = cartpole_episodes(2, 20)
    return recorded(batch.replace(action=1 - batch.action))


@cache
def random_steps(env: str, steps: int = 20, envs: int = 2) -> str:
    """The folder of so many steps at random in two environments, or more."""
    with WorkerSet(env, RandomPolicy, envs_per_worker=envs) as workers:
        return recorded(next(iter(ParallelRollouts(workers, steps=steps))))


def shown_to(plan: str, episodes: int = 2) -> str | None:
    """The folder of what a plan may learn from in its own environment; None if it learns from nobody."""
    config = load_plan_file(plan).Config()
    if "demonstrations" not in config.to_dict():
        return None
    return cartpole(episodes) if config.env == "CartPole-v1" else random_steps(config.env, 200, episodes)


def options(plan: str) -> list[str]:
    """What a plan must be told on the command line: where demonstrations are, if it learns from some."""
    shown = shown_to(plan)
    return ["--set", f"demonstrations={shown}"] if shown else []
