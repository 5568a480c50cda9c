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


def test_the_scheduler_is_measured_with_simulated_workers() -> None:
    text = printed("scheduler_scale.py", "--workers", "2", "20", "--items", "50", "--rounds", "1")
    assert len(re.findall(r"^  20 / 2 workers: \d+\.\d\d$", text, re.MULTILINE)) == 4, text


@pytest.mark.slow
def test_sampling_on_ray_is_measured_with_or_without_rllib() -> None:
    text = printed("ray_sampling.py", "--fragments", "1", "--rounds", "1", "--workers", "1")
    for name in ("flowrl bulk_sync", "flowrl async", "flowrl in this process"):
        assert re.search(rf"^{name} +[\d,]+ env steps/s", text, re.MULTILINE), text
    assert ("RLlib is not installed" in text) != ("flowrl async / RLlib async: " in text)


@pytest.mark.slow
def test_gathering_on_ray_is_measured_beside_ray_alone() -> None:
    text = printed("ray_gather.py", "--seconds", "0.05", "--rounds", "1", "--actors", "1")
    rows = re.findall(r"^(Ray alone|flowrl), (\d+) in flight.* [\d,]+ items/s", text, re.MULTILINE)
    assert rows == [("Ray alone", "1"), ("Ray alone", "8"), *(("flowrl", n) for n in "18188")], text


@pytest.mark.slow
def test_the_idle_driver_is_measured_beside_ray_alone() -> None:
    """F6: and a run is woken by its workers alone."""
    text = printed("ray_idle.py", "--seconds", "0.5", "--rounds", "2")
    found = re.search(r"flowrl above Ray alone: -?\d+\.\d\d % of a core; (\d\.\d) wake-ups an item", text)
    assert found, text
    assert float(found[1]) <= 1, text


@pytest.mark.slow
def test_learning_is_told_seed_by_seed() -> None:
    """As far as a short budget goes; of this task nobody is expected to succeed."""
    text = printed("learning.py", "ppo-units", "--seeds", "3", "--budget", "2000")
    assert re.search(r"^ +3 +-[\d.]+ +nan +2,048 +[\d.]+  NOT SOLVED \(exit 3\)$", text, re.MULTILINE), text
    assert "solved 0 of 1 seeds that were looked at while tuning" in text
