"""What docs/install.md says of macOS and Windows, as far as this system can show it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORT_EVERYTHING = """
import importlib, pkgutil, flowrl
for module in pkgutil.walk_packages(flowrl.__path__, "flowrl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
TRAIN = """
from flowrl.cli.main import cli
small = ["--stop-steps", "600", "--set", "eval_episodes=2", "--set", "hidden=[8]", "--envs", "2", "--quiet"]
for kind in {kinds}:
    plan = "ppo" if kind == "vector" else "dqn"
    cli(["run", plan, *small, "--env-manager", kind, "--out", {folder!r} + "/" + kind], standalone_mode=False)
"""
EXAMINE = """
cli(["doctor", "CartPole-v1", "--steps", "50"], standalone_mode=False)
"""
APART = """
from flowrl.envs import make_manager
for kind in ("subprocess", "async", "thread"):
    try:
        make_manager("CartPole-v1", 2, kind=kind)
    except Exception as error:
        print(error)
"""
MANAGERS = {
    "win32": ["local", "vector"],
    "darwin": ["local", "vector", "thread", "subprocess", "async"],  # by spawn: this process could not fork
}


def as_on(platform: str, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.emulated", platform, program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("platform", MANAGERS)
def test_plans_train_with_what_the_platform_has(platform: str, tmp_path: Path) -> None:
    """W1: every module is imported, every manager steps, and an environment is examined."""
    program = IMPORT_EVERYTHING + TRAIN.format(kinds=MANAGERS[platform], folder=str(tmp_path)) + EXAMINE
    done = as_on(platform, program)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-3000:]
    for kind in MANAGERS[platform]:
        assert (tmp_path / kind / "metrics.jsonl").read_text().strip(), kind
    assert "CartPole-v1" in done.stdout
    assert "its process ended" not in done.stdout


@pytest.mark.slow
def test_what_windows_lacks_is_refused_with_the_way_out() -> None:
    """W1: before anything starts."""
    done = as_on("win32", APART)
    way_out = "need Linux or macOS: on Windows take env_manager='local' or 'vector'"
    assert [way_out in line for line in done.stdout.splitlines()] == [True] * 3, done.stderr
