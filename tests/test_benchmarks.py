"""Benchmarks run and print what they promise; what they measure is no matter of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def printed(name: str, *options: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, f"benchmarks/{name}", *options]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_environment_managers_are_compared() -> None:
    """Each row steps with what is installed, and compares with gymnasium's at least."""
    rows = printed("env_managers.py", "--rounds", "1", "--scale", "0.01").split("\n\n")[1:]
    assert [row.partition(":")[0] for row in rows] == [
        *("CartPole-v1", "sleeps 1 ms", "heavy-tailed, sleeps", "heavy-tailed, works")
    ]
    for row in rows:
        assert "gymnasium Async" in row
    assert "flowrl local / gymnasium Sync" in rows[0]


@pytest.mark.slow
def test_acting_in_torch_and_in_numpy_is_compared_with_bare_loops() -> None:
    text = printed("sampling.py", "--steps", "1", "--rounds", "2")
    for case in ("sync 8", "native 8", "native 64", "native 1024"):
        compared = re.findall(rf"{case} +flowrl, (\w+) / (\w+) loop: \d+\.\d\d  \(95 % interval", text)
        assert compared == [("torch", "torch"), ("numpy", "torch"), ("numpy", "numpy")], text


@pytest.mark.slow
def test_learning_is_told_seed_by_seed() -> None:
    """As far as a short budget goes; of this task nobody is expected to succeed."""
    text = printed("learning.py", "ppo-units", "--seeds", "3", "--budget", "2000")
    assert re.search(r"^ +3 +-[\d.]+ +nan +2,048 +[\d.]+  NOT SOLVED \(exit 3\)$", text, re.MULTILINE), text
    assert "solved 0 of 1 seeds that were looked at while tuning" in text
