"""DQN learns: the README's job, for several seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowrl.plans import dqn
from flowrl.rollout import WorkerSet, evaluate, mean_return


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_solves_cartpole_within_the_budget(seed: int, tmp_path: Path) -> None:
    """S6: a mean return of 475 in evaluation, on fresh seeds too, within 50 000 env steps."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "flowrl", "run", "dqn", "--stop-return", "475", "--stop-steps", "50000"]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--out", str(out)], timeout=900, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["confirmed_return"] >= 475
    # What was saved is that good in anybody's hands.
    config = dqn.Config(**{**json.loads((out / "config.json").read_text()), "hidden": (128, 128)})
    workers = WorkerSet(config.env, lambda *spaces: dqn.policy(config, *spaces))
    import torch

    workers.policy.load_weights(torch.load(out / "policy.pt", weights_only=True))
    assert mean_return(evaluate(workers.policy, config.env, episodes=100, seed=987)) >= 475
