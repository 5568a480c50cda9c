"""The benchmark of environment managers runs; what it measures is no matter of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_environment_managers_are_compared() -> None:
    """Each row steps with what is installed, and compares with gymnasium's at least."""
    done = subprocess.run(
        [sys.executable, "benchmarks/env_managers.py", "--rounds", "1", "--scale", "0.01"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.split("\n\n")[1:]
    assert [row.partition(":")[0] for row in rows] == [
        *("CartPole-v1", "sleeps 1 ms", "heavy-tailed, sleeps", "heavy-tailed, works")
    ]
    for row in rows:
        assert "gymnasium Async" in row
    assert "flowrl local / gymnasium Sync" in rows[0]
