"""Datasets of random actions, made once, for plans that learn without an environment."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from flowrl.tools.record import record_run
from flowrl.trainer.plan_file import load_plan_file

#: Episodes of each.
EPISODES = {"CartPole-v1": 20, "Pendulum-v1": 2, "tests.spaces_envs:Arms": 50}


@cache
def offline_data(env: str = "CartPole-v1") -> str:
    """The folder of the dataset of an environment."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(record_run(None, folder / "data", policy="random", env=env, episodes=EPISODES[env]).path)


def data_for(plan: str) -> str:
    """The folder of a dataset with actions of the kind that an offline plan expects where nothing is said."""
    usual = load_plan_file(plan).Config().data
    return offline_data("Pendulum-v1" if "pendulum" in usual else "CartPole-v1")
