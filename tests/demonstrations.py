"""Episodes of somebody who knows how, recorded once for all tests of a process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.plan_file import load_plan_file
from flowrl.runs.record import record_run


def balances(obs: Any) -> Any:
    """CartPole: push to where the pole leans and falls, and a little against where the cart is. Never fails."""
    return (obs @ np.array([0.1, 0.3, 3.0, 1.0]) > 0).astype(np.int64)


@cache
def cartpole(episodes: int = 2) -> str:
    """The folder of such episodes, of 500 steps each."""
    folder = Path(tempfile.mkdtemp(prefix="demonstrations-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "episodes"
    record_run(None, path, policy="tests.demonstrations:balances", episodes=episodes, env="CartPole-v1")
    return str(path)


def options(plan: str) -> list[str]:
    """What a plan must be told on the command line: where demonstrations are, if it learns from some."""
    needed = "demonstrations" in load_plan_file(plan).Config().to_dict()
    return ["--set", f"demonstrations={cartpole()}"] if needed else []
