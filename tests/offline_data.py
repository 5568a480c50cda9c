"""Datasets of random actions, made once, for plans that learn without an environment."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from flowrl.cli.record import record_run

#: Episodes of each.
EPISODES = {"CartPole-v1": 20, "Pendulum-v1": 2}


@cache
def offline_data(env: str = "CartPole-v1") -> str:
    """The folder of the dataset of an environment."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(record_run(None, folder / "data", policy="random", env=env, episodes=EPISODES[env]).path)
