"""What the tests of resuming share: a small run, and when two runs are the same."""

from __future__ import annotations

import json

from click.testing import CliRunner

from flowrl.checkpoint import Checkpoints
from flowrl.cli import cli
from flowrl.operators.metrics import CLOCK_KEYS
from flowrl.testing import same

DEADLINE = 120
SMALL = (
    *("--set", "hidden=[8]", "--set", "learning_starts=100", "--set", "replay_ratio=4", "--set", "batch_size=16"),
    *("--set", "report_every=100", "--set", "eval_every=200", "--set", "eval_episodes=2", "--set", "torch_threads=1"),
)
STEPS = 1200


def flowrl(*arguments):
    return CliRunner(catch_exceptions=False).invoke(cli, [str(a) for a in arguments])


def checkpoints(run):
    return Checkpoints(run / "checkpoints")


def metrics(run):
    results = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in result.items() if key not in CLOCK_KEYS} for result in results]


def assert_same_run(run, whole):
    """Results, policies and the whole state at the end, but for the clock."""
    assert metrics(run) == metrics(whole)
    for name in ("policy.pt", "policy_last.pt"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = (checkpoints(path).load(trusted=True) for path in (run, whole))
    for state in (ours, theirs):
        state["session"].pop("seconds")
        state["session"]["last"] = {k: v for k, v in state["session"]["last"].items() if k not in CLOCK_KEYS}
    for part in theirs:
        assert same(ours[part], theirs[part]), part


PLAN = '''"""Results without learning."""
import attrs
import gymnasium
import numpy as np

import flowrl
from flowrl.config import Configuration
from flowrl.operators import ParallelRollouts, StandardMetricsReporting


@attrs.define(kw_only=True)
class Config(Configuration):
    report_every: int = 20
    speed: float = 1.0


class Left:
    draws = version = 0
    resources = ()

    @property
    def collect_mode(self):
        return self

    def act(self, obs, noise, env_steps):
        return {"action": np.zeros(len(obs), dtype=np.int64)}


def policy(config, observation_space, action_space):
    return Left()


def execution_plan(workers, config):
    return StandardMetricsReporting(ParallelRollouts(workers, steps=5).for_each(look), workers, config)


def look(batch):
    return {"reward": float(batch.reward.sum())}
'''


RUN_OWN = ("run", "own.py", "--envs", 2, "--stop-steps", 60, "--set", "eval_every=1000", "--set", "checkpoint_every=20")
